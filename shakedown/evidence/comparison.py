"""Scenarios that put the same load on different configurations, in one picture with one time axis."""

from collections.abc import Sequence
from dataclasses import dataclass

from shakedown.evidence.drawing import LEFT, RIGHT, WIDTH, TimeScale, axis_label, line, rect, text
from shakedown.evidence.picture import GAP, Row, curve_rows, grid, preemption_shades, replica_row, request_row
from shakedown.evidence.timeline import KV_USE, PREEMPTIONS, Timeline
from shakedown.judge.expectations import Unit, printed
from shakedown.judge.latency import inter_token_latencies, longest_gap, ttft
from shakedown.judge.percentiles import percentile
from shakedown.judge.quantities import counter_rises
from shakedown.judge.records import Outcome, Recorded, RequestRecord
from shakedown.judge.verdict import ScenarioResult

HEAD = 30.0
FOOT = 46.0
BETWEEN = 22.0


@dataclass(frozen=True, slots=True)
class Compared:
    """One scenario of a comparison."""

    result: ScenarioResult
    anchor: str
    recorded: Recorded
    seen: Timeline


@dataclass(frozen=True, slots=True)
class Comparison:
    """One figure of the report."""

    title: str
    svg: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Compared, str, tuple[str, ...]], ...]
    """What the same load cost each of them, and each traffic class, in the order of `columns`."""


REQUEST_COLUMNS = (
    "requests",
    "completed",
    "lost",
    "first word p50",
    "first word p99",
    "token gap p99",
    "longest silence p99",
)
ENGINE_COLUMNS = ("preemptions", "KV cache peak")
COLUMNS = (*REQUEST_COLUMNS, *ENGINE_COLUMNS)


def comparison(title: str, compared: Sequence[Compared]) -> Comparison:
    """Draw and tabulate what differs. Needs at least one scenario that recorded something."""
    rows = [(each, who, figures) for each in compared for who, figures in _figures_by_class(each)]
    return Comparison(title, _picture(compared), COLUMNS, tuple(rows))


def _figures_by_class(each: Compared) -> list[tuple[str, tuple[str, ...]]]:
    """A line for each crowd of the picture; what engines say is nobody's own."""
    if len(each.seen.crowds) < 2:
        return [("", _figures(each.recorded))]
    names = [crowd.name for crowd in each.seen.crowds]
    apart = {name: [r for r in each.recorded.requests if r.traffic_class == name] for name in names}
    return [(name, _request_figures(mine) + ("",) * len(ENGINE_COLUMNS)) for name, mine in apart.items()]


def _picture(compared: Sequence[Compared]) -> str:
    scale = TimeScale(min(each.seen.start for each in compared), max(each.seen.end for each in compared))
    top, shapes = 0.0, []
    for each in compared:
        shapes.append(text(0, top + 14, f"{each.result.verdict.value}: {each.result.title}", "panel-title"))
        top += HEAD
        rows = _rows(each.seen, scale)
        bottom = top + sum(height for height, _ in rows) + GAP * (len(rows) - 1)
        shapes += [*grid(scale, top, bottom), *preemption_shades(each.seen, scale, top, bottom)]
        shapes += _fault(each.seen, scale, top, bottom)
        for height, draw in rows:
            shapes += draw(top)
            top += height + GAP
        top = bottom + BETWEEN
    bottom = top - BETWEEN
    shapes += [text(scale.x(at), bottom + 18, f"{axis_label(at)} s", "axis middle") for at in scale.ticks()]
    shapes.append(text((LEFT + WIDTH - RIGHT) / 2, bottom + 37, "seconds since the load of each began", "axis middle"))
    inner = "\n".join(shapes)
    label = f"{len(compared)} scenarios under the same load, one below the other"
    return (
        f'<svg class="timeline" viewBox="0 0 {WIDTH:.0f} {bottom + FOOT:.0f}" role="img" aria-label="{label}">\n'
        f"{inner}\n</svg>"
    )


def _rows(seen: Timeline, scale: TimeScale) -> list[Row]:
    return [*request_row(seen, scale), *curve_rows(seen, scale), *replica_row(seen, scale)]


def _fault(seen: Timeline, scale: TimeScale, top: float, bottom: float) -> list[str]:
    if seen.fault is None:
        return []
    left, right = scale.x(seen.fault[0]), scale.x(seen.fault[1])
    return [rect(left, top, right - left, bottom - top, "fault"), line(left, top, left, bottom, "fault-edge")]


def _figures(recorded: Recorded) -> tuple[str, ...]:
    return _request_figures(recorded.requests) + _engine_figures(recorded)


def _request_figures(requests: Sequence[RequestRecord]) -> tuple[str, ...]:
    whole = [record for record in requests if record.outcome is Outcome.COMPLETED]
    waits = [wait for record in whole if (wait := ttft(record)) is not None]
    gaps = [gap for record in whole for gap in inter_token_latencies(record)]
    left = sum(record.outcome is Outcome.ABANDONED for record in requests)
    silences = [gap for record in whole if (gap := longest_gap(record)) is not None]
    return (
        f"{len(requests):,}",
        f"{len(whole):,}",
        f"{len(requests) - len(whole) - left:,}",
        _seconds(waits, 50),
        _seconds(waits, 99),
        _seconds(gaps, 99),
        _seconds(silences, 99),
    )


def _engine_figures(recorded: Recorded) -> tuple[str, ...]:
    usage = [sample.values[KV_USE] for sample in recorded.samples if KV_USE in sample.values]
    rises = counter_rises(recorded.samples, PREEMPTIONS)
    return (
        f"{sum(rise for rise, _, _ in rises):,.0f}" if rises else "–",
        printed(max(usage), Unit.SHARE) if usage else "–",
    )


def _seconds(values: Sequence[float], q: float) -> str:
    return printed(percentile(values, q), Unit.SECONDS) if values else "–"
