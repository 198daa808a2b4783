"""The timeline as one SVG: rows that share a time axis, the fault shaded across all of them."""

from collections.abc import Callable, Sequence

from shakedown.evidence.drawing import (
    LABELS_AT,
    LEFT,
    RIGHT,
    WIDTH,
    Plot,
    TimeScale,
    area,
    axis_label,
    circle,
    crosses,
    curve,
    dots,
    line,
    nice_ceiling,
    notches,
    rect,
    segments,
    stairs,
    text,
)
from shakedown.evidence.pod_phases import PodRow
from shakedown.evidence.timeline import Crowd, Felt, Series, Timeline
from shakedown.judge.records import MarkKind

GAP = 26.0
HEAD = 46.0
FOOT = 46.0
POD_HEIGHT = 16.0
POD_PITCH = 24.0
BADGE_R = 8.5
REQUESTS_AT_LEAST = 84.0
REQUESTS_AT_MOST = 220.0
LANE_AT_MOST = 7.0
CROWD_AT_LEAST = 30.0
CROWD_NAME_AT_MOST = 26
POD_NAME_AT_MOST = 27
KV_HEIGHT = 80.0
REPLICAS_HEIGHT = 64.0
REPLICA_WORDS = {"wanted": "wanted by the autoscaler", "ready": "Ready", "simulated": "wanted by the simulator"}
KV_NAMED_AT_MOST = 3

Row = tuple[float, Callable[[float], list[str]]]
"""A row's height, and what draws it at a given top."""


def picture(timeline: Timeline) -> str:
    """The SVG element."""
    scale = TimeScale(timeline.start, timeline.end)
    rows = _rows(timeline, scale)
    top, shapes = HEAD, []
    for height, draw in rows:
        shapes += draw(top)
        top += height + GAP
    bottom = top - GAP
    height = bottom + FOOT
    behind = [*grid(scale, HEAD, bottom), *_shades(timeline, scale, bottom)]
    label = f"Timeline of the scenario, {timeline.end - timeline.start:.0f} seconds"
    inner = "\n".join([*behind, *shapes, *_badges(timeline, scale, bottom), *_time_axis(timeline, scale, bottom)])
    return (
        f'<svg class="timeline" viewBox="0 0 {WIDTH:.0f} {height:.0f}" role="img" aria-label="{label}">\n{inner}\n'
        f'<line class="cursor" x1="0" x2="0" y1="{HEAD:.0f}" y2="{bottom:.0f}"/></svg>'
    )


def request_row(timeline: Timeline, scale: TimeScale) -> list[Row]:
    """One line each; a row for each crowd, as one that waits is lost among hundreds that do not mind."""
    least = REQUESTS_AT_LEAST if len(timeline.crowds) == 1 else CROWD_AT_LEAST
    return [_crowd_row(crowd, scale, least) for crowd in timeline.crowds]


def _crowd_row(crowd: Crowd, scale: TimeScale, least: float) -> Row:
    lanes = max(bar.lane for bar in crowd.bars) + 1
    height = min(max(lanes * LANE_AT_MOST, least), REQUESTS_AT_MOST)
    return height, lambda top: _requests(crowd, scale, top, height, min(height / lanes, LANE_AT_MOST))


def curve_rows(timeline: Timeline, scale: TimeScale) -> list[Row]:
    """What went on inside the engines: queue and cache."""
    rows: list[Row] = []
    if timeline.running is not None or timeline.waiting is not None:
        rows.append((72, lambda top: _queue(timeline, scale, top)))
    if timeline.kv:
        rows.append((KV_HEIGHT, lambda top: _kv(timeline, scale, top)))
    return rows


def replica_row(timeline: Timeline, scale: TimeScale) -> list[Row]:
    """What the autoscaler wanted and what was Ready, where one was watched."""
    return [(REPLICAS_HEIGHT, lambda top: _replicas(timeline, scale, top))] if timeline.replicas else []


def _rows(timeline: Timeline, scale: TimeScale) -> list[Row]:
    rows = request_row(timeline, scale)
    if timeline.bars:
        rows.append((96, lambda top: _first_tokens(timeline, scale, top)))
    if timeline.tokens is not None:
        rows.append((64, lambda top: _tokens(timeline, scale, top)))
    rows += curve_rows(timeline, scale)
    rows += replica_row(timeline, scale)
    if timeline.preemptions is not None:
        rows.append((_preemptions_height(timeline), lambda top: _preemptions(timeline, scale, top)))
    if timeline.pods:
        rows.append((max(44, POD_PITCH * len(timeline.pods)), lambda top: _pods(timeline, scale, top)))
    return rows


