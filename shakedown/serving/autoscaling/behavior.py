"""Windows and policies of an HPA: how much of what the metrics ask for is granted now.

True to kubernetes 1.34, pkg/controller/podautoscaler/horizontal.go (stabilizeRecommendation…,
convertDesiredReplicas…, calculateScale…Limit…) and pkg/apis/autoscaling/v2/defaults.go.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from shakedown.errors import UsageError

LONGEST_PERIOD_S = 1800
"""The API server refuses a longer periodSeconds (pkg/apis/autoscaling/validation)."""
LONGEST_WINDOW_S = 3600
"""The API server refuses a longer stabilizationWindowSeconds (the same)."""
DEFAULT_DOWN_WINDOW_S = 300.0
"""--horizontal-pod-autoscaler-downscale-stabilization of the controller manager."""
UNHINDERED_FACTOR, UNHINDERED_LEAST = 2, 4
"""Without a behavior, a sync at most doubles the replicas, or goes to 4: scaleUpLimitFactor, scaleUpLimitMinimum."""


class PolicyKind(StrEnum):
    """What a policy counts in."""

    PODS = "Pods"
    PERCENT = "Percent"


class Select(StrEnum):
    """Which of several policies counts; Disabled forbids the direction."""

    MAX = "Max"
    MIN = "Min"
    DISABLED = "Disabled"


@dataclass(frozen=True, slots=True)
class Policy:
    """At most `value` pods (or percent) in `period_s` seconds."""

    kind: PolicyKind
    value: int
    period_s: int

    def __post_init__(self) -> None:
        if self.value < 1 or not 1 <= self.period_s <= LONGEST_PERIOD_S:
            raise UsageError(
                f"a scaling policy has a value of at least 1 and a period of 1 to {LONGEST_PERIOD_S} s; "
                f"got {self.value} {self.kind} in {self.period_s} s"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The rules of one direction."""

    policies: tuple[Policy, ...]
    window_s: int | None = 0
    """stabilizationWindowSeconds; None takes the controller manager's (scale-down only)."""
    select: Select = Select.MAX
    tolerance: float | None = None
    """None takes the controller manager's; needs the feature gate HPAConfigurableTolerance, off in 1.34."""

    def __post_init__(self) -> None:
        if not self.policies:
            raise UsageError("scaling rules need at least one policy")
        if not 0 <= (self.window_s or 0) <= LONGEST_WINDOW_S:
            raise UsageError(f"a stabilization window lasts 0 to {LONGEST_WINDOW_S} s, not {self.window_s}")
        if self.tolerance is not None and not self.tolerance >= 0:
            raise UsageError(f"a tolerance is 0 or more, not {self.tolerance:g}")


