"""A ScaledObject on a deployment, and what each link behind it says right now."""

import copy
from dataclasses import dataclass

import yaml

from shakedown.cluster.api import Cluster
from shakedown.cluster.objects import Manifest
from shakedown.cluster.reading import read_quantity
from shakedown.engine.metrics import REQUESTS_RUNNING, REQUESTS_WAITING
from shakedown.errors import HarnessError, ManifestRejected
from shakedown.serving.deployment import ServingDeployment
from shakedown.serving.monitoring import Prometheus
from shakedown.serving.rendering import MANIFESTS
from shakedown.waiting import wait_until

KEDA = "keda.sh/v1alpha1"
HPA = "autoscaling/v2"
EXTERNAL_METRICS = "external.metrics.k8s.io/v1beta1"
SCALED_OBJECT = MANIFESTS / "autoscaling" / "scaledobject.yaml"
HPA_WITHIN_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Autoscaling:
    """How a deployment is scaled; what is left out is as `manifests/autoscaling` says."""

    threshold: float
    """Waiting requests for each replica."""
    minimum: int = 1
    maximum: int = 3
    scale_down_window_s: int = 300
    """How long the queue must have been short before a replica goes, at time scale 1."""
    cooldown_s: int = 300
    """How long nothing must have been wanted before the last replica goes, where `minimum` is 0."""
    scale_up_pods: int = 2
    """At most so many new replicas in `scale_up_period_s`."""
    scale_up_period_s: int = 60
    wakes_for: str | None = None
    """Label selector of pods of the namespace: while one of them exists, one replica does."""
    query: str | None = None
    """Instead of the waiting requests of the deployment's namespace."""
    server: str | None = None
    """Instead of the Prometheus of the run."""
    absent_is_zero: bool = False
    """KEDA's own default, which hides a broken query."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HpaView:
    """What the HorizontalPodAutoscaler says of itself."""

    current: int
    desired: int
    metric: float | None
    """Average for each replica, as it last saw it; None where it sees none."""
    active: bool
    """False while it cannot compute anything."""
    why_inactive: str = ""
    why_limited: str = ""
    """Where it wants more or fewer than its bounds allow."""


class ScaledDeployment:
    """A deployment under a ScaledObject."""

    def __init__(self, engine: ServingDeployment, prometheus: Prometheus, name: str, wanted: Autoscaling) -> None:
        self.engine, self.prometheus, self.name, self.wanted = engine, prometheus, name, wanted
        self.query = wanted.query or waiting_requests(engine)

    @property
    def cluster(self) -> Cluster:
        return self.engine.cluster

    async def hpa(self) -> HpaView | None:
        """None until KEDA has made one."""
        found = await self.cluster.read(HPA, "HorizontalPodAutoscaler", self.engine.namespace, f"keda-hpa-{self.name}")
        return read_hpa(found) if found is not None else None

    async def metrics_api(self) -> float | None:
        """What the Kubernetes metrics API answers, as the HPA asks it; None where it has no such metric.

        Raises HarnessError when it does not answer.
        """
        return await self.cluster.external_metric(
            self.engine.namespace, "s0-prometheus", f"scaledobject.keda.sh/name={self.name}"
        )

    async def conditions(self) -> dict[str, str]:
        """The ScaledObject's conditions: type → "True", "False" or "Unknown", with the reason where it gives one."""
        found = await self.cluster.read(KEDA, "ScaledObject", self.engine.namespace, self.name)
        listed = (found or {}).get("status", {}).get("conditions", [])
        return {each["type"]: f"{each['status']} {each.get('reason', '')}".strip() for each in listed}

    async def remove(self) -> None:
        """Take the ScaledObject away, and with it the HPA; the replicas stay."""
        await self.cluster.delete(KEDA, "ScaledObject", self.engine.namespace, self.name)
        await wait_until("the end of the HPA", self.hpa, lambda seen: seen is None, within_s=HPA_WITHIN_S)


