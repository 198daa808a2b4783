"""Sends what a plan says when it says so, inside one process."""

import asyncio
import itertools
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
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

    def plans(self) -> Iterator[RequestPlan]:
        """This share of what the users of a closed loop ask, without end."""
        return itertools.islice(self.workload.plans(), self.share, None, self.shares)

    @property
    def users(self) -> int:
        """This share of a closed loop's users; none in an open loop."""
        if not isinstance(self.arrivals, ClosedLoop):
            return 0
        return len(range(self.share, self.arrivals.users, self.shares))

    def outgoing(self, due: float, plan: RequestPlan) -> OutgoingRequest:
        """The request itself, the first of its session where it begins one."""
        asked = question(plan, self.prompts)
        session = Session(plan, said=[asked]) if plan.turns > 1 else None
        body = request_body(plan, self.model, [asked])
        return OutgoingRequest(f"{self.run}-{plan.serial}", plan.traffic_class, body, due, plan.may_abandon, session)

    def follow_up(self, due: float, session: Session) -> OutgoingRequest:
        """The next question of a session whose last one was answered."""
        plan = self.workload.next_turn(session.plan)
        session.go_on(plan, question(plan, self.prompts))
        body = request_body(plan, self.model, session.said)
        id_ = f"{self.run}-{plan.serial}.{plan.turn}"
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
        self._started = self._ends = 0.0
        self._plan = plan
        self._client = client
        self._ready: deque[tuple[float, OutgoingRequest]] = deque()
        self._ready_bytes = 0
        self._awaited: dict[str, float] = {}
        """When the questions that a user of a closed loop or of a session thinks about are due, by request."""
        self._users = asyncio.TaskGroup()
        self._coming = ((0.0, each) for each in plan.plans()) if plan.users else plan.due_plans()

    def prepare(self) -> None:
        """Make the first requests. Call it before the start: it may take a moment."""
        raise_file_limit(self._plan.users or self._burst())
        while not self._plan.users or len(self._ready) < self._plan.users:
            if not self._make_one():
                break

    @property
    def due_count(self) -> int:
        """Requests that were due by now, sent or not."""
        now = monotonic()
        ready = itertools.takewhile(lambda entry: self._started + entry[0] <= now, self._ready)
        return self.sent_count + sum(1 for _ in ready) + sum(due <= now for due in self._awaited.values())

    async def run(self, started: float) -> None:
        """Send everything from monotonic time `started` on, and wait until all requests have ended."""
        self._started, self._ends = started, started + self._plan.duration_s
        try:
            async with self._users:
                if isinstance(self._plan.arrivals, ClosedLoop):
                    for _ in range(self._plan.users):
                        self._users.create_task(self._user(self._plan.arrivals.think_time_s))
                else:
                    await self._open_loop()
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from failures
        await self._client.all_ended()

    async def _open_loop(self) -> None:
        sent_this_turn = 0
        with Alarm() as alarm:
            while self._ready or self._make_one():
                request = self._next_ready()
                if (ahead_s := request.due - monotonic()) > 0:
                    await self._pass_time(alarm, request.due, ahead_s)
                    sent_this_turn = 0
                elif sent_this_turn >= SENDS_PER_TURN:
                    await asyncio.sleep(0)
                    sent_this_turn = 0
                if request.session is None:
                    self._send(request)
                else:
                    self._users.create_task(self._talk(request.session, self._ask(request)))
                sent_this_turn += 1

    async def _user(self, think_time_s: float) -> None:
        """Ask, wait for the answer, think, and ask again until the load ends."""
        due = self._started
        while due < self._ends:
            if not self._ready:
                self._make_one()
            request = self._next_ready(due)
            answer = self._ask_when_due(request)
            await (answer if request.session is None else self._talk(request.session, answer))
            due = monotonic() + think_time_s

    async def _talk(self, session: Session, first_answer: Awaitable[RequestRecord]) -> None:
        """Read the answer, think, and ask the next question of a session until it or the load ends."""
        record = await first_answer
        while session.goes_on_after(record.outcome):
            due = monotonic() + session.plan.traffic_class.think_time_s
            if due >= self._ends:
                return
            record = await self._ask_when_due(self._plan.follow_up(due, session))

    async def _ask_when_due(self, request: OutgoingRequest) -> RequestRecord:
        self._awaited[request.id] = request.due
        await asyncio.sleep(max(0.0, request.due - monotonic()))
        del self._awaited[request.id]
        return await self._ask(request)

    def _ask(self, request: OutgoingRequest) -> asyncio.Future[RequestRecord]:
        """Send it now; its record comes when it has ended."""
        record: asyncio.Future[RequestRecord] = asyncio.get_running_loop().create_future()

        def ended(found: RequestRecord) -> None:
            if not record.done():  # nobody waits any more when the load was stopped
                record.set_result(found)

        self._send(request, ended)
        return record

    def _send(self, request: OutgoingRequest, then: Callable[[RequestRecord], None] | None = None) -> None:
        self.sent_count += 1
        self._client.send(request, then)

    async def _pass_time(self, alarm: Alarm, until: float, ahead_s: float) -> None:
        """Make requests ahead while there is time, then sleep."""
        while ahead_s > 0.002 and self._make_one():
            ahead_s = until - monotonic()
        while monotonic() < until:
            await alarm.at(until)

    def _next_ready(self, due: float | None = None) -> OutgoingRequest:
        """The first of the requests made ahead, due as planned or as given."""
        due_s, request = self._ready.popleft()
        self._ready_bytes -= len(request.body)
        request.due = self._started + due_s if due is None else due
        return request

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

    def _burst(self) -> int:
        """Connections at once, as far as is known beforehand."""
        return int(getattr(self._plan.arrivals, "count", 0)) // self._plan.shares