DEFAULT_UP = Rules(policies=(Policy(PolicyKind.PODS, 4, 15), Policy(PolicyKind.PERCENT, 100, 15)))
DEFAULT_DOWN = Rules(policies=(Policy(PolicyKind.PERCENT, 100, 15),), window_s=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Behavior:
    """spec.behavior; a direction that is left out has the API server's defaults."""

    up: Rules = DEFAULT_UP
    down: Rules = DEFAULT_DOWN


@dataclass(frozen=True, slots=True)
class Stamped:
    """Replicas at a time: a recommendation, or the size of a change."""

    replicas: int
    at_s: float


@dataclass(frozen=True, slots=True)
class History:
    """What the controller remembers of one HPA, in memory only: a restart forgets it."""

    recommendations: tuple[Stamped, ...] = ()
    """Before stabilization."""
    added: tuple[Stamped, ...] = ()
    removed: tuple[Stamped, ...] = ()


@dataclass(frozen=True, slots=True)
class Granted:
    """Replicas after one of the limits, and the limit's name as the HPA's condition has it."""

    replicas: int
    reason: str


def stabilized(
    wanted: int, current: int, behavior: Behavior, down_window_s: float, history: History, now_s: float
) -> int:
    """No further up than the lowest recommendation of the up window, no further down than the highest of the down one.

    Source: stabilizeRecommendationWithBehaviors.
    """
    up_window_s = behavior.up.window_s or 0
    lowest = min([wanted, *_since(history.recommendations, now_s - up_window_s)])
    highest = max([wanted, *_since(history.recommendations, now_s - down_window(behavior, down_window_s))])
    return min(max(current, lowest), highest)


def stabilized_by_default(wanted: int, down_window_s: float, history: History, now_s: float) -> int:
    """The highest recommendation of the controller manager's window. Source: stabilizeRecommendation."""
    return max([wanted, *(seen.replicas for seen in history.recommendations if seen.at_s >= now_s - down_window_s)])


def remembered(history: History, wanted: int, longest_window_s: float, now_s: float) -> History:
    """The history with a new recommendation, without those that no window can see any more."""
    kept = tuple(seen for seen in history.recommendations if seen.at_s >= now_s - longest_window_s)
    return replace(history, recommendations=(*kept, Stamped(wanted, now_s)))


def scaled(history: History, before: int, after: int, behavior: Behavior, now_s: float) -> History:
    """The history with a change of the scale, without changes older than any policy. Source: storeScaleEvent."""
    if after > before:
        return replace(history, added=_with_change(history.added, after - before, behavior.up, now_s))
    return replace(history, removed=_with_change(history.removed, before - after, behavior.down, now_s))


def down_window(behavior: Behavior, default_s: float) -> float:
    return default_s if behavior.down.window_s is None else behavior.down.window_s


def limited(
    wanted: int, current: int, bounds: tuple[int, int], behavior: Behavior, history: History, now_s: float
) -> Granted:
    """Within the policies and within minReplicas and maxReplicas.

    Source: convertDesiredReplicasWithBehaviorRate.
    """
    least, most = bounds
    if wanted > current:
        limit = max(_up_limit(current, history, behavior.up, now_s), current)
        allowed, reason = (limit, "ScaleUpLimit") if most > limit else (most, "TooManyReplicas")
        if wanted > allowed:
            return Granted(allowed, reason)
    elif wanted < current:
        limit = min(_down_limit(current, history, behavior.down, now_s), current)
        allowed, reason = (limit, "ScaleDownLimit") if least < limit else (least, "TooFewReplicas")
        if wanted < allowed:
            return Granted(allowed, reason)
    return Granted(wanted, "DesiredWithinRange")


def limited_by_default(wanted: int, current: int, bounds: tuple[int, int]) -> Granted:
    """The limits of an HPA without a behavior. Source: convertDesiredReplicasWithRules."""
    least, most = bounds
    limit = max(UNHINDERED_FACTOR * current, UNHINDERED_LEAST)
    allowed, reason = (limit, "ScaleUpLimit") if most > limit else (most, "TooManyReplicas")
    if wanted < least:
        return Granted(least, "TooFewReplicas")
    return Granted(allowed, reason) if wanted > allowed else Granted(wanted, "DesiredWithinRange")


def _up_limit(current: int, history: History, rules: Rules, now_s: float) -> int:
    def allowed(policy: Policy, at_start: int) -> int:
        if policy.kind is PolicyKind.PODS:
            return at_start + policy.value
        return math.ceil(at_start * (1 + policy.value / 100))

    return _limit(current, history, rules, now_s, allowed, max if rules.select is Select.MAX else min)


def _down_limit(current: int, history: History, rules: Rules, now_s: float) -> int:
    def allowed(policy: Policy, at_start: int) -> int:
        if policy.kind is PolicyKind.PODS:
            return at_start - policy.value
        return int(at_start * (1 - policy.value / 100))

    return _limit(current, history, rules, now_s, allowed, min if rules.select is Select.MAX else max)


def _limit(
    current: int,
    history: History,
    rules: Rules,
    now_s: float,
    allowed: Callable[[Policy, int], int],
    select: Callable[[Iterable[int]], int],
) -> int:
    if rules.select is Select.DISABLED:
        return current
    limits = []
    for policy in rules.policies:
        begin_s = now_s - policy.period_s
        at_start = current - sum(_since(history.added, begin_s)) + sum(_since(history.removed, begin_s))
        limits.append(allowed(policy, at_start))
    return select(limits)


def _with_change(changes: tuple[Stamped, ...], size: int, rules: Rules, now_s: float) -> tuple[Stamped, ...]:
    oldest_s = now_s - max(policy.period_s for policy in rules.policies)
    return (*(change for change in changes if change.at_s >= oldest_s), Stamped(size, now_s))


def _since(stamped: tuple[Stamped, ...], begin_s: float) -> list[int]:
    return [seen.replicas for seen in stamped if seen.at_s > begin_s]
