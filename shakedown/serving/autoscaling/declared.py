"""The settings of an autoscaler as manifests declare them: a ScaledObject or a HorizontalPodAutoscaler."""

import re
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Any, TypeVar

from shakedown.engine.metrics import REQUESTS_RUNNING, REQUESTS_WAITING
from shakedown.errors import UsageError
from shakedown.serving.autoscaling.behavior import DEFAULT_DOWN, DEFAULT_UP, Behavior, Policy, PolicyKind, Rules, Select
from shakedown.serving.autoscaling.hpa import Gauge, HpaSettings, Target, TargetKind
from shakedown.serving.autoscaling.keda import (
    DEFAULT_COOLDOWN_S,
    DEFAULT_POLLING_INTERVAL_S,
    Fallback,
    FallbackBehavior,
    KedaSettings,
)
from shakedown.serving.autoscaling.simulator import Autoscaler
from shakedown.serving.lint.loading import load
from shakedown.serving.lint.promql import BRACES, LABEL_LIST
from shakedown.serving.lint.queries import quantity
from shakedown.serving.lint.tree import at, mapping, mappings, number, text
from shakedown.serving.lint.world import Item

DEFAULT_KEDA_MAXIMUM = 100
GAUGES = {
    frozenset({REQUESTS_WAITING}): Gauge.WAITING,
    frozenset({REQUESTS_RUNNING}): Gauge.RUNNING,
    frozenset({REQUESTS_WAITING, REQUESTS_RUNNING}): Gauge.IN_FLIGHT,
}
KNOWN = f"sums of {REQUESTS_WAITING} and {REQUESTS_RUNNING}"
Word = TypeVar("Word", bound=StrEnum)


def declared(paths: Sequence[str]) -> Autoscaler:
    """Read the one autoscaler of some files.

    Raises UsageError for none or several, and for what the simulator does not know: other metrics, other triggers.
    """
    found = list(load(paths).of("ScaledObject", "HorizontalPodAutoscaler"))
    if len(found) != 1:
        raise UsageError(
            f"one ScaledObject or HorizontalPodAutoscaler is simulated; {', '.join(paths)} has {len(found)}"
        )
    item = found[0]
    try:
        return _of_scaled_object(item) if item.kind == "ScaledObject" else Autoscaler(_of_hpa(item))
    except UsageError as error:
        raise UsageError(f"{item.file}, {item.place.object}: {error}") from error


def _of_scaled_object(item: Item) -> Autoscaler:
    spec = mapping(item.body.get("spec"))
    triggers = mappings(spec.get("triggers"))
    floor = _whole(spec.get("minReplicaCount"), 0)
    ignoring = {text(at(trigger, "metadata", "ignoreNullValues")).lower() != "false" for trigger in triggers}
    if len(ignoring) > 1:
        raise UsageError("its triggers differ in ignoreNullValues, which the simulator does not know")
    idle = spec.get("idleReplicaCount")
    keda = KedaSettings(
        min_replicas=floor,
        idle_replicas=None if idle is None else _whole(idle, 0),
        polling_interval_s=number(spec.get("pollingInterval")) or DEFAULT_POLLING_INTERVAL_S,
        cooldown_s=_or(number(spec.get("cooldownPeriod")), DEFAULT_COOLDOWN_S),
        activation_threshold=max(
            (_or(number(at(trigger, "metadata", "activationThreshold")), 0.0) for trigger in triggers), default=0.0
        ),
        ignore_null_values=ignoring != {False},
        use_cached_metrics=any(trigger.get("useCachedMetrics") is True for trigger in triggers),
        fallback=_fallback(spec.get("fallback")),
    )
    hpa = HpaSettings(
        targets=tuple(_of_trigger(trigger) for trigger in triggers),
        min_replicas=max(floor, 1),
        max_replicas=_whole(spec.get("maxReplicaCount"), DEFAULT_KEDA_MAXIMUM),
        behavior=_behavior(at(spec, "advanced", "horizontalPodAutoscalerConfig", "behavior")),
    )
    return Autoscaler(hpa, keda)


