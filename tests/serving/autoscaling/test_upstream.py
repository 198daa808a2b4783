"""The controller's own answers: what functions of kubernetes 1.34.4 returned for random inputs.

data/kubernetes-1.34.4.jsonl was printed by a Go program that calls the package pkg/controller/podautoscaler:
GetExternalPerPodMetricReplicas ("average"), GetExternalMetricReplicas ("value"), calcPlainMetricReplicas ("pods"),
normalizeDesiredReplicas ("default") and normalizeDesiredReplicasWithBehaviors ("behavior"). Times are seconds ago.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from shakedown.serving.autoscaling.behavior import (
    DEFAULT_DOWN_WINDOW_S,
    Behavior,
    History,
    Policy,
    PolicyKind,
    Rules,
    Select,
    Stamped,
    limited,
    limited_by_default,
    stabilized,
    stabilized_by_default,
)
from shakedown.serving.autoscaling.calculator import (
    PodSample,
    PodState,
    Tolerances,
    average_value,
    pods_average,
    value,
)

CASES = [json.loads(line) for line in (Path(__file__).parent / "data/kubernetes-1.34.4.jsonl").read_text().splitlines()]
NOW_S = 10_000.0


def of_kind(kind: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", [case for case in CASES if case["kind"] == kind])


@of_kind("average")
def test_average_value(case: dict[str, Any]) -> None:
    tolerances = Tolerances(*case["tolerances"])
    assert average_value(case["usage_milli"], case["target_milli"], case["current"], tolerances) == case["replicas"]


@of_kind("value")
def test_value(case: dict[str, Any]) -> None:
    tolerances, usage, target = Tolerances(*case["tolerances"]), case["usage_milli"], case["target_milli"]
    assert value(usage, target, case["current"], case["ready"], tolerances) == case["replicas"]


@of_kind("pods")
def test_pods(case: dict[str, Any]) -> None:
    pods = [PodSample(PodState(state), usage) for state, usage in case["pods"]]
    found = pods_average(pods, case["target_milli"], case["current"], Tolerances(*case["tolerances"]))
    assert found == case["replicas"]


@of_kind("default")
def test_limits_without_a_behavior(case: dict[str, Any]) -> None:
    stable = stabilized_by_default(case["wanted"], DEFAULT_DOWN_WINDOW_S, history(case), NOW_S)
    assert limited_by_default(stable, case["current"], tuple(case["bounds"])).replicas == case["replicas"]


@of_kind("behavior")
def test_limits_of_a_behavior(case: dict[str, Any]) -> None:
    behavior, past, current = Behavior(up=rules(case["up"]), down=rules(case["down"])), history(case), case["current"]
    stable = stabilized(case["wanted"], current, behavior, DEFAULT_DOWN_WINDOW_S, past, NOW_S)
    assert limited(stable, current, tuple(case["bounds"]), behavior, past, NOW_S).replicas == case["replicas"]


def test_each_kind_has_cases() -> None:
    kinds = [case["kind"] for case in CASES]
    assert all(kinds.count(kind) > 50 for kind in ("average", "value", "pods", "default", "behavior"))


def history(case: dict[str, Any]) -> History:
    return History(*(stamped(case.get(name, [])) for name in ("recommendations", "added", "removed")))


def stamped(seen: list[list[float]]) -> tuple[Stamped, ...]:
    return tuple(Stamped(int(replicas), NOW_S - ago_s) for replicas, ago_s in seen)


def rules(written: dict[str, Any]) -> Rules:
    policies = tuple(Policy(PolicyKind(kind), size, period_s) for kind, size, period_s in written["policies"])
    return Rules(policies=policies, window_s=written["window_s"], select=Select(written["select"]))
