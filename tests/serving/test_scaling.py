"""A ScaledObject is the one of the manifests with what the scenario wants, and the HPA is read as it speaks."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml

from shakedown.cluster.reading import read_quantity
from shakedown.serving.deployment import ServingDeployment
from shakedown.serving.monitoring import Prometheus, scraping_every
from shakedown.serving.rendering import MANIFESTS
from shakedown.serving.scaling import Autoscaling, ScaledDeployment, read_hpa, scaled_object

PROMETHEUS = Prometheus(url="http://10.0.0.1:9090", address="http://prometheus.llm-monitoring.svc:9090")


def scaled(wanted: Autoscaling, time_scale: float = 1.0) -> ScaledDeployment:
    engine = SimpleNamespace(
        namespace="llm-serving-abc",
        name="vllm-llama3-deployment",
        model="meta-llama/Meta-Llama-3-8B-Instruct",
        settings=SimpleNamespace(time_scale=time_scale),
    )
    return ScaledDeployment(cast(ServingDeployment, engine), PROMETHEUS, "vllm-llama3", wanted)


def test_the_query_counts_one_model_of_one_namespace() -> None:
    metadata = scaled_object(scaled(Autoscaling(threshold=5)))["spec"]["triggers"][0]["metadata"]
    assert metadata["query"] == (
        'sum(vllm:num_requests_waiting{namespace="llm-serving-abc", model_name="meta-llama/Meta-Llama-3-8B-Instruct"})'
    )
    assert metadata["threshold"] == "5"
    assert metadata["ignoreNullValues"] == "false"


def test_windows_and_periods_shrink_with_the_time_scale_and_counts_do_not() -> None:
    spec = scaled_object(scaled(Autoscaling(threshold=5, minimum=1, maximum=3), time_scale=0.2))["spec"]
    behavior = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert behavior["scaleDown"]["stabilizationWindowSeconds"] == 60
    assert behavior["scaleUp"]["policies"] == [{"type": "Pods", "value": 2, "periodSeconds": 12}]
    assert behavior["scaleUp"]["stabilizationWindowSeconds"] == 0
    assert (spec["pollingInterval"], spec["cooldownPeriod"]) == (3, 60)
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (1, 3)


def hpa(active: str, metrics: list[dict[str, Any]] | None) -> dict[str, Any]:
    condition = {"type": "ScalingActive", "status": active, "message": "unable to get external metric"}
    return {
        "status": {
            "currentReplicas": 1,
            "desiredReplicas": 3,
            "currentMetrics": metrics,
            "conditions": [condition],
        }
    }


def test_an_hpa_that_computes_tells_its_metric() -> None:
    metric = {"type": "External", "external": {"current": {"averageValue": "2500m"}, "metric": {"name": "s0"}}}
    seen = read_hpa(hpa("True", [metric]))
    assert (seen.current, seen.desired, seen.metric, seen.active) == (1, 3, 2.5, True)


def test_an_hpa_that_sees_nothing_says_why() -> None:
    seen = read_hpa(hpa("False", None))
    assert (seen.metric, seen.active, seen.why_inactive) == (None, False, "unable to get external metric")


def test_a_young_hpa_has_computed_nothing_yet() -> None:
    assert read_hpa({"status": {}}).why_inactive == "it has not computed yet"


@pytest.mark.parametrize(
    ("text", "value"), [("7", 7.0), ("2500m", 2.5), ("1k", 1000.0), ("2Gi", 2 * 1024.0**3), ("-3", -3.0), ("1e3", 1e3)]
)
def test_a_quantity_is_read_as_kubernetes_writes_it(text: str, value: float) -> None:
    assert read_quantity(text) == value


def test_a_scrape_never_outlasts_its_interval() -> None:
    text = (MANIFESTS / "monitoring" / "base" / "prometheus.yml").read_text()
    (manifest,) = scraping_every([{"kind": "ConfigMap", "data": {"prometheus.yml": text}}], 2)
    configuration = yaml.safe_load(manifest["data"]["prometheus.yml"])
    assert configuration["global"] == {"scrape_interval": "2s", "scrape_timeout": "2s"}
    assert configuration["scrape_configs"] == yaml.safe_load(text)["scrape_configs"]
