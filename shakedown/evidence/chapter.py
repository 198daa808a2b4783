"""What the report says about one scenario, gathered from its files."""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import quote

import msgspec

from shakedown.errors import HarnessError
from shakedown.evidence.bundle import Reading, ScenarioBundle
from shakedown.evidence.drawing import LEFT, RIGHT, WIDTH
from shakedown.evidence.picture import picture
from shakedown.evidence.timeline import KV_USE, PREEMPTIONS, Badge, Felt, Series, Timeline, timeline
from shakedown.judge.accounting import Caught, in_flight
from shakedown.judge.expectations import Expectation, Unit, printed
from shakedown.judge.latency import token_count, ttft
from shakedown.judge.loop import THRESHOLD_FACT, scale_out
from shakedown.judge.objectives import SLO, goodput
from shakedown.judge.percentiles import percentile
from shakedown.judge.quantities import counter_rises
from shakedown.judge.records import MarkKind, Outcome, Recorded
from shakedown.judge.verdict import Finding, ScenarioResult
from shakedown.judge.windows import strike_window

CAUGHT_AT_MOST = 60
SAID_AT_MOST = 40


@dataclass(frozen=True, slots=True)
class Tile:
    """A number worth a glance."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Said:
    """Something that Kubernetes said, once or several times."""

    at: str
    subject: str
    text: str
    times: int


@dataclass(frozen=True, slots=True)
class CaughtRow:
    """A request that was under way when the fault struck."""

    id: str
    tokens_before: int
    tokens_after: int
    outcome: str
    completed: bool
    served_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chapter:
    """One scenario of the report."""

    result: ScenarioResult
    anchor: str
    folder: str
    """Quoted for a link."""
    svg: str
    hover: str
    """JSON for the read-out under the pointer; safe inside a script element."""
    legend: tuple[tuple[str, str], ...]
    """(class of the swatch, words) for what the picture shows."""
    badges: tuple[tuple[Badge, str], ...]
    tiles: tuple[Tile, ...]
    links: tuple[tuple[str, str, str], ...]
    """The autoscaling loop: (link, when it first held, how long after the one before)."""
    caught: tuple[CaughtRow, ...]
    caught_total: int
    said: tuple[Said, ...]
    notes: tuple[str, ...]
    files: tuple[str, ...]

    def evidence(self, finding: Finding) -> tuple[tuple[str, str], ...]:
        """(file, where it lies relative to the report) of each file that shows a finding; the place is empty if it is
        not there."""
        names = finding.evidence.split(", ")
        return tuple((name, f"{self.folder}/{quote(name)}" if name in self.files else "") for name in names)


def chapter(bundle: ScenarioBundle, result: ScenarioResult) -> Chapter:
    """Gather a scenario. Files that cannot be read leave gaps and a note, never an error."""
    reading = bundle.read()
    recorded = reading.recorded
    slo = promised(_expectations(bundle))
    seen = timeline(recorded, slo, result.started_at, result.ended_at or result.started_at)
    strike = strike_window(recorded.marks)
    caught = in_flight(recorded.requests, strike) if strike else ()
    return Chapter(
        result=result,
        anchor=bundle.root.name,
        folder=quote(bundle.root.name),
        svg="" if seen.empty else picture(seen),
        hover=hover(seen),
        legend=_legend(seen),
        badges=tuple((badge, _clock(badge.at)) for badge in seen.badges),
        tiles=_tiles(recorded, slo),
        links=_links(recorded),
        caught=tuple(_caught_row(each) for each in caught[:CAUGHT_AT_MOST]),
        caught_total=len(caught),
        said=_said(recorded, seen.zero),
        notes=_notes(reading),
        files=tuple(sorted(path.name for path in bundle.root.iterdir())),
    )


def promised(expectations: Iterable[Expectation]) -> SLO | None:
    """The first SLO that the bargain names."""
    for expectation in expectations:
        if "slo" in expectation.quantity.parameters:
            return msgspec.convert(expectation.quantity.parameters["slo"], SLO)
    return None


def hover(seen: Timeline) -> str:
    """The series of the picture for the read-out, as JSON in which no text can end a script element."""
    rows: list[tuple[str, Series | None, float]] = [
        ("tokens/s", seen.tokens, 1),
        ("running", seen.running, 1),
        ("waiting", seen.waiting, 1),
        *((f"KV % {series.name[-11:]}", series, 100) for series in seen.kv[:4]),
        ("preempted", seen.preemptions, 1),
        *((f"replicas {series.name}", series, 1) for series in seen.replicas),
    ]
    value = {
        "left": LEFT,
        "right": WIDTH - RIGHT,
        "width": WIDTH,
        "start": round(seen.start, 3),
        "end": round(seen.end, 3),
        "bin": seen.bin_s,
        "series": [[name, _rounded(series, factor)] for name, series, factor in rows if series is not None],
    }
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


def _rounded(series: Series, factor: float) -> list[float | None]:
    return [None if value is None else round(value * factor, 1) for value in series.values]


def _expectations(bundle: ScenarioBundle) -> tuple[Expectation, ...]:
    try:
        return bundle.expectations()
    except HarnessError:
        return ()


def _legend(seen: Timeline) -> tuple[tuple[str, str], ...]:
    kinds = {bar.felt for bar in seen.bars}
    entries = [
        (bool(seen.bars), "wait", "waiting for the first word"),
        (Felt.GOOD in kinds, "good", "answer arriving" + (", as promised" if seen.slo_ttft_s else "")),
        (Felt.LATE in kinds, "late", "answer arriving, later than promised"),
        (any(bar.stalls for bar in seen.bars), "stall", "text standing still for over half a second"),
        (Felt.LOST in kinds, "lost", "lost or broken (×)"),
        (Felt.REFUSED in kinds, "refused", "refused (×)"),
        (Felt.LEFT in kinds, "left", "the user left (×)"),
        (seen.fault is not None, "fault", "the fault, until recovery"),
        (bool(seen.preemptions and any(seen.preemptions.values)), "preempting", "preemptions happening"),
        (any(row.restarts for row in seen.pods), "restart", "container restarted"),
        (any(row.warnings for row in seen.pods), "warning", "warning from Kubernetes"),
    ]
    return tuple((class_, words) for shown, class_, words in entries if shown)


def _clock(at: float) -> str:
    return f"{at:+.1f} s"


def _tiles(recorded: Recorded, slo: SLO | None) -> tuple[Tile, ...]:
    return (*_request_tiles(recorded, slo), *_engine_tiles(recorded))


def _request_tiles(recorded: Recorded, slo: SLO | None) -> list[Tile]:
    requests = recorded.requests
    if not requests:
        return []
    completed = [record for record in requests if record.outcome is Outcome.COMPLETED]
    tiles = [Tile("requests", f"{len(requests):,}", f"{len(completed):,} completed")]
    if slo is not None:
        tiles.append(Tile("goodput", printed(goodput(requests, slo), Unit.SHARE), str(slo)))
    waits = [wait for record in completed if (wait := ttft(record)) is not None]
    if waits:
        half, most = percentile(waits, 50), percentile(waits, 99)
        tiles.append(Tile("typical wait", printed(half, Unit.SECONDS), f"p99 {printed(most, Unit.SECONDS)}"))
    lasted = max(record.finished_at for record in requests) - min(record.due_at for record in requests)
    if lasted > 0:
        tokens = sum(token_count(record) for record in requests)
        tiles.append(Tile("tokens per second", f"{tokens / lasted:,.0f}", f"{tokens:,} in {lasted:.0f} s"))
    return tiles


def _engine_tiles(recorded: Recorded) -> list[Tile]:
    tiles = []
    usage = [sample.values[KV_USE] for sample in recorded.samples if KV_USE in sample.values]
    if usage:
        tiles.append(Tile("KV cache peak", printed(max(usage), Unit.SHARE), "of the fullest engine"))
    rises = counter_rises(recorded.samples, PREEMPTIONS)
    if rises:
        tiles.append(Tile("preemptions", f"{sum(rise for rise, _, _ in rises):,.0f}", "answers set back"))
    return tiles


def _links(recorded: Recorded) -> tuple[tuple[str, str, str], ...]:
    threshold = recorded.facts.get(THRESHOLD_FACT)
    if threshold is None or not isinstance(threshold.value, int | float):
        return ()
    start = min((mark.at for mark in recorded.marks if mark.kind is MarkKind.LOAD_STARTED), default=0.0)
    return tuple(
        (link.name, "never", "") if link.at is None else (link.name, _clock(link.at - start), f"{link.latency_s:.1f} s")
        for link in scale_out(recorded.samples, recorded.marks, threshold.value)
    )


def _caught_row(caught: Caught) -> CaughtRow:
    record = caught.record
    return CaughtRow(
        id=record.id,
        tokens_before=caught.tokens_before,
        tokens_after=caught.tokens_after,
        outcome=record.outcome.value.replace("_", " ") + (f": {record.error}" if record.error else ""),
        completed=record.outcome is Outcome.COMPLETED,
        served_by=record.served_by or "",
    )


def _said(recorded: Recorded, zero: float) -> tuple[Said, ...]:
    marks = [mark for mark in recorded.marks if mark.kind is MarkKind.KUBERNETES]
    counts = Counter((mark.subject, mark.text) for mark in marks)
    first = {(mark.subject, mark.text): mark.at - zero for mark in reversed(marks)}
    lines = [Said(_clock(at), subject, text, counts[subject, text]) for (subject, text), at in first.items()]
    return tuple(sorted(lines, key=lambda said: float(said.at.split()[0]))[:SAID_AT_MOST])


def _notes(reading: Reading) -> tuple[str, ...]:
    notes = list(reading.unreadable[:3])
    if reading.torn_lines:
        lines = "line was" if reading.torn_lines == 1 else "lines were"
        notes.append(f"{reading.torn_lines} half-written {lines} left out: the writer was killed")
    return tuple(notes)
