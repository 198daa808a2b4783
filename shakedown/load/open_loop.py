"""The load as a scenario holds it: starts in the background, can be waited on, leaves complete records."""

import asyncio
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import httpx

from shakedown.errors import HarnessError, SetupError
from shakedown.judge.records import Outcome, RequestRecord
from shakedown.load.arrivals import Arrivals, ClosedLoop
from shakedown.load.client import POD_HEADERS, Limits, StreamingClient, base_url, monotonic
from shakedown.load.health import HealthBounds, LoadHealth, SelfWatch, load_health
from shakedown.load.prompts import PromptMaker, calibrated_prompts
from shakedown.load.records_file import RecordsFile, read_records
from shakedown.load.sender import LoadPlan, Sender
from shakedown.load.workload import Workload
from shakedown.waiting import wait_until

CONTROL_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a load stands."""

    sent: int
    ended: int
    completed: int
    tokens: int
    over: bool
    """Everything has been sent and has ended."""

    @property
    def in_flight(self) -> int:
        return self.sent - self.ended


class OpenLoop:
    """`async with OpenLoop(url, arrivals=Poisson(8, seed=7), workload=Workload(), duration_s=60) as load:`

    The load starts when the block is entered. Leaving the block waits until every request has ended, within the
    limits; leaving it through an exception stops the load and records what was under way as abandoned. Records are
    appended to `records` as requests end. A ClosedLoop of users may stand in for the arrivals.
    """

    def __init__(
        self,
        url: str,
        *,
        arrivals: Arrivals | ClosedLoop,
        workload: Workload | None = None,
        duration_s: float,
        records: Path | None = None,
        targets: Sequence[str] = (),
        limits: Limits | None = None,
        bounds: HealthBounds | None = None,
        headers: Mapping[str, str] | None = None,
        pod_headers: Sequence[str] = POD_HEADERS,
        keep_alive: bool = False,
        prompts: PromptMaker | None = None,
    ) -> None:
        self.url = base_url(url)
        self.started_at = 0.0
        """Wall time of the load's first instant; request dues count from it."""
        self._targets = tuple(base_url(target) for target in targets) or (self.url,)
        self._arrivals = arrivals
        self._workload = workload or Workload()
        self._duration_s = duration_s
        self._path = records
        self._limits = limits or Limits()
        self._bounds = bounds or HealthBounds()
        self._headers = dict(headers or {})
        self._pod_headers = tuple(pod_headers)
        self._keep_alive = keep_alive
        self._prompts = prompts
        self._file: RecordsFile | None = None
        self._kept: list[RequestRecord] = []
        self._send_lags: list[float] = []
        self._ended = self._completed = 0
        self._watch = SelfWatch()
        self._client: StreamingClient | None = None
        self._sender: Sender | None = None
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "OpenLoop":
        plan = await self._plan()
        offset = time.time() - monotonic()
        if self._path is not None:
            self._path.unlink(missing_ok=True)
            self._file = RecordsFile(self._path)
        self._client = await plan.client(self._take, offset).__aenter__()
        self._sender = Sender(plan, self._client)
        self._sender.prepare()
        started = monotonic()
        self.started_at = started + offset
        self._watch.start()
        self._task = asyncio.create_task(self._sender.run(started))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._task is not None
        assert self._client is not None
        try:
            if kind is None:
                await self.done()
        finally:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            await self._client.__aexit__()
            await self._watch.stop()
            if self._file is not None:
                self._file.close()

    @property
    def progress(self) -> Progress:
        """Now."""
        assert self._sender is not None
        assert self._client is not None
        over = self._task is not None and self._task.done()
        return Progress(
            sent=self._sender.sent_count,
            ended=self._ended,
            completed=self._completed,
            tokens=self._client.tokens_seen,
            over=over,
        )

    async def until(
        self,
        *,
        sent: int = 0,
        completed: int = 0,
        ended: int = 0,
        tokens: int = 0,
        within_s: float = 120.0,
    ) -> Progress:
        """Wait until the load has come that far.

        Raises WaitTimeout after `within_s`, and HarnessError at once if the load is over and never got there.
        """

        async def look() -> Progress:
            return self.progress

        def reached(now: Progress) -> bool:
            return now.sent >= sent and now.completed >= completed and now.ended >= ended and now.tokens >= tokens

        wanted = {"sent": sent, "completed": completed, "ended": ended, "tokens": tokens}
        goal = " and ".join(f"{count} {name}" for name, count in wanted.items() if count)
        seen = await wait_until(
            f"the load to have {goal}", look, lambda now: reached(now) or now.over, within_s=within_s, every_s=0.05
        )
        if not reached(seen):
            self._raise_sender_error()
            raise HarnessError(f"the load ended before it had {goal}; it got to {seen}")
        return seen

    async def done(self) -> None:
        """Wait until everything is sent and every request has ended."""
        assert self._task is not None
        await asyncio.shield(self._task)

    async def stop(self) -> None:
        """Send nothing more and abandon what is under way."""
        assert self._task is not None
        assert self._client is not None
        if not self._task.done():
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._client.abandon_all()

    @property
    def records(self) -> tuple[RequestRecord, ...]:
        """The records of the requests that have ended: all of them, once the block is left. In order of due time."""
        records = self._kept if self._path is None else read_records(self._path)
        return tuple(sorted(records, key=lambda record: record.due_at))

    @property
    def health(self) -> LoadHealth:
        """Whether the client kept up, so far."""
        assert self._sender is not None
        report = self._watch.report()
        return load_health(
            due=self._due_by_now(),
            send_lags_s=self._send_lags,
            workers=[report],
            duration_s=max(min(self._duration_s, time.time() - self.started_at), 1e-9),
            bounds=self._bounds,
        )

    def _due_by_now(self) -> int:
        assert self._sender is not None
        return self._sender.due_count

    def _take(self, record: RequestRecord) -> None:
        self._ended += 1
        self._completed += record.outcome is Outcome.COMPLETED
        self._send_lags.append(record.sent_at - record.due_at)
        if self._file is not None:
            self._file.append(record)
        else:
            self._kept.append(record)

    def _raise_sender_error(self) -> None:
        if self._task is not None and self._task.done() and not self._task.cancelled():
            self._task.result()

    async def _plan(self) -> LoadPlan:
        async with httpx.AsyncClient(headers=self._headers, timeout=CONTROL_TIMEOUT_S, trust_env=False) as control:
            model = self._workload.model or await served_model(control, self.url)
            prompts = self._prompts or await calibrated_prompts(control, self.url, model)
        return LoadPlan(
            run=f"load-{secrets.token_hex(4)}",
            targets=self._targets,
            arrivals=self._arrivals,
            workload=self._workload,
            model=model,
            prompts=prompts,
            duration_s=self._duration_s,
            limits=self._limits,
            headers=self._headers,
            pod_headers=self._pod_headers,
            keep_alive=self._keep_alive,
        )


async def served_model(control: httpx.AsyncClient, url: str) -> str:
    """The first model that the server lists. Raises SetupError with one line."""
    try:
        answer = await control.get(f"{url}/v1/models")
        answer.raise_for_status()
        return str(answer.json()["data"][0]["id"])
    except httpx.HTTPStatusError as error:
        raise SetupError(f"{url}/v1/models answers {error.response.status_code}; name the model") from error
    except httpx.HTTPError as error:
        raise SetupError(f"{url} does not answer: {error or type(error).__name__}") from error
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise SetupError(f"{url}/v1/models lists no model; is it an OpenAI-compatible server?") from error
