"""The whole loop of an autoscaler in simulated time: arrivals, queues, scrapes, queries, syncs, pods that load.

A discrete-event simulation, deterministic for its inputs. The steps and their sources are in docs/autoscaling.md.
"""

import heapq
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from shakedown.errors import UsageError
from shakedown.serving.autoscaling.behavior import History
from shakedown.serving.autoscaling.calculator import average_value, pods_average, value
from shakedown.serving.autoscaling.hpa import HpaSettings, Target, TargetKind, sync
from shakedown.serving.autoscaling.keda import KedaSettings, Reading, Served, poll, serve
from shakedown.serving.autoscaling.metric_path import MetricPath, Prometheus
from shakedown.serving.autoscaling.replica import ReplicaModel
from shakedown.serving.autoscaling.workload import ClusterModel, Workload

GRID = 600
"""Samples of the curves, when their distance is not given."""


@dataclass(frozen=True, slots=True)
class Autoscaler:
    """An HPA that reads a metrics API directly (the Prometheus adapter), or the one that a ScaledObject makes."""

    hpa: HpaSettings
    keda: KedaSettings | None = None

    @property
    def floor(self) -> int:
        """The fewest replicas under load."""
        return self.hpa.min_replicas if self.keda is None else max(self.keda.min_replicas, 1)


@dataclass(frozen=True, slots=True)
class Sample:
    """The state at one instant."""

    t_s: float
    wanted: int
    scheduled: int
    """Pods that have their GPU."""
    ready: int
    waiting: int
    running: int


@dataclass(frozen=True, slots=True)
class Change:
    """A new scale, and why it is not more or less."""

    t_s: float
    wanted: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """What happened. Times are seconds from the start of the load."""

    duration_s: float
    samples: tuple[Sample, ...]
    changes: tuple[Change, ...]
    """The first is the scale at the start."""
    arrivals_s: tuple[float, ...]
    started_s: tuple[float | None, ...]
    """When each request got a slot; None if it never did."""
    lost: frozenset[int]
    """Requests that found no replica ready, or whose replica was killed before they were done."""
    prefill_s: float
    gpu_hours: float
    syncs_without_metric: int


def simulate(
    autoscaler: Autoscaler,
    arrivals_s: Sequence[float],
    replica: ReplicaModel,
    *,
    path: MetricPath | None = None,
    cluster: ClusterModel | None = None,
    duration_s: float | None = None,
    initial_replicas: int | None = None,
    first_sync_s: float | None = None,
    sample_every_s: float | None = None,
) -> Simulation:
    """Run the loop over requests that arrive at ascending times.

    It begins with `initial_replicas` ready (default: the minimum) and ends at `duration_s` (default: the last arrival).
    Raises UsageError for arrivals that go back in time, no duration, and too few GPUs to begin with.
    """
    duration_s = (arrivals_s[-1] if arrivals_s else 0.0) if duration_s is None else duration_s
    if not duration_s > 0:
        raise UsageError(f"a simulation lasts longer than 0 s, not {duration_s:g}")
    if any(later < earlier for earlier, later in itertools.pairwise(arrivals_s)):
        raise UsageError("arrivals must be in ascending order")
    cluster = cluster or ClusterModel()
    begin = autoscaler.floor if initial_replicas is None else initial_replicas
    if begin > cluster.places:
        raise UsageError(
            f"{cluster.gpus} GPUs hold {cluster.places} replicas, and {begin} are to be ready at the start"
        )
    loop = _Loop(autoscaler, [t for t in arrivals_s if t < duration_s], replica, path or MetricPath(), cluster)
    loop.workload.begin(begin)
    first_sync_s = autoscaler.hpa.sync_period_s if first_sync_s is None else first_sync_s
    return loop.run(duration_s, first_sync_s, sample_every_s or duration_s / GRID)


class _Order(IntEnum):
    """What comes first at the same instant. A sync does not see the scrape beside it: the worst case of two clocks."""

    WORKLOAD = 0
    CONTROL = 1
    SCRAPE = 2
    SAMPLE = 3


@dataclass(slots=True)
class _Memory:
    """What the controllers remember between their turns."""

    history: History = field(default_factory=History)
    failures: dict[Target, int] = field(default_factory=dict)
    cached: dict[Target, Reading] = field(default_factory=dict)
    last_active_s: float | None = 0.0
    """The workload was in use before the load begins."""
    without_metric: int = 0


