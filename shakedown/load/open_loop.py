"""The load as a scenario holds it: starts in the background, can be waited on, leaves complete records."""

import secrets
import shutil
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType

import httpx

from shakedown.errors import HarnessError, SetupError
from shakedown.judge.records import RequestRecord
from shakedown.load.arrivals import Arrivals, ClosedLoop, Trace
from shakedown.load.client import POD_HEADERS, Limits, base_url, monotonic
from shakedown.load.crew import OwnProcess, Processes
from shakedown.load.health import HealthBounds, LoadHealth, load_health
from shakedown.load.prompts import PromptMaker, calibrated_prompts
from shakedown.load.records_file import read_records
from shakedown.load.sender import LoadPlan
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
        workers: int = 1,
    ) -> None:
        """`workers` child processes send, each on a core of its own if there are as many; 0 sends on this event loop.

        Only child processes are independent of what else this process does. Without `records` they are kept in a file
        that goes when the object goes.
        """
        self.url = base_url(url)
        self.started_at = 0.0
        """Wall time of the load's first instant; request dues count from it."""
        self._targets = tuple(base_url(target) for target in targets) or (self.url,)
        self._arrivals = arrivals
        self._workload = workload or Workload()
        self._duration_s = duration_s
        self._limits = limits or Limits()
        self._bounds = bounds or HealthBounds()
        self._headers = dict(headers or {})
        self._pod_headers = tuple(pod_headers)
        self._keep_alive = keep_alive
        self._prompts = prompts
        self._workers = workers
        self._path = records or self._scratch_path()
        self._crew: OwnProcess | Processes | None = None
        self._left = False

    async def __aenter__(self) -> "OpenLoop":
        if isinstance(self._arrivals, Trace):
            next(self._arrivals.rows(self._duration_s), None)  # a trace that cannot be read is said here and now
        plan = await self._plan()
        offset = time.time() - monotonic()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.unlink(missing_ok=True)
        if self._workers:
            self._crew = Processes(plan, self._path, offset, self._workers)
        else:
            self._crew = OwnProcess(plan, self._path, offset)
        try:
            self.started_at = await self._crew.start() + offset
        except BaseException:
            await self._crew.leave()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                await self.done()
        finally:
            await self._running.leave()
            self._left = True

    @property
    def progress(self) -> Progress:
        """Now, or as of a twentieth of a second ago if other processes send."""
        reports = self._running.reports()
        return Progress(
            sent=round(sum(each.sent for each in reports)),
            ended=round(sum(each.ended for each in reports)),
            completed=round(sum(each.completed for each in reports)),
            tokens=round(sum(each.tokens for each in reports)),
            over=self._running.over,
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
            await self.done()
            raise HarnessError(f"the load ended before it had {goal}; it got to {seen}")
        return seen

    async def done(self) -> None:
        """Wait until everything is sent and every request has ended."""
        await self._running.done()

    def stop(self) -> None:
        """Send nothing more and abandon what is under way; `done` then returns soon."""
        self._running.order_stop()

    @property
    def records(self) -> tuple[RequestRecord, ...]:
        """The records of the requests that have ended: all of them, once the block is left. In order of due time."""
        paths: Sequence[Path] = (self._path,)
        if isinstance(self._crew, Processes) and not self._left:
            paths = self._crew.part_paths()
        return tuple(sorted(read_records(*paths), key=lambda record: record.due_at))

    @property
    def health(self) -> LoadHealth:
        """Whether the client kept up, so far."""
        reports = self._running.reports()
        return load_health(
            due=round(sum(each.due for each in reports)),
            send_lags_s=[record.sent_at - record.due_at for record in self.records],
            sent=round(sum(each.sent for each in reports)),
            workers=[each.health for each in reports],
            duration_s=max(min(self._duration_s, time.time() - self.started_at), 1e-9),
            bounds=self._bounds,
        )

    @property
    def prompts(self) -> PromptMaker:
        """What makes the prompts; `exact` says whether their lengths are."""
        return self._prompts or PromptMaker()

    def _scratch_path(self) -> Path:
        folder = tempfile.mkdtemp(prefix="shakedown-load-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        return Path(folder) / "requests.jsonl"

    @property
    def _running(self) -> OwnProcess | Processes:
        if self._crew is None:
            raise HarnessError("the load was not started; use it as `async with OpenLoop(...) as load:`")
        return self._crew

    async def _plan(self) -> LoadPlan:
        async with httpx.AsyncClient(headers=self._headers, timeout=CONTROL_TIMEOUT_S, trust_env=False) as control:
            model = self._workload.model or (await served_models(control, self.url))[0]
            self._prompts = self._prompts or await calibrated_prompts(control, self.url, model)
        run = f"load-{secrets.token_hex(4)}"
        prompt_set = run if self._workload.prompt_set is None else self._workload.prompt_set
        return LoadPlan(
            run=run,
            targets=self._targets,
            arrivals=self._arrivals,
            workload=self._workload,
            model=model,
            prompts=replace(self._prompts, prompt_set=prompt_set),
            duration_s=self._duration_s,
            limits=self._limits,
            headers=self._headers,
            pod_headers=self._pod_headers,
            keep_alive=self._keep_alive,
        )


async def served_models(control: httpx.AsyncClient, url: str) -> tuple[str, ...]:
    """The models that the server lists, at least one. Raises SetupError with one line."""
    try:
        answer = await control.get(f"{url}/v1/models")
        answer.raise_for_status()
        models = tuple(str(model["id"]) for model in answer.json()["data"])
    except httpx.HTTPStatusError as error:
        raise SetupError(f"{url}/v1/models answers {error.response.status_code}; name the model") from error
    except httpx.HTTPError as error:
        raise SetupError(f"{url} does not answer: {error or type(error).__name__}") from error
    except (ValueError, KeyError, TypeError):
        models = ()
    if not models:
        raise SetupError(f"{url}/v1/models lists no model; is it an OpenAI-compatible server?")
    return models
