"""One sync of a HorizontalPodAutoscaler as a pure function: what the metrics ask for in, replicas out.

True to kubernetes 1.34, pkg/controller/podautoscaler/horizontal.go (reconcileAutoscaler).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from shakedown.errors import UsageError
from shakedown.serving.autoscaling.behavior import (
    DEFAULT_DOWN_WINDOW_S,
    Behavior,
    Granted,
    History,
    Stamped,
    down_window,
    limited,
    limited_by_default,
    remembered,
    scaled,
    stabilized,
    stabilized_by_default,
)
from shakedown.serving.autoscaling.calculator import DEFAULT_TOLERANCE, Tolerances, combined, milli

DEFAULT_SYNC_PERIOD_S = 15.0
"""--horizontal-pod-autoscaler-sync-period of the controller manager."""


class Gauge(StrEnum):
    """What of the engines is counted."""

    WAITING = "waiting"
    """vllm:num_requests_waiting."""
    RUNNING = "running"
    """vllm:num_requests_running: at most max-num-seqs a replica."""
    IN_FLIGHT = "in-flight"
    """Their sum: by Little's law the arrival rate times the time in the engine, however many replicas there are."""


class TargetKind(StrEnum):
    """How the value meets the target."""

    AVERAGE_VALUE = "AverageValue"
    """An external sum, divided by the replicas that exist."""
    VALUE = "Value"
    """An external value as it is, times the replicas that are ready."""
    PODS = "Pods"
    """A metric of each pod, averaged over the pods that have one."""


@dataclass(frozen=True, slots=True)
class Target:
    """One metric of an HPA."""

    gauge: Gauge
    threshold: float
    kind: TargetKind = TargetKind.AVERAGE_VALUE

    def __post_init__(self) -> None:
        if not math.isfinite(self.threshold) or milli(self.threshold) < 1:
            raise UsageError(f"a target is finite and at least a thousandth; got {self.threshold:g}")

    @property
    def milli(self) -> int:
        return milli(self.threshold)


@dataclass(frozen=True, slots=True, kw_only=True)
class HpaSettings:
    """The spec of an HPA, and the flags of the controller manager that decide with it."""

    targets: tuple[Target, ...]
    max_replicas: int
    min_replicas: int = 1
    behavior: Behavior | None = None
    sync_period_s: float = DEFAULT_SYNC_PERIOD_S
    tolerance: float = DEFAULT_TOLERANCE
    down_window_s: float = DEFAULT_DOWN_WINDOW_S

    def __post_init__(self) -> None:
        if not self.targets:
            raise UsageError("an HPA needs a metric")
        if not 0 <= self.min_replicas <= self.max_replicas or self.max_replicas < 1:
            raise UsageError(
                f"an HPA needs 0 ≤ minReplicas ≤ maxReplicas and 1 ≤ maxReplicas; got {self.min_replicas} and "
                f"{self.max_replicas}"
            )
        if not self.sync_period_s > 0:
            raise UsageError(f"the sync period must be positive, not {self.sync_period_s:g} s")

    @property
    def tolerances(self) -> Tolerances:
        """Source: tolerancesForHpa."""
        if self.behavior is None:
            return Tolerances(self.tolerance, self.tolerance)
        down, up = self.behavior.down.tolerance, self.behavior.up.tolerance
        return Tolerances(self.tolerance if down is None else down, self.tolerance if up is None else up)


@dataclass(frozen=True, slots=True)
class Sync:
    """What one sync decided."""

    replicas: int
    reason: str
    """The reason of the HPA's condition: why no more, or why nothing."""
    history: History


def sync(
    settings: HpaSettings, history: History, *, current: int, proposals: Sequence[int | None], now_s: float
) -> Sync:
    """The replicas that a sync writes into the scale.

    `current` is spec.replicas of the workload, `proposals` what each metric asks for (None: it could not be had).
    """
    if not history.recommendations:
        history = replace(history, recommendations=(Stamped(current, now_s),))
    if current == 0 and settings.min_replicas != 0:
        return Sync(0, "ScalingDisabled", history)
    if not settings.min_replicas <= current <= settings.max_replicas:
        bound = settings.max_replicas if current > settings.max_replicas else settings.min_replicas
        return _rescaled(settings, Granted(bound, "OutsideOfBounds"), current, history, now_s)
    wanted = combined(proposals, current)
    if wanted is None:
        return Sync(current, "FailedGetMetrics", history)
    granted, history = _granted(settings, history, current, wanted, now_s)
    return _rescaled(settings, granted, current, history, now_s)


def _granted(
    settings: HpaSettings, history: History, current: int, wanted: int, now_s: float
) -> tuple[Granted, History]:
    bounds, behavior = (settings.min_replicas, settings.max_replicas), settings.behavior
    if behavior is None:
        stable = stabilized_by_default(wanted, settings.down_window_s, history, now_s)
        longest_s = settings.down_window_s
        granted = limited_by_default(stable, current, bounds)
    else:
        stable = stabilized(wanted, current, behavior, settings.down_window_s, history, now_s)
        longest_s = max(behavior.up.window_s or 0, down_window(behavior, settings.down_window_s))
        granted = limited(stable, current, bounds, behavior, history, now_s)
    if granted.replicas == stable != wanted:
        granted = Granted(stable, "ScaleUpStabilized" if wanted >= current else "ScaleDownStabilized")
    return granted, remembered(history, wanted, longest_s, now_s)


def _rescaled(settings: HpaSettings, granted: Granted, current: int, history: History, now_s: float) -> Sync:
    if granted.replicas != current and settings.behavior is not None:
        history = scaled(history, current, granted.replicas, settings.behavior, now_s)
    return Sync(granted.replicas, granted.reason, history)