def _title(top: float, title: str, *notes: str) -> list[str]:
    return [
        text(0, top + 11, title, "row-title"),
        *(text(0, top + 27 + 14 * index, note, "row-note") for index, note in enumerate(notes)),
    ]


def _frame(plot: Plot, label: Callable[[float], str] = axis_label) -> list[str]:
    right = WIDTH - RIGHT
    return [
        line(LEFT, plot.bottom, right, plot.bottom, "base"),
        line(LEFT, plot.top, right, plot.top, "rule"),
        text(LABELS_AT, plot.top + 4, label(plot.highest), "axis end"),
        text(LABELS_AT, plot.bottom + 4, label(0), "axis end"),
    ]


def _requests(crowd: Crowd, scale: TimeScale, top: float, height: float, pitch: float) -> list[str]:
    bars = crowd.bars
    thickness = max(pitch * 0.78, 0.7)
    bottom = top + height
    at = [(bar, bottom - (bar.lane + 0.5) * pitch) for bar in bars]
    shapes = _title(top, *_crowd_words(crowd))
    shapes.append(line(LEFT, bottom, WIDTH - RIGHT, bottom, "base"))
    shapes.append(
        segments(((scale.x(bar.due), scale.x(bar.first or bar.end), y) for bar, y in at), "request wait", thickness)
    )
    for felt in Felt:
        told = (
            (scale.x(bar.first), scale.x(bar.end), y) for bar, y in at if bar.felt is felt and bar.first is not None
        )
        shapes.append(segments(told, f"request {felt.value}", thickness))
    stalls = ((scale.x(start), scale.x(end), y) for bar, y in at for start, end in bar.stalls)
    shapes.append(segments(stalls, "request stall", thickness))
    begun = ((scale.x(bar.first), y) for bar, y in at if bar.first is not None)
    shapes.append(notches(begun, thickness, "notch"))
    for felt in (Felt.LEFT, Felt.REFUSED, Felt.LOST):
        shapes.append(crosses(((scale.x(bar.end), y) for bar, y in at if bar.felt is felt), f"cross {felt.value}"))
    return shapes


def _crowd_words(crowd: Crowd) -> tuple[str, ...]:
    shown = f"{len(crowd.bars):,} of {crowd.total:,} shown" if len(crowd.bars) < crowd.total else ""
    if crowd.name:
        return f"Requests: {crowd.name}"[:CROWD_NAME_AT_MOST], shown or f"{crowd.total:,}"
    return "Requests", "one line each, from when", "it was due until it ended;", "higher: more at once", shown


def _first_tokens(timeline: Timeline, scale: TimeScale, top: float) -> list[str]:
    seen = [dot.ttft for dot in timeline.dots if dot.ttft is not None]
    slo = timeline.slo_ttft_s
    plot = Plot(top, 96, nice_ceiling(max([*seen, (slo or 0) * 1.25, 0.01])))
    shapes = _title(top, "Wait for the first word", "TTFT in seconds, by the", "moment of asking")
    shapes += _frame(plot, _seconds)
    for felt in Felt:
        mine = [dot for dot in timeline.dots if dot.felt is felt]
        answered = ((scale.x(dot.due), plot.y(dot.ttft)) for dot in mine if dot.ttft is not None)
        shapes.append(dots(answered, f"dot {felt.value}"))
        lost = ((scale.x(dot.due), plot.top) for dot in mine if dot.ttft is None)
        shapes.append(crosses(lost, f"cross {felt.value}"))
    if slo is not None:
        shapes.append(line(LEFT, plot.y(slo), WIDTH - RIGHT, plot.y(slo), "slo"))
        shapes.append(text(WIDTH - RIGHT, plot.y(slo) - 4, f"promised: {slo:g} s", "slo-label end"))
    return shapes


def _seconds(value: float) -> str:
    return f"{axis_label(value)} s" if value else "0"


def _points(timeline: Timeline, scale: TimeScale, series: Series, plot: Plot) -> list[tuple[float, float] | None]:
    return [
        None if value is None else (scale.x(timeline.start + index * timeline.bin_s), plot.y(value))
        for index, value in enumerate(series.values)
    ]


def _highest(*all_series: Series | None) -> float:
    known = [value for series in all_series if series for value in series.values if value is not None]
    return nice_ceiling(max(known, default=1.0))


