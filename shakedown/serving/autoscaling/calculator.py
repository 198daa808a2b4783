"""How many replicas one metric asks for: the replica calculator of the HorizontalPodAutoscaler.

True to kubernetes 1.34, pkg/controller/podautoscaler/replica_calculator.go. Values are whole thousandths ("milli"), as
the controller computes with them. None means that the metric could not be had: the controller then leaves it out.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

DEFAULT_TOLERANCE = 0.1
"""--horizontal-pod-autoscaler-tolerance of the controller manager."""
LARGEST = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Tolerances:
    """Ratios of usage to target between 1 − down and 1 + up change nothing."""

    down: float = DEFAULT_TOLERANCE
    up: float = DEFAULT_TOLERANCE

    def allow(self, ratio: float) -> bool:
        return 1.0 - self.down <= ratio <= 1.0 + self.up


class PodState(StrEnum):
    """What the calculator tells pods apart by; `RUNNING` says nothing about readiness."""

    RUNNING = "Running"
    PENDING = "Pending"
    GONE = "Gone"
    """Failed, or being deleted."""


@dataclass(frozen=True, slots=True)
class PodSample:
    """A pod and its value of a Pods metric; None where the metrics API has none."""

    state: PodState
    usage_milli: int | None


def milli(value: float) -> int:
    """A quantity in thousandths, rounded up as Kubernetes' Quantity.MilliValue does."""
    return math.ceil(round(value * 1000, 6))


def average_value(usage_milli: int, target_milli: int, status_replicas: int, tolerances: Tolerances) -> int:
    """External and Object metrics with an AverageValue target: ⌈usage ÷ target⌉, whatever is ready.

    Source: GetExternalPerPodMetricReplicas, GetObjectPerPodMetricReplicas.
    """
    if status_replicas and tolerances.allow(usage_milli / (target_milli * status_replicas)):
        return status_replicas
    return min(math.ceil(usage_milli / target_milli), LARGEST)


def value(usage_milli: int, target_milli: int, current: int, ready: int, tolerances: Tolerances) -> int:
    """External and Object metrics with a Value target: ⌈ratio × ready pods⌉; without any replica, ⌈ratio⌉.

    Source: getUsageRatioReplicaCount.
    """
    ratio = usage_milli / target_milli
    if current == 0:
        return math.ceil(ratio)
    return current if tolerances.allow(ratio) else math.ceil(ratio * ready)


def pods_average(pods: Sequence[PodSample], target_milli: int, current: int, tolerances: Tolerances) -> int | None:
    """Pods metrics: ⌈ratio × pods⌉, where what is not known may slow a change and never turn it round.

    Before a scale-up, pending pods and pods without a value count as 0; before a scale-down, pods without a value count
    as exactly on target. Source: calcPlainMetricReplicas, groupPods.
    """
    known = [pod.usage_milli for pod in pods if pod.state is PodState.RUNNING and pod.usage_milli is not None]
    missing = sum(pod.state is PodState.RUNNING and pod.usage_milli is None for pod in pods)
    pending = sum(pod.state is PodState.PENDING for pod in pods)
    if not known:
        return None
    ratio = _ratio(known, target_milli)
    growing_past_pending = pending > 0 and ratio > 1.0
    if not growing_past_pending and not missing:
        return current if tolerances.allow(ratio) else math.ceil(ratio * len(known))
    guessed = [target_milli] * missing if ratio < 1.0 else [0] * missing if ratio > 1.0 else []
    assumed = known + guessed + [0] * (pending if growing_past_pending else 0)
    return _without_turning(ratio, _ratio(assumed, target_milli), len(assumed), current, tolerances)


def _ratio(usages_milli: Sequence[int], target_milli: int) -> float:
    return (sum(usages_milli) // len(usages_milli)) / target_milli


def _without_turning(before: float, after: float, pods: int, current: int, tolerances: Tolerances) -> int:
    if tolerances.allow(after) or (before < 1.0 < after) or (after < 1.0 < before):
        return current
    wanted = math.ceil(after * pods)
    turned = (after < 1.0 and wanted > current) or (after > 1.0 and wanted < current)
    return current if turned else wanted


def combined(proposals: Sequence[int | None], current: int) -> int | None:
    """The most replicas that any metric asks for; None if nothing may be decided.

    One metric that cannot be had forbids a scale-down, and all of them forbid anything. Source:
    computeReplicasForMetrics.
    """
    known = [proposal for proposal in proposals if proposal is not None]
    if not known or (len(known) < len(proposals) and max(known) < current):
        return None
    return max(known)
