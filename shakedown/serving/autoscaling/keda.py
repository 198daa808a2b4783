"""KEDA's part: from an answer of Prometheus to the value that the HPA reads, and the steps to and from zero.

A ScaledObject becomes an HPA with external metrics; KEDA answers for them when the HPA asks, at each sync. Its own loop
(pollingInterval) matters only where the HPA cannot act: below minReplicaCount, and for cached metrics.
True to KEDA 2.21: prometheus_scaler.go, fallback.go and scale_scaledobjects.go under pkg/.
"""

from dataclasses import dataclass
from enum import StrEnum

from shakedown.errors import UsageError
from shakedown.serving.autoscaling.calculator import milli
from shakedown.serving.autoscaling.hpa import Target, TargetKind

DEFAULT_POLLING_INTERVAL_S = 30.0
DEFAULT_COOLDOWN_S = 300.0


@dataclass(frozen=True, slots=True)
class Reading:
    """Prometheus' answer to a query. No value and no error is an empty result: no series matched."""

    value: float | None
    failed: bool = False


EMPTY = Reading(None)
"""Absent is not zero: an idle engine exports its gauges with 0."""
UNREACHABLE = Reading(None, failed=True)


class FallbackBehavior(StrEnum):
    """What a fallback's replicas are compared with."""

    STATIC = "static"
    CURRENT = "currentReplicas"
    CURRENT_IF_HIGHER = "currentReplicasIfHigher"
    CURRENT_IF_LOWER = "currentReplicasIfLower"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fallback:
    """After more than `failure_threshold` failures in a row, KEDA reports what asks for these replicas."""

    replicas: int
    failure_threshold: int = 3
    behavior: FallbackBehavior = FallbackBehavior.STATIC

    def __post_init__(self) -> None:
        if self.replicas < 0 or self.failure_threshold < 0:
            raise UsageError("a fallback's replicas and failureThreshold are 0 or more")

    def wanted(self, current: int) -> int:
        match self.behavior:
            case FallbackBehavior.STATIC:
                return self.replicas
            case FallbackBehavior.CURRENT:
                return current
            case FallbackBehavior.CURRENT_IF_HIGHER:
                return max(current, self.replicas)
            case FallbackBehavior.CURRENT_IF_LOWER:
                return min(current, self.replicas)


@dataclass(frozen=True, slots=True, kw_only=True)
class KedaSettings:
    """What a ScaledObject says beyond its HPA."""

    min_replicas: int = 0
    """minReplicaCount; the HPA's own minimum is this or 1."""
    idle_replicas: int | None = None
    polling_interval_s: float = DEFAULT_POLLING_INTERVAL_S
    cooldown_s: float = DEFAULT_COOLDOWN_S
    activation_threshold: float = 0.0
    ignore_null_values: bool = True
    """KEDA's default: an empty result counts as 0."""
    use_cached_metrics: bool = False
    """The HPA reads what the last poll saw, instead of a query of its own."""
    fallback: Fallback | None = None

    def __post_init__(self) -> None:
        if not self.polling_interval_s > 0 or not self.cooldown_s >= 0 or self.min_replicas < 0:
            raise UsageError("pollingInterval is positive, cooldownPeriod and minReplicaCount are 0 or more")
        if self.idle_replicas is not None and not 0 <= self.idle_replicas < max(self.min_replicas, 1):
            raise UsageError("idleReplicaCount is below minReplicaCount")

    @property
    def polls(self) -> bool:
        """Whether the loop of pollingInterval changes anything. Source: IsPollingIntervalRelevant."""
        return self.min_replicas == 0 or self.idle_replicas is not None or self.use_cached_metrics


@dataclass(frozen=True, slots=True)
class Served:
    """What KEDA answers for a metric, and how often in a row its source has failed."""

    usage_milli: int | None
    """None: the HPA gets an error and leaves the metric out."""
    failures: int
    active: bool


def serve(
    reading: Reading, settings: KedaSettings, target: Target, *, failures: int, current: int, ready: int
) -> Served:
    """Answer for one metric. Source: ExecutePromQuery, GetMetricsWithFallback, doFallback."""
    found = reading.value
    if found is None and not reading.failed and settings.ignore_null_values:
        found = 0.0
    if found is not None:
        return Served(milli(found), 0, found > settings.activation_threshold)
    failures += 1
    fallback = settings.fallback
    if fallback is None or failures <= fallback.failure_threshold:
        return Served(None, failures, active=False)
    wanted: float = fallback.wanted(current)
    if target.kind is TargetKind.VALUE:
        if not ready:
            return Served(None, failures, active=False)
        wanted /= ready
    return Served(int(target.milli * wanted), failures, active=True)


@dataclass(frozen=True, slots=True)
class Poll:
    """What one poll decided outside of the HPA's range."""

    replicas: int
    last_active_s: float | None


def poll(
    settings: KedaSettings, *, current: int, active: bool, failed: bool, last_active_s: float | None, now_s: float
) -> Poll:
    """Start from zero or idle when a trigger is active; go there when none has been for cooldownPeriod.

    Source: RequestScale, scaleToZeroOrIdle, scaleFromZeroOrIdle.
    """
    floor, idle = settings.min_replicas, settings.idle_replicas
    if active:
        if current == 0 or (idle is not None and current < floor):
            return Poll(max(floor, 1), now_s)
        return Poll(current, last_active_s if failed else now_s)
    if failed and (settings.fallback is None or settings.fallback.replicas != 0):
        return Poll(current, last_active_s)
    resting = floor if idle is None else idle
    if (idle is not None and current > idle) or (floor == 0 and current > 0):
        cooled = last_active_s is None or last_active_s + settings.cooldown_s < now_s
        return Poll(resting if cooled else current, last_active_s)
    return Poll(max(current, floor) if idle is None else current, last_active_s)