def _tokens(timeline: Timeline, scale: TimeScale, top: float) -> list[str]:
    assert timeline.tokens is not None
    plot = Plot(top, 64, _highest(timeline.tokens))
    points = [point for point in _points(timeline, scale, timeline.tokens, plot) if point is not None]
    return [
        *_title(top, "Tokens per second", "that reached users"),
        *_frame(plot),
        area(points, plot.bottom, "area tokens"),
        curve(points, "curve tokens"),
    ]


def _queue(timeline: Timeline, scale: TimeScale, top: float) -> list[str]:
    plot = Plot(top, 72, _highest(timeline.running, timeline.waiting))
    shapes = [*_title(top, "Inside the engines"), *_frame(plot)]
    legend = (("requests running", timeline.running, 27.0), ("requests waiting", timeline.waiting, 43.0))
    for words, series, below in legend:
        if series is not None:
            shapes.append(curve(_points(timeline, scale, series, plot), f"curve {series.name}"))
            shapes.append(line(0, top + below - 4, 14, top + below - 4, f"curve {series.name}"))
            shapes.append(text(20, top + below, words, "row-note"))
    return shapes


def _kv(timeline: Timeline, scale: TimeScale, top: float) -> list[str]:
    plot = Plot(top, KV_HEIGHT, 1.0)
    shapes = [*_title(top, "KV cache in use", "memory of conversations")]
    shapes += _frame(plot, lambda value: f"{value * 100:.0f} %")
    for index, series in enumerate(timeline.kv):
        shapes.append(curve(_points(timeline, scale, series, plot), f"curve kv kv{index % 4}"))
        below = top + 43 + 14 * index
        if index < KV_NAMED_AT_MOST:
            shapes.append(line(0, below - 4, 14, below - 4, f"curve kv kv{index % 4}"))
            shapes.append(text(20, below, _short(series.name, 22), "pod-name"))
    return shapes


def _replicas(timeline: Timeline, scale: TimeScale, top: float) -> list[str]:
    plot = Plot(top, REPLICAS_HEIGHT, _highest(*timeline.replicas))
    shapes = [*_title(top, "Replicas"), *_frame(plot)]
    for series, below in zip(timeline.replicas, (27.0, 43.0, 59.0), strict=False):
        shapes.append(curve(stairs(_points(timeline, scale, series, plot)), f"curve replicas-{series.name}"))
        shapes.append(line(0, top + below - 4, 14, top + below - 4, f"curve replicas-{series.name}"))
        shapes.append(text(20, top + below, REPLICA_WORDS[series.name], "row-note"))
    return shapes


def _preemptions_height(timeline: Timeline) -> float:
    return 44 if timeline.preemptions and any(timeline.preemptions.values) else 30


def _preemptions(timeline: Timeline, scale: TimeScale, top: float) -> list[str]:
    assert timeline.preemptions is not None
    values = timeline.preemptions.values
    total = sum(value or 0 for value in values)
    plot = Plot(top, _preemptions_height(timeline), _highest(timeline.preemptions))
    told = (f"{total:,.0f}: answers that had to", "give their memory back") if total else ("none",)
    shapes = _title(top, "Preemptions", *told)
    if not total:
        return [*shapes, line(LEFT, plot.bottom, WIDTH - RIGHT, plot.bottom, "base")]
    shapes += _frame(plot)
    for index, value in enumerate(values):
        if value:
            left = scale.x(timeline.start + index * timeline.bin_s)
            width = scale.x(timeline.start + (index + 1) * timeline.bin_s) - left
            shapes.append(rect(left, plot.y(value), width - 0.8, plot.bottom - plot.y(value), "bar preemption"))
    return shapes


def _pods(timeline: Timeline, scale: TimeScale, top: float) -> list[str]:
    shapes = [text(0, top - 5, "Pods", "row-title")]
    for index, row in enumerate(timeline.pods):
        shapes += _pod(row, scale, top + 4 + index * POD_PITCH)
    return shapes