async def scale(engine: ServingDeployment, prometheus: Prometheus, wanted: Autoscaling) -> ScaledDeployment:
    """Put a deployment under a ScaledObject and wait until its HPA exists. Raises HarnessError without KEDA."""
    scaled = ScaledDeployment(engine, prometheus, engine.name.removesuffix("-deployment"), wanted)
    try:
        await engine.cluster.apply([scaled_object(scaled)])
    except ManifestRejected as refusal:
        raise HarnessError(f"the cluster takes no ScaledObject; is KEDA installed? {refusal}") from refusal
    await wait_until(
        f"the HPA of {engine}", scaled.hpa, lambda seen: seen is not None, within_s=HPA_WITHIN_S, every_s=0.25
    )
    return scaled


def waiting_requests(engine: ServingDeployment) -> str:
    """The query that scales one model's replicas: its own waiting requests and nobody else's."""
    return f'sum({REQUESTS_WAITING}{{namespace="{engine.namespace}", model_name="{engine.model}"}})'


def requests_in_flight(engine: ServingDeployment) -> str:
    """The query that keeps replicas below a share of their slots: what waits and what runs of one model."""
    return f"{waiting_requests(engine)} + {waiting_requests(engine).replace(REQUESTS_WAITING, REQUESTS_RUNNING)}"


def scaled_object(scaled: ScaledDeployment) -> Manifest:
    """The manifest of `manifests/autoscaling` for this deployment, at the run's time scale."""
    wanted, engine = scaled.wanted, scaled.engine
    manifest: Manifest = copy.deepcopy(yaml.safe_load(SCALED_OBJECT.read_text()))
    manifest["metadata"].update(name=scaled.name, namespace=engine.namespace)
    spec = manifest["spec"]
    spec["scaleTargetRef"]["name"] = engine.name
    spec.update(minReplicaCount=wanted.minimum, maxReplicaCount=wanted.maximum)
    spec["fallback"]["replicas"] = max(wanted.minimum, 1)
    spec.update(
        pollingInterval=_scaled_s(spec["pollingInterval"], engine), cooldownPeriod=_scaled_s(wanted.cooldown_s, engine)
    )
    behavior = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    up, down = behavior["scaleUp"]["policies"][0], behavior["scaleDown"]["policies"][0]
    up.update(value=wanted.scale_up_pods, periodSeconds=_scaled_s(wanted.scale_up_period_s, engine))
    down["periodSeconds"] = _scaled_s(down["periodSeconds"], engine)
    behavior["scaleDown"]["stabilizationWindowSeconds"] = _scaled_s(wanted.scale_down_window_s, engine)
    spec["triggers"][0]["metadata"].update(
        serverAddress=wanted.server or scaled.prometheus.address,
        query=scaled.query,
        threshold=f"{wanted.threshold:g}",
        ignoreNullValues="true" if wanted.absent_is_zero else "false",
    )
    if wanted.wakes_for is not None:
        wake = {"podSelector": wanted.wakes_for, "value": "1"}
        spec["triggers"].append({"type": "kubernetes-workload", "metadata": wake})
    return manifest


def read_hpa(found: Manifest) -> HpaView:
    """From the HorizontalPodAutoscaler as the API server has it."""
    status = found.get("status", {})
    conditions = {each["type"]: each for each in status.get("conditions", [])}
    active = conditions.get("ScalingActive", {})
    limited = conditions.get("ScalingLimited", {})
    average = next(
        (value for each in status.get("currentMetrics") or [] if (value := _current(each)) is not None), None
    )
    return HpaView(
        current=int(status.get("currentReplicas") or 0),
        desired=int(status.get("desiredReplicas") or 0),
        metric=read_quantity(str(average)) if average is not None else None,
        active=active.get("status") == "True",
        why_inactive="" if active.get("status") == "True" else str(active.get("message", "it has not computed yet")),
        why_limited=str(limited.get("message", "")) if limited.get("status") == "True" else "",
    )


def _current(metric: Manifest) -> object:
    """What a metric of the status is now; None where it has no value, or is a resource and not a queue."""
    kind = metric.get("type")
    current = metric.get(kind.lower(), {}).get("current", {}) if kind in ("External", "Pods", "Object") else {}
    return current.get("averageValue", current.get("value"))


def _scaled_s(seconds: int, engine: ServingDeployment) -> int:
    """At the run's time scale, in whole seconds, as Kubernetes takes no others."""
    return max(1, round(seconds * engine.settings.time_scale)) if seconds else 0
