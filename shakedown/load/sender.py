"""Sends what a plan says when it says so, inside one process."""

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from shakedown.judge.records import RequestRecord
from shakedown.load.alarm import Alarm
from shakedown.load.arrivals import Arrivals, ClosedLoop, Trace
from shakedown.load.client import POD_HEADERS, Limits, OutgoingRequest, StreamingClient, Target, monotonic
from shakedown.load.health import raise_file_limit
from shakedown.load.prompts import PromptMaker
from shakedown.load.session import Session
from shakedown.load.workload import RequestPlan, Workload, question, request_body

READY_REQUESTS = 4096
READY_BYTES = 32 * 1024 * 1024
SENDS_PER_TURN = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """All that a process needs to know to send its share of a load."""

    run: str
    """Begins the ids of the load's requests."""
    targets: tuple[str, ...]
    arrivals: Arrivals | ClosedLoop
    workload: Workload
    model: str
    prompts: PromptMaker
    duration_s: float
    limits: Limits = field(default_factory=Limits)
    headers: Mapping[str, str] = field(default_factory=dict)
    pod_headers: tuple[str, ...] = POD_HEADERS
    keep_alive: bool = False
    share: int = 0
    """This process takes every `shares`-th request, from this one on."""
    shares: int = 1

    def client(self, on_record: Callable[[RequestRecord], None], wall_offset: float) -> StreamingClient:
        """A client for this plan."""
        return StreamingClient(
            [Target.of(url) for url in self.targets],
            on_record=on_record,
            wall_offset=wall_offset,
            limits=self.limits,
            headers=self.headers,
            pod_headers=self.pod_headers,
            keep_alive=self.keep_alive,
        )

    def due_plans(self) -> Iterator[tuple[float, RequestPlan]]:
        """This share of an open loop's requests: seconds from the start, and what to ask."""
        assert not isinstance(self.arrivals, ClosedLoop)
        return itertools.islice(
            _due_plans(self.arrivals, self.workload, self.duration_s), self.share, None, self.shares
        )

    def outgoing(self, due: float, plan: RequestPlan) -> OutgoingRequest:
        """The request itself, the first of its session where it begins one."""
        asked = question(plan, self.prompts)
        session = Session(plan, said=[asked]) if plan.turns > 1 else None
        body = request_body(plan, self.model, [asked])
        return OutgoingRequest(f"{self.run}-{plan.serial}", plan.traffic_class, body, due, plan.may_abandon, session)

    def follow_up(self, due: float, session: Session) -> OutgoingRequest:
        """The next question of a session whose last one was answered."""
        session.answered()
        plan = session.plan
        session.said.append(question(plan, self.prompts, session.turn))
        body = request_body(plan, self.model, session.said)
        id_ = f"{self.run}-{plan.serial}.{session.turn}"
        return OutgoingRequest(id_, plan.traffic_class, body, due, plan.may_abandon, session)


def _due_plans(arrivals: Arrivals, workload: Workload, duration_s: float) -> Iterator[tuple[float, RequestPlan]]:
    if isinstance(arrivals, Trace):
        for row, plan in zip(arrivals.rows(duration_s), workload.plans(), strict=False):
            yield row.due_s, plan._replace(prompt_tokens=row.prompt_tokens, max_tokens=max(1, row.output_tokens))
    else:
        yield from zip(arrivals.due_times(duration_s), workload.plans(), strict=False)