class _Loop:
    def __init__(
        self,
        autoscaler: Autoscaler,
        arrivals_s: list[float],
        replica: ReplicaModel,
        path: MetricPath,
        cluster: ClusterModel,
    ) -> None:
        self._autoscaler, self._arrivals_s, self._path = autoscaler, arrivals_s, path
        self._events: list[tuple[float, _Order, int, Callable[[float], None]]] = []
        self._numbers = itertools.count()
        self._prometheus = Prometheus(path)
        self._memory = _Memory()
        self._samples: list[Sample] = []
        self._changes: list[Change] = []
        self.workload = Workload(replica, cluster, self._at, len(arrivals_s))

    def run(self, duration_s: float, first_sync_s: float, sample_every_s: float) -> Simulation:
        self._changes.append(Change(0.0, self.workload.wanted, "start"))
        self._every(self._path.scrape_interval_s, self._path.first_scrape_s, _Order.SCRAPE, self._scrape)
        if self._autoscaler.keda is not None and self._autoscaler.keda.polls:
            self._every(self._autoscaler.keda.polling_interval_s, 0.0, _Order.CONTROL, self._poll)
        self._every(self._autoscaler.hpa.sync_period_s, first_sync_s, _Order.CONTROL, self._sync)
        self._every(sample_every_s, 0.0, _Order.SAMPLE, self._sample)
        self._play(duration_s)
        self.workload.count_gpu_time(duration_s)
        return Simulation(
            duration_s=duration_s,
            samples=tuple(self._samples),
            changes=tuple(self._changes),
            arrivals_s=tuple(self._arrivals_s),
            started_s=tuple(self.workload.started_s),
            lost=frozenset(self.workload.lost),
            prefill_s=self.workload.model.prefill_s,
            gpu_hours=self.workload.gpu_seconds / 3600,
            syncs_without_metric=self._memory.without_metric,
        )

    def _play(self, duration_s: float) -> None:
        """Events and arrivals in the order of time; at the same instant, events first."""
        upcoming, request = [*self._arrivals_s, duration_s], 0
        while True:
            if self._events and self._events[0][0] <= upcoming[request]:
                now_s, _, _, act = heapq.heappop(self._events)
                act(now_s)
            elif request < len(self._arrivals_s):
                self.workload.arrive(request, upcoming[request])
                request += 1
            else:
                return

    def _at(self, t_s: float, act: Callable[[float], None], order: _Order = _Order.WORKLOAD) -> None:
        heapq.heappush(self._events, (t_s, order, next(self._numbers), act))

    def _every(self, period_s: float, first_s: float, order: _Order, act: Callable[[float], None]) -> None:
        turns = itertools.count(1)

        def turn(now_s: float) -> None:
            self._at(first_s + next(turns) * period_s, turn, order)
            act(now_s)

        self._at(first_s, turn, order)

    def _scrape(self, now_s: float) -> None:
        self._prometheus.scrape(self.workload.gauges(), now_s)

    def _sample(self, now_s: float) -> None:
        pods = self.workload
        self._samples.append(Sample(now_s, pods.wanted, pods.scheduled, pods.ready, pods.waiting, pods.running))

    def _sync(self, now_s: float) -> None:
        hpa, current = self._autoscaler.hpa, self.workload.wanted
        proposals = [self._proposal(target, now_s) for target in hpa.targets] if current or not hpa.min_replicas else []
        self._memory.without_metric += None in proposals
        decided = sync(hpa, self._memory.history, current=current, proposals=proposals, now_s=now_s)
        self._memory.history = decided.history
        self._scale(decided.replicas, decided.reason, now_s)

    def _proposal(self, target: Target, now_s: float) -> int | None:
        current, ready, tolerances = self.workload.wanted, self.workload.ready, self._autoscaler.hpa.tolerances
        if target.kind is TargetKind.PODS:
            values = self._prometheus.of_pods(target.gauge, now_s)
            return pods_average(self.workload.samples(values or {}), target.milli, current, tolerances)
        usage_milli = self._usage_milli(target, now_s)
        if usage_milli is None:
            return None
        if target.kind is TargetKind.VALUE:
            return value(usage_milli, target.milli, current, ready, tolerances)
        return average_value(usage_milli, target.milli, current, tolerances)

    def _usage_milli(self, target: Target, now_s: float) -> int | None:
        """What the metrics API answers: KEDA, or an adapter that has no value for an empty result."""
        keda = self._autoscaler.keda
        reading = self._prometheus.total(target.gauge, now_s)
        if keda is None:
            return None if reading.value is None else round(reading.value * 1000)
        if keda.use_cached_metrics and target in self._memory.cached:
            reading = self._memory.cached[target]
        return self._served(keda, target, reading).usage_milli

    def _served(self, keda: KedaSettings, target: Target, reading: Reading) -> Served:
        served = serve(
            reading,
            keda,
            target,
            failures=self._memory.failures.get(target, 0),
            current=self.workload.wanted,
            ready=self.workload.ready,
        )
        self._memory.failures[target] = served.failures
        return served

    def _poll(self, now_s: float) -> None:
        keda = self._autoscaler.keda
        assert keda is not None
        for target in self._autoscaler.hpa.targets:
            self._memory.cached[target] = self._prometheus.total(target.gauge, now_s)
        answers = [self._served(keda, target, reading) for target, reading in self._memory.cached.items()]
        decided = poll(
            keda,
            current=self.workload.wanted,
            active=any(answer.active for answer in answers),
            failed=any(answer.usage_milli is None for answer in answers),
            last_active_s=self._memory.last_active_s,
            now_s=now_s,
        )
        self._memory.last_active_s = decided.last_active_s
        self._scale(decided.replicas, "KEDA", now_s)

    def _scale(self, replicas: int, reason: str, now_s: float) -> None:
        if replicas != self.workload.wanted:
            self.workload.scale(replicas, now_s)
            self._changes.append(Change(now_s, replicas, reason))
