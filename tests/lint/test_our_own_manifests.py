"""What Shakedown ships for autoscaling is free of what its linter finds, each way of scaling by itself."""

from pathlib import Path

import pytest
import yaml

from shakedown.serving.lint.check import check
from shakedown.serving.lint.findings import Assumptions
from shakedown.serving.lint.loading import load
from shakedown.serving.rendering import MANIFESTS

AUTOSCALING = MANIFESTS / "autoscaling"
WAYS = {
    "KEDA": [AUTOSCALING / "scaledobject.yaml"],
    "adapter, pods metric": [AUTOSCALING / "adapter"],
}


@pytest.mark.parametrize("files", WAYS.values(), ids=WAYS.keys())
def test_a_way_of_scaling_has_no_finding(files: list[Path]) -> None:
    assert check(load([str(file) for file in files]), Assumptions()) == ()


def test_both_ways_at_once_are_refused() -> None:
    found = check(load([str(AUTOSCALING / "scaledobject.yaml"), str(AUTOSCALING / "adapter")]), Assumptions())
    assert [finding.rule for finding in found] == ["two-autoscalers"]


def test_a_metric_that_the_adapters_rules_do_not_give_is_found(tmp_path: Path) -> None:
    hpa = yaml.safe_load((AUTOSCALING / "adapter" / "hpa.yaml").read_text())
    hpa["spec"]["metrics"][0]["pods"]["metric"]["name"] = "vllm_kv_cache_usage_perc"
    (tmp_path / "hpa.yaml").write_text(yaml.safe_dump(hpa))
    found = check(load([str(tmp_path), str(AUTOSCALING / "adapter" / "values.yaml")]), Assumptions())
    assert "metric-not-served" in [finding.rule for finding in found]


def test_both_kinds_scale_alike() -> None:
    """The plain HPA has the bounds and the patience of the ScaledObject."""
    scaled = yaml.safe_load((AUTOSCALING / "scaledobject.yaml").read_text())["spec"]
    plain = yaml.safe_load((AUTOSCALING / "adapter" / "hpa.yaml").read_text())["spec"]
    assert plain["behavior"] == scaled["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert (plain["minReplicas"], plain["maxReplicas"]) == (scaled["minReplicaCount"], scaled["maxReplicaCount"])