class Sender:
    """Runs one plan on one client; the counts may be read at any time."""

    def __init__(self, plan: LoadPlan, client: StreamingClient) -> None:
        self.sent_count = 0
        self._started = 0.0
        self._plan = plan
        self._client = client
        self._ready: deque[tuple[float, OutgoingRequest]] = deque()
        self._ready_bytes = 0
        self._thinking: set[asyncio.Task[None]] = set()
        """Users between an answer and their session's next question."""
        self._coming = iter(()) if isinstance(plan.arrivals, ClosedLoop) else plan.due_plans()

    def prepare(self) -> None:
        """Make the first requests. Call it before the start: it may take a moment."""
        raise_file_limit(self._connections_at_once())
        while self._make_one():
            pass

    @property
    def due_count(self) -> int:
        """Requests that were due by now, sent or not."""
        elapsed_s = monotonic() - self._started
        return self.sent_count + sum(1 for _ in itertools.takewhile(lambda entry: entry[0] <= elapsed_s, self._ready))

    async def run(self, started: float) -> None:
        """Send everything from monotonic time `started` on, and wait until all requests have ended."""
        self._started = started
        try:
            if isinstance(self._plan.arrivals, ClosedLoop):
                await self._closed_loop(self._plan.arrivals, started)
            else:
                await self._open_loop(started)
            await self._client.all_ended()
            while self._thinking:
                await asyncio.wait(self._thinking)
                await self._client.all_ended()
        finally:
            for user in self._thinking:
                user.cancel()

    async def _open_loop(self, started: float) -> None:
        sent_this_turn = 0
        with Alarm() as alarm:
            while self._ready or self._make_one():
                due_s, request = self._ready.popleft()
                self._ready_bytes -= len(request.body)
                request.due = started + due_s
                if (ahead_s := request.due - monotonic()) > 0:
                    await self._pass_time(alarm, request.due, ahead_s)
                    sent_this_turn = 0
                elif sent_this_turn >= SENDS_PER_TURN:
                    await asyncio.sleep(0)
                    sent_this_turn = 0
                self._send(request)
                sent_this_turn += 1

    def _send(self, request: OutgoingRequest, then: Callable[[RequestRecord], None] | None = None) -> None:
        """`then` is called when the session is over: with the first question's record where it has no other."""
        session = request.session
        self.sent_count += 1
        if session is None:
            self._client.send(request, then)
            return

        def ended(record: RequestRecord) -> None:
            if session.goes_on_after(record.outcome) and monotonic() < self._started + self._plan.duration_s:
                user = asyncio.ensure_future(self._go_on(session, then))
                self._thinking.add(user)
                user.add_done_callback(self._thinking.discard)
            elif then is not None:
                then(record)

        self._client.send(request, ended)

    async def _go_on(self, session: Session, then: Callable[[RequestRecord], None] | None) -> None:
        """Think, then ask the next question, unless the load has ended meanwhile."""
        await asyncio.sleep(session.plan.traffic_class.think_time_s)
        if (now := monotonic()) < self._started + self._plan.duration_s:
            self._send(self._plan.follow_up(now, session), then)

    async def _pass_time(self, alarm: Alarm, until: float, ahead_s: float) -> None:
        """Make requests ahead while there is time, then sleep."""
        while ahead_s > 0.002 and self._make_one():
            ahead_s = until - monotonic()
        while monotonic() < until:
            await alarm.at(until)

    def _make_one(self) -> bool:
        if len(self._ready) >= READY_REQUESTS or self._ready_bytes >= READY_BYTES:
            return False
        upcoming = next(self._coming, None)
        if upcoming is None:
            return False
        due_s, plan = upcoming
        request = self._plan.outgoing(0.0, plan)
        self._ready.append((due_s, request))
        self._ready_bytes += len(request.body)
        return True

    def _connections_at_once(self) -> int:
        """What is known of it beforehand."""
        arrivals = self._plan.arrivals
        if isinstance(arrivals, ClosedLoop):
            return arrivals.users // self._plan.shares
        return int(getattr(arrivals, "count", 0)) // self._plan.shares

    async def _closed_loop(self, arrivals: ClosedLoop, started: float) -> None:
        plans = itertools.islice(self._plan.workload.plans(), self._plan.share, None, self._plan.shares)
        ends = started + self._plan.duration_s
        loop = asyncio.get_running_loop()

        def ask() -> None:
            if (now := monotonic()) < ends:
                self._send(self._plan.outgoing(now, next(plans)), think)

        def think(_: RequestRecord) -> None:
            loop.call_later(arrivals.think_time_s, ask)

        await asyncio.sleep(max(0.0, started - monotonic()))
        for _ in range(self._plan.share, arrivals.users, self._plan.shares):
            ask()
        await asyncio.sleep(max(0.0, ends - monotonic()))
