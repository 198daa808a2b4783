"""A scenario as one picture needs it: a shared time axis, few enough points, and plain words.

Every time is in seconds from the timeline's zero, the start of the load.
"""

import bisect
import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from shakedown.evidence.pod_phases import PodRow, pod_rows
from shakedown.judge.latency import ttft
from shakedown.judge.loop import DESIRED, READY, SIMULATED
from shakedown.judge.objectives import SLO, is_good
from shakedown.judge.quantities import counter_rises
from shakedown.judge.records import Mark, MarkKind, MetricSample, Outcome, Recorded, RequestRecord
from shakedown.judge.windows import fault_window

BARS_AT_MOST = 1200
CROWDS_AT_MOST = 4
DOTS_AT_MOST = 1500
BINS_AT_MOST = 300
PODS_AT_MOST = 8
BADGES_AT_MOST = 14
LANE_AT_LEAST_S = 0.5
"""So that requests refused at once do not hide each other."""
STALL_S = 0.5
"""A reader notices that the text stands still; twenty times the gap between tokens of a busy engine."""
FRESH_S = 3.0
"""A scrape counts for this long: pods are scraped every second, and one may be late."""
RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
KV_USE = "vllm:kv_cache_usage_perc"
PREEMPTIONS = "vllm:num_preemptions_total"


class Felt(StrEnum):
    """What a request was for the one who sent it."""

    GOOD = "good"
    LATE = "late"
    LOST = "lost"
    REFUSED = "refused"
    LEFT = "left"


@dataclass(frozen=True, slots=True)
class Bar:
    """One request."""

    lane: int
    """Row of the picture; the next request takes it when this one has ended."""
    due: float
    first: float | None
    end: float
    felt: Felt
    stalls: tuple[tuple[float, float], ...]
    label: str


@dataclass(frozen=True, slots=True)
class Crowd:
    """The requests of one traffic class, or of all where there is one or there are too many to tell apart."""

    name: str
    """Empty for all."""
    bars: tuple[Bar, ...]
    total: int
    """Requests that there were; fewer may be drawn."""


@dataclass(frozen=True, slots=True)
class Dot:
    """One request's time to first token; None if it was lost without a whole answer."""

    due: float
    ttft: float | None
    felt: Felt


