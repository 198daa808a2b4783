"""Recommended settings hold what they say in the simulator, pass lint, and survive being written and read."""

import math
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from shakedown.errors import UsageError
from shakedown.serving.autoscaling.declared import declared
from shakedown.serving.autoscaling.demand import Demand, hill
from shakedown.serving.autoscaling.hpa import Gauge, HpaSettings, Target, TargetKind
from shakedown.serving.autoscaling.keda import FallbackBehavior, KedaSettings
from shakedown.serving.autoscaling.recommend import EMPTIEST, FULLEST, Needs, recommend, rehearsal
from shakedown.serving.autoscaling.replica import ReplicaModel
from shakedown.serving.autoscaling.scaled_object import Place, scaled_object
from shakedown.serving.autoscaling.search import Problem, rehearsed, search
from shakedown.serving.autoscaling.simulator import Autoscaler
from shakedown.serving.autoscaling.workload import ClusterModel
from shakedown.serving.lint.check import check
from shakedown.serving.lint.findings import Assumptions
from shakedown.serving.lint.loading import load

REPLICA = ReplicaModel.of_rate(4.0, 64)
SHORT_HILL = hill(4.0, 12.0, 0.4 / 60, 300.0)


def needs(*, growth: float, load_s: float = 300.0, minimum: int = 1, maximum: int = 16, slo_s: float = 2.0) -> Needs:
    return Needs(
        replica=REPLICA,
        slo_ttft_s=slo_s,
        growth_per_min=growth,
        min_replicas=minimum,
        max_replicas=maximum,
        cluster=ClusterModel(load_s=load_s),
    )


def problem(wanted: Needs, demand: Demand) -> Problem:
    return Problem(demand=demand, replica=wanted.replica, slo_ttft_s=wanted.slo_ttft_s, cluster=wanted.cluster)


@pytest.mark.parametrize(("growth", "load_s"), [(0.2, 300.0), (0.4, 300.0), (0.4, 60.0), (1.0, 120.0), (2.0, 300.0)])
def test_what_is_recommended_meets_the_slo_on_the_growth_it_was_made_for(growth: float, load_s: float) -> None:
    """And no more replicas than one policy period adds come on top of those that the plan has for the peak (D07)."""
    wanted = needs(growth=growth, load_s=load_s)
    found = recommend(wanted)
    demand = rehearsal(wanted, found)
    tried = rehearsed(problem(wanted, demand), found.autoscaler)
    assert found.follows
    assert tried.meets
    assert (tried.figures.attainment or 0.0) > 0.98
    behavior = found.autoscaler.hpa.behavior
    assert behavior is not None
    planned = math.ceil(max(rate for _, rate in demand.points) / (found.share * REPLICA.rate_per_s))
    assert tried.figures.peak_wanted <= planned + behavior.up.policies[0].value
    assert tried.figures.flapping == 1


def test_a_growth_far_beyond_what_can_be_followed_breaks_the_slo_as_predicted() -> None:
    made_for, met = needs(growth=0.2), needs(growth=4.0)
    found = recommend(made_for)
    assert found.followed_growth_per_min < 1.0
    tried = rehearsed(problem(met, rehearsal(met, found)), found.autoscaler)
    assert not tried.meets


def test_what_cannot_be_followed_is_said() -> None:
    found = recommend(needs(growth=20.0, maximum=4))
    assert not found.follows
    assert found.autoscaler.hpa.min_replicas == 4
    assert found.followed_growth_per_min < 20.0


@given(
    growth=st.floats(0.0, 10.0),
    load_s=st.floats(0.0, 1200.0),
    minimum=st.integers(1, 8),
    slo_s=st.floats(0.1, 30.0),
    slots=st.integers(1, 512),
)
@settings(deadline=None)
def test_every_recommendation_is_within_its_bounds(
    growth: float, load_s: float, minimum: int, slo_s: float, slots: int
) -> None:
    wanted = Needs(
        replica=ReplicaModel.of_rate(2.0, slots, alone_service_s=max(0.2 * slots, 1.0) / 2.0),
        slo_ttft_s=slo_s,
        growth_per_min=growth,
        min_replicas=minimum,
        max_replicas=16,
        cluster=ClusterModel(load_s=load_s),
    )
    found = recommend(wanted)
    hpa, keda = found.autoscaler.hpa, found.autoscaler.keda
    assert minimum <= hpa.min_replicas <= hpa.max_replicas == 16
    assert 1 <= hpa.targets[0].threshold <= slots
    assert found.share <= FULLEST + 1e-9 or hpa.targets[0].threshold == 1
    assert keda is not None
    assert keda.fallback is not None
    assert hpa.min_replicas <= keda.fallback.replicas <= 16
    assert not keda.ignore_null_values
    assert math.isfinite(found.followed_growth_per_min)


