"""The way of a number from the engines to the autoscaler: gauge, scrape, query; and what can go wrong on it."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from shakedown.errors import UsageError
from shakedown.serving.autoscaling.hpa import Gauge
from shakedown.serving.autoscaling.keda import EMPTY, UNREACHABLE, Reading


class Broken(StrEnum):
    """Which link of the way fails."""

    SCRAPES = "scrapes"
    """Prometheus cannot reach the engines: their series go stale at the next scrape, and the query finds none."""
    QUERIES = "queries"
    """Prometheus does not answer: the query fails."""


@dataclass(frozen=True, slots=True)
class Outage:
    """A failure from `start_s` until before `end_s`."""

    broken: Broken
    start_s: float
    end_s: float

    def at(self, t_s: float) -> bool:
        return self.start_s <= t_s < self.end_s


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricPath:
    """Latencies and failures between the gauge and the autoscaler."""

    scrape_interval_s: float = 15.0
    first_scrape_s: float = 0.0
    scrape_lag_s: float = 0.0
    """From the gauge being read to queries finding the sample: the scrape itself, remote write, recording rules."""
    gauge_copies: int = 1
    """How often each engine exports its gauges; several API servers make it more than once (vllm PR#18053)."""
    outages: tuple[Outage, ...] = ()

    def __post_init__(self) -> None:
        if not self.scrape_interval_s > 0 or not self.scrape_lag_s >= 0 or not self.first_scrape_s >= 0:
            raise UsageError("the scrape interval is positive, its lag and the first scrape are 0 or more")
        if self.gauge_copies < 1:
            raise UsageError("each engine exports its gauges at least once")

    def fails(self, broken: Broken, t_s: float) -> bool:
        return any(outage.broken is broken and outage.at(t_s) for outage in self.outages)


@dataclass(frozen=True, slots=True)
class PodGauges:
    """The gauges of one pod in one scrape."""

    pod: int
    waiting: int
    running: int

    def value(self, gauge: Gauge) -> int:
        match gauge:
            case Gauge.WAITING:
                return self.waiting
            case Gauge.RUNNING:
                return self.running
            case Gauge.IN_FLIGHT:
                return self.waiting + self.running


class Prometheus:
    """Scrapes of all pods at the same instants; a query sees the last one that has become visible."""

    def __init__(self, path: MetricPath) -> None:
        self._path = path
        self._visible: tuple[PodGauges, ...] = ()
        self._coming: list[tuple[float, tuple[PodGauges, ...]]] = []

    def scrape(self, pods: Iterable[PodGauges], now_s: float) -> None:
        found = () if self._path.fails(Broken.SCRAPES, now_s) else tuple(pods)
        self._coming.append((now_s + self._path.scrape_lag_s, found))

    def total(self, gauge: Gauge, now_s: float) -> Reading:
        """The answer to sum(…)."""
        pods = self._seen(now_s)
        if pods is None:
            return UNREACHABLE
        return Reading(float(self._path.gauge_copies * sum(pod.value(gauge) for pod in pods))) if pods else EMPTY

    def of_pods(self, gauge: Gauge, now_s: float) -> dict[int, int] | None:
        """The value of each pod that has one; None if Prometheus does not answer."""
        pods = self._seen(now_s)
        return None if pods is None else {pod.pod: self._path.gauge_copies * pod.value(gauge) for pod in pods}

    def _seen(self, now_s: float) -> tuple[PodGauges, ...] | None:
        while self._coming and self._coming[0][0] <= now_s:
            self._visible = self._coming.pop(0)[1]
        return None if self._path.fails(Broken.QUERIES, now_s) else self._visible