def _pod(row: PodRow, scale: TimeScale, top: float) -> list[str]:
    name = row.pod if len(row.pod) <= POD_NAME_AT_MOST else f"…{row.pod[-POD_NAME_AT_MOST:]}"
    shapes = [
        text(0, top + 12, name, "pod-name"),
        line(LEFT, top + POD_HEIGHT / 2, WIDTH - RIGHT, top + POD_HEIGHT / 2, "rule"),
    ]
    for stretch in row.stretches:
        left, right = scale.x(stretch.start), scale.x(stretch.end)
        class_ = f"pod {stretch.phase.value.replace(' ', '-')}"
        tip = f"{row.pod}: {stretch.phase.value} for {stretch.end - stretch.start:.1f} s"
        shapes.append(rect(left, top, right - left, POD_HEIGHT, class_, tip, radius=3))
        words = stretch.phase.value
        if right - left > 9 * len(words):
            shapes.append(text(left + 12, top + 12, words, f"pod-label {stretch.phase.value.replace(' ', '-')}"))
    shapes += [line(scale.x(at), top - 3, scale.x(at), top + POD_HEIGHT + 3, "restart") for at in row.restarts]
    shapes.append(dots(((scale.x(at), top + POD_HEIGHT + 3) for at in row.warnings), "warning"))
    return shapes


def _short(pod: str, at_most: int) -> str:
    """The end of a pod's name is what tells it from its siblings."""
    return pod if len(pod) <= at_most else f"…{pod[1 - at_most :]}"


def grid(scale: TimeScale, top: float, bottom: float) -> list[str]:
    return [line(scale.x(at), top, scale.x(at), bottom, "grid") for at in scale.ticks()]


def preemption_shades(timeline: Timeline, scale: TimeScale, top: float, bottom: float) -> list[str]:
    """A patch behind every stretch in which answers were set back."""
    return [
        rect(scale.x(left), top, scale.x(right) - scale.x(left), bottom - top, "preempting")
        for left, right in _runs_of_preemption(timeline)
    ]


def _shades(timeline: Timeline, scale: TimeScale, bottom: float) -> list[str]:
    shapes = []
    if timeline.fault is not None:
        left, right = scale.x(timeline.fault[0]), scale.x(timeline.fault[1])
        shapes.append(rect(left, HEAD - 6, right - left, bottom - HEAD + 6, "fault"))
        shapes.append(line(left, HEAD - 6, left, bottom, "fault-edge"))
    return [*shapes, *preemption_shades(timeline, scale, HEAD, bottom)]


def _runs_of_preemption(timeline: Timeline) -> list[tuple[float, float]]:
    """Stretches with preemptions, joined over short pauses, so that the shade is one patch and not a bar code."""
    if timeline.preemptions is None:
        return []
    at = [index for index, value in enumerate(timeline.preemptions.values) if value]
    runs: list[list[int]] = []
    for index in at:
        if runs and index - runs[-1][1] <= 3:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    start, bin_s = timeline.start, timeline.bin_s
    return [(start + first * bin_s, start + (last + 1) * bin_s) for first, last in runs]


def _badges(timeline: Timeline, scale: TimeScale, bottom: float) -> list[str]:
    """Numbered flags over the picture, pushed apart so that none covers another."""
    shapes: list[str] = []
    places = _spread([scale.x(badge.at) for badge in timeline.badges])
    for badge, x in zip(timeline.badges, places, strict=True):
        true_x, kind = scale.x(badge.at), badge.kind.value.replace("_", "-")
        shapes.append(line(x, 20 + BADGE_R, true_x, HEAD - 6, "leader"))
        if badge.kind is not MarkKind.NOTE:
            shapes.append(line(true_x, HEAD - 6, true_x, bottom, f"moment {kind}"))
        shapes.append(circle(x, 20, BADGE_R, f"badge {kind}", badge.text))
        shapes.append(text(x, 23.8, str(badge.number), "badge-number"))
    return shapes


def _spread(wanted: Sequence[float]) -> list[float]:
    """Places in the same order, at least a badge apart, as near as may be to those wanted."""
    pitch = 2 * BADGE_R + 3
    places: list[float] = []
    for x in wanted:
        places.append(max(x, places[-1] + pitch) if places else x)
    limit = WIDTH - RIGHT - BADGE_R
    for index in range(len(places) - 1, -1, -1):
        places[index] = min(places[index], limit)
        limit = places[index] - pitch
    return places


def _time_axis(timeline: Timeline, scale: TimeScale, bottom: float) -> list[str]:
    ticks = [text(scale.x(at), bottom + 18, f"{axis_label(at)} s", "axis middle") for at in scale.ticks()]
    middle = (LEFT + WIDTH - RIGHT) / 2
    return [*ticks, text(middle, bottom + 37, f"seconds since {timeline.zero_name}", "axis middle")]