def test_a_slower_load_and_a_tighter_slo_ask_for_more_headroom() -> None:
    shares = [recommend(needs(growth=0.4, load_s=load_s, minimum=2)).share for load_s in (30.0, 300.0, 360.0)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > shares[-1] >= EMPTIEST - 1 / 64
    assert recommend(needs(growth=0.4, slo_s=0.5, minimum=2)).share < recommend(needs(growth=0.4, minimum=2)).share


def test_every_setting_has_a_reason_and_the_assumptions_name_their_numbers() -> None:
    found = recommend(needs(growth=0.4))
    assert {setting.name for setting in found.settings} >= {
        "threshold",
        "scaleUp policy",
        "scaleDown window",
        "fallback",
    }
    assert all(setting.because for setting in found.settings)
    assert any("307 s" in assumption for assumption in found.assumptions)
    assert any("0.4 requests/s a minute" in assumption for assumption in found.assumptions)


def test_the_search_finds_settings_that_cost_less_and_still_meet_the_slo() -> None:
    wanted = needs(growth=0.4)
    start = recommend(wanted)
    task = problem(wanted, SHORT_HILL)
    candidates = search(task, start.autoscaler)
    best, first = candidates[0], next(each for each in candidates if each.autoscaler == start.autoscaler)
    assert best.meets
    assert best.figures.gpu_hours < first.figures.gpu_hours
    assert rehearsed(task, best.autoscaler).figures.attainment == pytest.approx(best.figures.attainment, abs=0.05)


def test_a_search_from_settings_that_fail_comes_closer() -> None:
    wanted = needs(growth=0.4)
    lazy = Autoscaler(HpaSettings(targets=(Target(Gauge.IN_FLIGHT, 90),), max_replicas=16, min_replicas=2))
    candidates = search(problem(wanted, SHORT_HILL), lazy)
    first = next(each for each in candidates if each.autoscaler == lazy)
    assert not first.meets
    assert (candidates[0].figures.attainment or 0.0) > (first.figures.attainment or 0.0)


def test_needs_that_make_no_sense_are_refused() -> None:
    with pytest.raises(UsageError, match="nothing for the queue"):
        Needs(replica=ReplicaModel.of_rate(4.0, 64, prefill_s=3.0), slo_ttft_s=2.0, growth_per_min=1.0)
    with pytest.raises(UsageError):
        needs(growth=-1.0)
    with pytest.raises(UsageError):
        needs(growth=1.0, minimum=5, maximum=4)


@pytest.mark.parametrize("model_name", [None, "llama"])
def test_the_scaled_object_passes_every_lint_rule(tmp_path: Path, model_name: str | None) -> None:
    manifest = scaled_object(recommend(needs(growth=0.4)).autoscaler, Place(name="llama", model_name=model_name))
    path = tmp_path / "scaledobject.yaml"
    path.write_text(yaml.safe_dump(manifest))
    assert check(load([str(path)]), Assumptions()) == ()
    assert manifest["spec"]["minReplicaCount"] >= 1
    assert manifest["spec"]["triggers"][0]["metadata"]["ignoreNullValues"] == "false"
    assert manifest["spec"]["fallback"]["replicas"] >= 1


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    autoscaler = recommend(needs(growth=0.4)).autoscaler
    path = tmp_path / "scaledobject.yaml"
    path.write_text(yaml.safe_dump(scaled_object(autoscaler, Place())))
    assert declared([str(path)]) == autoscaler


def read(folder: Path, kind: str, spec: str) -> Autoscaler:
    path = folder / "scaler.yaml"
    path.write_text(f"apiVersion: any/v1\nkind: {kind}\nmetadata: {{name: llama}}\nspec: {spec}\n")
    return declared([str(path)])


TRIGGER = "{type: prometheus, metadata: {query: 'sum(vllm:num_requests_waiting)', threshold: '5'}}"


def test_defaults_of_a_scaled_object_are_kedas(tmp_path: Path) -> None:
    found = read(tmp_path, "ScaledObject", f"{{triggers: [{TRIGGER}]}}")
    assert found.keda == KedaSettings()
    assert found.hpa == HpaSettings(targets=(Target(Gauge.WAITING, 5),), max_replicas=100)


def test_a_scaled_object_is_read_whole(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        "ScaledObject",
        "{minReplicaCount: 2, maxReplicaCount: 9, idleReplicaCount: 0, pollingInterval: 10, cooldownPeriod: 0,"
        " fallback: {failureThreshold: 2, replicas: 4, behavior: currentReplicas},"
        " advanced: {horizontalPodAutoscalerConfig: {behavior: {scaleDown: {selectPolicy: Disabled}}}},"
        " triggers: [{type: prometheus, metricType: Value, useCachedMetrics: true, metadata: {threshold: '2.5',"
        " query: 'sum(vllm:num_requests_waiting{a=\"b+c\"}) + sum(vllm:num_requests_running) by (model_name)',"
        " activationThreshold: '3', ignoreNullValues: 'false'}}]}",
    )
    assert found.hpa.targets == (Target(Gauge.IN_FLIGHT, 2.5, TargetKind.VALUE),)
    assert (found.hpa.min_replicas, found.hpa.max_replicas) == (2, 9)
    assert found.hpa.behavior is not None
    assert found.hpa.behavior.down.select == "Disabled"
    keda = found.keda
    assert keda is not None
    assert keda.fallback is not None
    assert (keda.idle_replicas, keda.polling_interval_s, keda.cooldown_s) == (0, 10.0, 0.0)
    assert (keda.activation_threshold, keda.ignore_null_values, keda.use_cached_metrics) == (3.0, False, True)
    assert keda.fallback.behavior is FallbackBehavior.CURRENT


def test_an_hpa_is_read(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        "HorizontalPodAutoscaler",
        "{minReplicas: 2, maxReplicas: 6, metrics: [{type: Pods, pods: {metric: {name: vllm_num_requests_waiting},"
        " target: {type: AverageValue, averageValue: 2500m}}}, {type: External, external: {metric: {name:"
        " vllm_num_requests_running}, target: {type: Value, value: '30'}}}],"
        " behavior: {scaleUp: {policies: [{type: Pods, value: 1, periodSeconds: 60}], tolerance: 0.05}}}",
    )
    assert found.keda is None
    assert found.hpa.targets == (
        Target(Gauge.WAITING, 2.5, TargetKind.PODS),
        Target(Gauge.RUNNING, 30, TargetKind.VALUE),
    )
    assert found.hpa.tolerances.up == 0.05


@pytest.mark.parametrize(
    ("kind", "spec", "words"),
    [
        ("ScaledObject", "{triggers: [{type: cron}]}", "cron"),
        ("ScaledObject", "{triggers: []}", "needs a metric"),
        (
            "ScaledObject",
            TRIGGER.replace("{type", "{metricType: Pods, type").join(("{triggers: [", "]}")),
            "no metricType",
        ),
        ("ScaledObject", f"{{maxReplicaCount: 1.5, triggers: [{TRIGGER}]}}", "whole number"),
        ("ScaledObject", f"{{maxReplicaCount: .inf, triggers: [{TRIGGER}]}}", "whole number"),
        ("ScaledObject", f"{{fallback: {{behavior: hope}}, triggers: [{TRIGGER}]}}", "hope"),
        ("ScaledObject", "{triggers: [{type: prometheus, metadata: {query: up}}]}", "no threshold"),
        ("ScaledObject", TRIGGER.replace("sum(", "avg(").join(("{triggers: [", "]}")), "not simulated"),
        ("ScaledObject", TRIGGER.replace("sum(", "2 * sum(").join(("{triggers: [", "]}")), "not simulated"),
        ("ScaledObject", TRIGGER.replace("'5'", ".nan").join(("{triggers: [", "]}")), "finite"),
        ("HorizontalPodAutoscaler", "{maxReplicas: 3, metrics: [{type: Resource, resource: {name: cpu}}]}", "Resource"),
        ("Deployment", "{}", "has 0"),
    ],
)
def test_what_the_simulator_does_not_know_is_refused_with_its_place(
    tmp_path: Path, kind: str, spec: str, words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        read(tmp_path, kind, spec)
