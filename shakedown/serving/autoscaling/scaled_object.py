"""A ScaledObject for KEDA from the settings of an autoscaler."""

from dataclasses import dataclass
from typing import Any

from shakedown.engine.metrics import REQUESTS_RUNNING, REQUESTS_WAITING
from shakedown.errors import UsageError
from shakedown.serving.autoscaling.behavior import Behavior, Rules
from shakedown.serving.autoscaling.hpa import Gauge, Target, TargetKind
from shakedown.serving.autoscaling.keda import Fallback, KedaSettings
from shakedown.serving.autoscaling.simulator import Autoscaler

SERIES = {
    Gauge.WAITING: (REQUESTS_WAITING,),
    Gauge.RUNNING: (REQUESTS_RUNNING,),
    Gauge.IN_FLIGHT: (REQUESTS_WAITING, REQUESTS_RUNNING),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What is scaled, and where its metrics are."""

    name: str = "vllm"
    namespace: str = "default"
    model_name: str | None = None
    """The label model_name of its series; None selects by the names of its pods."""
    prometheus_url: str = "http://prometheus.monitoring:9090"

    @property
    def selector(self) -> str:
        """So that another model's queue does not scale this one."""
        if self.model_name is not None:
            return f'{{namespace="{self.namespace}", model_name="{self.model_name}"}}'
        return f'{{namespace="{self.namespace}", pod=~"{self.name}-.*"}}'


def scaled_object(autoscaler: Autoscaler, place: Place) -> dict[str, Any]:
    """The object, ready for `kubectl apply`. An autoscaler that is a plain HPA gets KEDA's defaults.

    Raises UsageError for a metric of single pods.
    """
    hpa, keda = autoscaler.hpa, autoscaler.keda or KedaSettings(min_replicas=autoscaler.hpa.min_replicas)
    spec: dict[str, Any] = {
        "scaleTargetRef": {"name": place.name},
        "minReplicaCount": keda.min_replicas,
        "maxReplicaCount": hpa.max_replicas,
    }
    if keda.fallback is not None:
        spec["fallback"] = _fallback(keda.fallback)
    if hpa.behavior is not None:
        spec["advanced"] = {"horizontalPodAutoscalerConfig": {"behavior": _behavior(hpa.behavior)}}
    spec["triggers"] = [_trigger(target, keda, place) for target in hpa.targets]
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": {"name": place.name, "namespace": place.namespace},
        "spec": spec,
    }


def _fallback(fallback: Fallback) -> dict[str, Any]:
    return {
        "failureThreshold": fallback.failure_threshold,
        "replicas": fallback.replicas,
        "behavior": fallback.behavior.value,
    }


def _trigger(target: Target, keda: KedaSettings, place: Place) -> dict[str, Any]:
    if target.kind is TargetKind.PODS:
        raise UsageError("KEDA has no metric of single pods; an HPA with an adapter has")
    query = " + ".join(f"sum({name}{place.selector})" for name in SERIES[target.gauge])
    return {
        "type": "prometheus",
        "metricType": target.kind.value,
        "metadata": {
            "serverAddress": place.prometheus_url,
            "query": query,
            "threshold": f"{target.threshold:g}",
            "ignoreNullValues": "true" if keda.ignore_null_values else "false",
        },
    }


def _behavior(behavior: Behavior) -> dict[str, Any]:
    return {"scaleUp": _rules(behavior.up), "scaleDown": _rules(behavior.down)}


def _rules(rules: Rules) -> dict[str, Any]:
    written: dict[str, Any] = {
        "selectPolicy": rules.select.value,
        "policies": [
            {"type": policy.kind.value, "value": policy.value, "periodSeconds": policy.period_s}
            for policy in rules.policies
        ],
    }
    return written if rules.window_s is None else {"stabilizationWindowSeconds": rules.window_s, **written}