def _of_trigger(trigger: Any) -> Target:
    if text(trigger.get("type")) != "prometheus":
        raise UsageError(f"a trigger of type {text(trigger.get('type'))} is not simulated, only prometheus is")
    threshold = number(at(trigger, "metadata", "threshold"))
    if threshold is None:
        raise UsageError("a trigger has no threshold")
    kind = _word(TargetKind, trigger.get("metricType"), TargetKind.AVERAGE_VALUE)
    if kind is TargetKind.PODS:
        raise UsageError("KEDA has no metricType Pods")
    return Target(_gauge(text(at(trigger, "metadata", "query"))), threshold, kind)


def _gauge(query: str) -> Gauge:
    """What a query counts. Anything but plain sums would be simulated wrongly, and is refused."""
    bare = LABEL_LIST.sub(" ", re.sub(BRACES, " ", query))
    words = re.sub(r"([()+])", r" \1 ", bare).split()
    names = frozenset(word for word in words if word not in ("sum", "(", ")", "+"))
    if names not in GAUGES or "sum" not in words:
        raise UsageError(f"the query {query!r} is not simulated: only {KNOWN} are")
    return GAUGES[names]


def _of_hpa(item: Item) -> HpaSettings:
    spec = mapping(item.body.get("spec"))
    return HpaSettings(
        targets=tuple(_of_metric(metric) for metric in mappings(spec.get("metrics"))),
        min_replicas=_whole(spec.get("minReplicas"), 1),
        max_replicas=_whole(spec.get("maxReplicas"), 0),
        behavior=_behavior(spec.get("behavior")),
    )


def _of_metric(metric: Any) -> Target:
    source_type = text(metric.get("type"))
    source = mapping(metric.get(source_type.lower()))
    name, target = text(at(source, "metric", "name")), mapping(source.get("target"))
    gauge = next((gauge for names, gauge in GAUGES.items() if _names_only(names, name)), None)
    if source_type not in ("External", "Object", "Pods") or gauge is None:
        raise UsageError(f"the {source_type} metric {name!r} is not simulated: only {KNOWN} are")
    average = quantity(target.get("averageValue"))
    threshold = quantity(target.get("value")) if average is None else average
    if threshold is None:
        raise UsageError(f"the target of {name} has no value")
    if source_type == "Pods":
        return Target(gauge, threshold, TargetKind.PODS)
    return Target(gauge, threshold, TargetKind.VALUE if average is None else TargetKind.AVERAGE_VALUE)


def _names_only(families: frozenset[str], name: str) -> bool:
    """Whether an adapter's name for a metric ends like the one family."""
    return len(families) == 1 and all(name.endswith(family.removeprefix("vllm:")) for family in families)


def _behavior(node: Any) -> Behavior | None:
    if not isinstance(node, dict):
        return None
    return Behavior(up=_rules(node.get("scaleUp"), DEFAULT_UP), down=_rules(node.get("scaleDown"), DEFAULT_DOWN))


def _rules(node: Any, default: Rules) -> Rules:
    policies = tuple(
        Policy(
            _word(PolicyKind, policy.get("type"), PolicyKind.PODS),
            _whole(policy.get("value"), 0),
            _whole(policy.get("periodSeconds"), 0),
        )
        for policy in mappings(at(node, "policies"))
    )
    window_s, tolerance = at(node, "stabilizationWindowSeconds"), quantity(at(node, "tolerance"))
    return replace(
        default,
        policies=policies or default.policies,
        window_s=default.window_s if window_s is None else _whole(window_s, 0),
        select=_word(Select, at(node, "selectPolicy"), default.select),
        tolerance=default.tolerance if tolerance is None else tolerance,
    )


def _fallback(node: Any) -> Fallback | None:
    if not isinstance(node, dict):
        return None
    return Fallback(
        replicas=_whole(node.get("replicas"), 0),
        failure_threshold=_whole(node.get("failureThreshold"), 0),
        behavior=_word(FallbackBehavior, node.get("behavior"), FallbackBehavior.STATIC),
    )


def _word(kind: type[Word], node: Any, default: Word) -> Word:
    if node is None:
        return default
    try:
        return kind(text(node))
    except ValueError:
        raise UsageError(f"{text(node)!r} is none of {', '.join(word.value for word in kind)}") from None


def _whole(node: Any, default: int) -> int:
    if node is None:
        return default
    found = number(node)
    if found is None or not found.is_integer():
        raise UsageError(f"{text(node)!r} is not a whole number")
    return int(found)


def _or(found: float | None, default: float) -> float:
    return default if found is None else found
