"""What `shakedown load` leaves behind with --report: the folder and the page of a run, with a chapter for each load."""

import contextlib
import itertools
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import httpx

from shakedown.engine.metrics import parse_metrics
from shakedown.errors import UsageError
from shakedown.evidence.bundle import RunBundle, RunFacts, ScenarioBundle, ScenarioDescription
from shakedown.evidence.metrics_collector import MetricsCollector
from shakedown.evidence.publish import publish
from shakedown.judge.expectations import Expectation, expectation, goodput, outcome_count
from shakedown.judge.objectives import SLO
from shakedown.judge.records import MarkKind, Outcome
from shakedown.load import LoadHealth

FAMILY = "load"
LOOK_LIMIT_S = 3.0


class LoadReport:
    """One run in a folder of its own below the given one; without a folder it does nothing."""

    def __init__(self, folder: Path | None, url: str) -> None:
        self._folder, self._url = folder, url
        self._bundle: RunBundle | None = None

    def begin(self, model: str) -> None:
        """Make the folder, once it is known that there is somebody to ask."""
        if self._folder is None:
            return
        started = time.time()
        self._bundle = RunBundle(_own_folder(self._folder, started))
        self._bundle.write_facts(
            RunFacts(
                run_id=self._bundle.root.name,
                started_at=started,
                command=tuple(sys.argv),
                profile=FAMILY,
                engine=self._url,
                system_under_test=f"{model} at {self._url}",
            )
        )

    def records(self, step: int) -> Path | None:
        """Where the records of a load belong; None without a report."""
        return None if self._bundle is None else self._step(self._bundle, step).requests_file

    @asynccontextmanager
    async def watched(self, step: int, offered: str, slo: SLO, bargain: float) -> AsyncIterator["Chapter"]:
        """A load while it runs: its bargain is written first, then its engine's metrics second by second."""
        if self._bundle is None:
            yield Chapter(None)
            return
        with self._step(self._bundle, step) as bundle:
            described = ScenarioDescription(
                id=f"{FAMILY}/{step:02d}::{offered}",
                family=FAMILY,
                title=offered,
                claim=f"{offered} at {self._url}" + (f": {bargain:.1%} within {slo}" if slo != SLO() else ""),
                started_at=time.time(),
            )
            bundle.describe(described)
            bundle.expect(bargains(slo, bargain))
            bundle.mark(time.time(), MarkKind.LOAD_STARTED, f"the load begins: {offered}")
            chapter = Chapter(bundle)
            try:
                if await has_metrics(self._url):
                    async with MetricsCollector(bundle, self._engine, parse_metrics):
                        yield chapter
                else:
                    yield chapter
            except BaseException as error:
                chapter.doubts = (f"the load was interrupted ({str(error) or type(error).__name__})",)
                raise
            finally:
                bundle.mark(time.time(), MarkKind.LOAD_ENDED, "every request has ended")
                bundle.describe(replace(described, ended_at=time.time(), unknown_reasons=chapter.doubts))
                bundle.conclude()

    def published(self, exit_code: int | None) -> Path | None:
        """Write the page, also of a run that did not come to its end (None); its path."""
        if self._bundle is None:
            return None
        self._bundle.write_facts(replace(self._bundle.facts(), ended_at=time.time(), exit_code=exit_code))
        publish(self._bundle.root)
        return self._bundle.root / "report.html"

    def _step(self, bundle: RunBundle, step: int) -> ScenarioBundle:
        return ScenarioBundle(bundle.root / f"{FAMILY}-{step:02d}")

    async def _engine(self) -> Mapping[str, str]:
        return {"engine": self._url}


class Chapter:
    """What a load says of itself when it has ended."""

    def __init__(self, bundle: ScenarioBundle | None) -> None:
        self._bundle = bundle
        self.doubts: tuple[str, ...] = ()

    def ended(self, health: LoadHealth) -> None:
        """Keep the client's own health, and doubt the load where the client was the bottleneck."""
        if health.saturated is not None:
            self.doubts = (f"our own client was the bottleneck: {health.saturated}",)
        if self._bundle is not None:
            self._bundle.document("health.json", health)


def bargains(slo: SLO, share: float) -> list[Expectation]:
    """The SLO, if one was given; and something must have completed, else nothing was found out."""
    something = expectation(outcome_count(Outcome.COMPLETED), at_least=1, guard=True)
    return [*([expectation(goodput(slo), at_least=share)] if slo != SLO() else []), something]


async def has_metrics(url: str) -> bool:
    """True where the server shows an engine's metrics beside its API; a gateway usually does not."""
    try:
        async with httpx.AsyncClient(timeout=LOOK_LIMIT_S, trust_env=False) as client:
            answer = await client.get(f"{url}/metrics")
    except httpx.HTTPError:
        return False
    return answer.status_code == httpx.codes.OK and any(name.startswith("vllm:") for name in parse_metrics(answer.text))


def _own_folder(folder: Path, at: float) -> Path:
    """A new one, named by the time; a second run in the same second gets a number."""
    name = time.strftime("%Y%m%d-%H%M%S", time.localtime(at))
    for number in itertools.count(1):
        own = folder / (name if number == 1 else f"{name}-{number}")
        with contextlib.suppress(FileExistsError):
            own.mkdir()
            return own
    raise AssertionError("unreachable")


def writable(folder: Path) -> Path:
    """The folder, made if it must be. Raises UsageError before any load is sent."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--report {folder} cannot be written: {error.strerror}") from error
    return folder