@dataclass(frozen=True, slots=True)
class Series:
    """One value per bin; None where nothing was scraped."""

    name: str
    values: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Badge:
    """A numbered moment; its text stands under the picture."""

    number: int
    at: float
    kind: MarkKind
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Everything drawn."""

    zero: float
    """Wall time of 0 s."""
    zero_name: str
    start: float
    end: float
    bin_s: float
    crowds: tuple[Crowd, ...]
    dots: tuple[Dot, ...]
    slo_ttft_s: float | None
    tokens: Series | None
    running: Series | None
    waiting: Series | None
    kv: tuple[Series, ...]
    preemptions: Series | None
    replicas: tuple[Series, ...]
    """Wanted and Ready, where an autoscaler was watched."""
    pods: tuple[PodRow, ...]
    fault: tuple[float, float] | None
    badges: tuple[Badge, ...]

    @property
    def bars(self) -> tuple[Bar, ...]:
        return tuple(bar for crowd in self.crowds for bar in crowd.bars)

    @property
    def empty(self) -> bool:
        return not (self.bars or self.running or self.kv or self.pods)


def timeline(recorded: Recorded, slo: SLO | None, began: float, ended: float) -> Timeline:
    """Arrange the records of a scenario that ran between two wall times."""
    zero, zero_name = _zero(recorded, began)
    start, end = _extent(recorded, zero, ended)
    bin_s = max(1.0, math.ceil((end - start) / BINS_AT_MOST))
    edges = _edges(start, end, bin_s)
    samples = recorded.samples
    fault = fault_window(recorded.marks)
    objective = slo or SLO()
    return Timeline(
        zero=zero,
        zero_name=zero_name,
        start=start,
        end=end,
        bin_s=bin_s,
        crowds=_crowds(recorded.requests, objective, zero),
        dots=_dots(recorded.requests, objective, zero),
        slo_ttft_s=objective.ttft_s,
        tokens=_tokens(recorded.requests, zero, start, bin_s, len(edges)),
        running=_together(samples, RUNNING, "running", zero, edges),
        waiting=_together(samples, WAITING, "waiting", zero, edges),
        kv=_per_pod(samples, KV_USE, zero, edges),
        preemptions=_rises(samples, PREEMPTIONS, zero, start, bin_s, len(edges)),
        replicas=_replicas(samples, zero, edges),
        pods=pod_rows(recorded.marks, zero, end)[:PODS_AT_MOST],
        fault=(fault.start - zero, min(fault.end - zero, end)) if fault else None,
        badges=_badges(recorded.marks, zero, start, end),
    )


def feeling(record: RequestRecord, slo: SLO) -> Felt:
    """What a request was for the one who sent it."""
    if record.outcome is Outcome.COMPLETED:
        return Felt.GOOD if is_good(record, slo) else Felt.LATE
    if record.outcome in (Outcome.REFUSED, Outcome.REJECTED):
        return Felt.REFUSED
    return Felt.LEFT if record.outcome is Outcome.ABANDONED else Felt.LOST


def _zero(recorded: Recorded, began: float) -> tuple[float, str]:
    loads = [mark.at for mark in recorded.marks if mark.kind is MarkKind.LOAD_STARTED]
    dues = [record.due_at for record in recorded.requests]
    if loads or dues:
        return min(loads + dues), "the load began"
    return began, "the scenario began"


def _extent(recorded: Recorded, zero: float, ended: float) -> tuple[float, float]:
    """From shortly before the load to the last thing that happened."""
    times = [record.finished_at for record in recorded.requests] + [sample.at for sample in recorded.samples]
    times += [mark.at for mark in recorded.marks]
    end = max([*times, ended if not times else 0.0, zero + 1]) - zero
    first = min([*times, zero]) - zero
    return max(first, -0.06 * end), end * 1.01


def _edges(start: float, end: float, bin_s: float) -> list[float]:
    return [start + index * bin_s for index in range(max(1, math.ceil((end - start) / bin_s)))]


def _crowds(requests: Sequence[RequestRecord], slo: SLO, zero: float) -> tuple[Crowd, ...]:
    """By traffic class, in the order in which they came."""
    classes: dict[str, list[RequestRecord]] = {}
    for record in sorted(requests, key=lambda record: record.due_at):
        classes.setdefault(record.traffic_class, []).append(record)
    told_apart = classes if 1 < len(classes) <= CROWDS_AT_MOST else {"": requests}
    most = BARS_AT_MOST // len(told_apart)
    return tuple(Crowd(name, _bars(mine, slo, zero, most), len(mine)) for name, mine in told_apart.items() if len(mine))


def _bars(requests: Sequence[RequestRecord], slo: SLO, zero: float, at_most: int) -> tuple[Bar, ...]:
    """A bar each, in the first lane that is free: so the height of the pile is how many were under way."""
    free: list[int] = []
    taken: list[tuple[float, int]] = []
    bars = []
    for record in sorted(_thinned(requests, slo, at_most), key=lambda record: record.due_at):
        while taken and taken[0][0] <= record.due_at:
            heapq.heappush(free, heapq.heappop(taken)[1])
        lane = heapq.heappop(free) if free else len(taken)
        heapq.heappush(taken, (max(record.finished_at, record.due_at + LANE_AT_LEAST_S), lane))
        bars.append(_bar(record, lane, slo, zero))
    return tuple(bars)


def _thinned(requests: Sequence[RequestRecord], slo: SLO, at_most: int) -> Sequence[RequestRecord]:
    """Evenly thinned, but so that up to half of what is drawn is what went wrong, where so much did."""
    if len(requests) <= at_most:
        return requests
    wrong = [record for record in requests if feeling(record, slo) is not Felt.GOOD]
    kept = {record.id for record in _every(wrong, at_most // 2)}
    kept |= {record.id for record in _every(requests, at_most - len(kept))}
    return [record for record in requests if record.id in kept]


def _every(requests: Sequence[RequestRecord], at_most: int) -> Sequence[RequestRecord]:
    if len(requests) <= at_most:
        return requests
    return [requests[index * len(requests) // at_most] for index in range(at_most)]


def _bar(record: RequestRecord, lane: int, slo: SLO, zero: float) -> Bar:
    gaps = pairwise([*record.token_times, record.finished_at])
    return Bar(
        lane=lane,
        due=record.due_at - zero,
        first=record.token_times[0] - zero if record.token_times else None,
        end=record.finished_at - zero,
        felt=feeling(record, slo),
        stalls=tuple((earlier - zero, later - zero) for earlier, later in gaps if later - earlier > STALL_S),
        label=f"{record.id}: {record.outcome.value.replace('_', ' ')}",
    )


def _dots(requests: Sequence[RequestRecord], slo: SLO, zero: float) -> tuple[Dot, ...]:
    dots = []
    for record in _thinned(requests, slo, DOTS_AT_MOST):
        felt = feeling(record, slo)
        whole = felt in (Felt.GOOD, Felt.LATE)
        dots.append(Dot(record.due_at - zero, ttft(record) if whole else None, felt))
    return tuple(dots)


def _tokens(requests: Sequence[RequestRecord], zero: float, start: float, bin_s: float, bins: int) -> Series | None:
    if not requests:
        return None
    counts = [0] * bins
    for record in requests:
        for time in record.token_times:
            counts[min(bins - 1, max(0, int((time - zero - start) / bin_s)))] += 1
    return Series("tokens per second", tuple(count / bin_s for count in counts))


def _by_pod(samples: Sequence[MetricSample], metric: str) -> dict[str, list[tuple[float, float]]]:
    pods: dict[str, list[tuple[float, float]]] = {}
    for sample in samples:
        if metric in sample.values:
            pods.setdefault(sample.pod, []).append((sample.at, sample.values[metric]))
    return {pod: sorted(readings) for pod, readings in pods.items()}


def _read_at(readings: Sequence[tuple[float, float]], at: float, fresh_s: float) -> float | None:
    index = bisect.bisect_right(readings, (at, math.inf)) - 1
    if index < 0 or readings[index][0] < at - fresh_s:
        return None
    return readings[index][1]


def _per_pod(samples: Sequence[MetricSample], metric: str, zero: float, edges: Sequence[float]) -> tuple[Series, ...]:
    fresh_s = max(FRESH_S, _bin_of(edges))
    return tuple(
        Series(pod, tuple(_read_at(readings, zero + edge, fresh_s) for edge in edges))
        for pod, readings in list(_by_pod(samples, metric).items())[:PODS_AT_MOST]
    )


def _together(
    samples: Sequence[MetricSample], metric: str, name: str, zero: float, edges: Sequence[float]
) -> Series | None:
    pods = _by_pod(samples, metric)
    if not pods:
        return None
    fresh_s = max(FRESH_S, _bin_of(edges))
    values: list[float | None] = []
    for edge in edges:
        known = [_read_at(readings, zero + edge, fresh_s) for readings in pods.values()]
        present = [value for value in known if value is not None]
        values.append(sum(present) if present else None)
    return Series(name, tuple(values))


def _replicas(samples: Sequence[MetricSample], zero: float, edges: Sequence[float]) -> tuple[Series, ...]:
    named = (("wanted", DESIRED), ("ready", READY), ("simulated", SIMULATED))
    found = [_together(samples, metric, name, zero, edges) for name, metric in named]
    return tuple(series for series in found if series is not None)


def _bin_of(edges: Sequence[float]) -> float:
    return edges[1] - edges[0] if len(edges) > 1 else 1.0


def _rises(
    samples: Sequence[MetricSample], metric: str, zero: float, start: float, bin_s: float, bins: int
) -> Series | None:
    if not any(metric in sample.values for sample in samples):
        return None
    counts = [0.0] * bins
    for rise, at, _ in counter_rises(samples, metric):
        counts[min(bins - 1, max(0, int((at - zero - start) / bin_s)))] += rise
    return Series("preemptions", tuple(counts))


def _badges(marks: Sequence[Mark], zero: float, start: float, end: float) -> tuple[Badge, ...]:
    notable = [
        mark
        for mark in marks
        if mark.kind is not MarkKind.KUBERNETES and start <= mark.at - zero <= end and mark.kind is not MarkKind.NOTE
    ]
    notes = [mark for mark in marks if mark.kind is MarkKind.NOTE and start <= mark.at - zero <= end]
    chosen = sorted([*notable, *notes[: max(0, BADGES_AT_MOST - len(notable))]], key=lambda mark: mark.at)
    return tuple(
        Badge(number, mark.at - zero, mark.kind, f"{mark.text} ({mark.subject})" if mark.subject else mark.text)
        for number, mark in enumerate(chosen[:BADGES_AT_MOST], start=1)
    )
