"""An autoscaling loop as it is found in a cluster, whoever made it: a ScaledObject or a HorizontalPodAutoscaler.

Everything is asked by way of the API server, so that whoever can use kubectl can ask: engines and Prometheus by its
proxy, metrics by its aggregated APIs.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from shakedown.cluster.api import Cluster
from shakedown.cluster.objects import Manifest
from shakedown.errors import UsageError
from shakedown.serving.boot import BootDiagnosis, BootState, diagnose
from shakedown.serving.lint import autoscaling, metric_names
from shakedown.serving.lint.engines import Engine
from shakedown.serving.lint.findings import Assumptions, Finding, Severity
from shakedown.serving.lint.tree import at, labels_of, mappings, number, text
from shakedown.serving.lint.world import Item, World
from shakedown.serving.monitoring import Prometheus, prometheus_at
from shakedown.serving.scaling import HPA, KEDA, HpaView, read_hpa

DEFAULT_PORT = 8000
KEDA_NAMESPACE = "keda"
"""Where an address without a namespace is looked up."""
PAUSED = ("autoscaling.keda.sh/paused", "autoscaling.keda.sh/paused-replicas")
RULES = (*autoscaling.RULES, *metric_names.RULES)
SCALES = ("Deployment", "StatefulSet")


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveLoop:
    """One autoscaler, what it scales, and whom it asks."""

    cluster: Cluster
    scaler: Manifest
    workload: Manifest
    beside: tuple[Manifest, ...] = ()
    """The other autoscalers of the namespace."""
    prometheus_url: str | None = None
    """How we reach Prometheus, where the API server does not."""

    @property
    def kind(self) -> str:
        return str(self.scaler["kind"])

    @property
    def name(self) -> str:
        return str(self.scaler["metadata"]["name"])

    @property
    def namespace(self) -> str:
        return str(self.scaler["metadata"]["namespace"])

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"

    @property
    def paused_by(self) -> str:
        """The annotation by which KEDA is told to do nothing; empty if there is none."""
        annotations = labels_of(at(self.scaler, "metadata", "annotations"))
        return next((name for name in PAUSED if name in annotations), "")

    @property
    def scales(self) -> str:
        return f"{self.workload['kind']} {self.workload['metadata']['name']}"

    @property
    def query(self) -> str:
        """What a ScaledObject asks Prometheus."""
        return text(at(self._trigger()[1], "metadata", "query"))

    @property
    def threshold(self) -> float:
        return number(at(self._trigger()[1], "metadata", "threshold")) or 0.0

    @property
    def asks(self) -> str | None:
        """The address of Prometheus that a ScaledObject names; None for an HPA, whose adapter knows it."""
        return text(at(self._trigger()[1], "metadata", "serverAddress")) if self.kind == "ScaledObject" else None

    @property
    def prometheus(self) -> Prometheus:
        """The one at that address, or as it was said how we reach it."""
        if self.prometheus_url is not None:
            return Prometheus(url=self.prometheus_url, address=self.asks or "")
        return prometheus_at(self.asks or "", self.cluster, KEDA_NAMESPACE)

    @property
    def slots(self) -> int | None:
        """Requests that an engine runs at once at most; None where it is not said."""
        engine = self._engine
        found = engine.number("--max-num-seqs") if engine else None
        return None if found is None else int(found)

    def findings(self) -> tuple[Finding, ...]:
        """What the linter says of the autoscaler and the engine as they are declared: it may work only now."""
        found = dict.fromkeys(each for rule in RULES for each in rule.findings(self._world(), Assumptions()))
        return tuple(sorted(found, key=lambda each: each.severity is not Severity.ERROR))

    async def boot(self) -> tuple[BootDiagnosis, ...]:
        selector = ",".join(f"{key}={value}" for key, value in sorted(self._selector().items()))
        pods, events = await asyncio.gather(
            self.cluster.pods(self.namespace, selector), self.cluster.events(self.namespace)
        )
        return tuple(diagnose(pod, events) for pod in pods if pod.deletion_requested_at is None)

    async def expositions(self) -> Sequence[str]:
        """The /metrics text of each Ready engine."""
        ready = [boot.pod for boot in await self.boot() if boot.state is BootState.READY]
        engine = self._engine
        port = int(engine.number("--port") or DEFAULT_PORT) if engine else DEFAULT_PORT
        return await asyncio.gather(
            *(self.cluster.get_through(self.namespace, "pods", pod, port, "/metrics") for pod in ready)
        )

    async def metrics_api(self) -> float | None:
        """What the Kubernetes metrics API answers, as the HPA asks it; None where it has no such metric."""
        if self.kind == "ScaledObject":
            position = self._trigger()[0]
            return await self.cluster.external_metric(
                self.namespace, f"s{position}-prometheus", f"scaledobject.keda.sh/name={self.name}"
            )
        metric = _queue_metrics(self.scaler)[0]
        asked = at(metric, metric["type"].lower(), "metric")
        if metric["type"] == "Pods":
            return await self.cluster.pods_metric(self.namespace, text(at(asked, "name")))
        labels = labels_of(at(asked, "selector", "matchLabels"))
        selector = ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
        return await self.cluster.external_metric(self.namespace, text(at(asked, "name")), selector)

    async def hpa(self) -> HpaView | None:
        name = text(at(self.scaler, "status", "hpaName")) or f"keda-hpa-{self.name}"
        found = await self.cluster.read(
            HPA, "HorizontalPodAutoscaler", self.namespace, name if self.kind == "ScaledObject" else self.name
        )
        return read_hpa(found) if found is not None else None

    @property
    def _engine(self) -> Engine | None:
        return next((placed.engine for placed in self._world().engines()), None)

    def _world(self) -> World:
        objects = (self.scaler, self.workload, *self.beside)
        return World(tuple(Item("the cluster", each, self.namespace) for each in objects))

    def _selector(self) -> dict[str, str]:
        return labels_of(at(self.workload, "spec", "selector", "matchLabels"))

    def _trigger(self) -> tuple[int, Manifest]:
        """The first trigger that asks Prometheus, and its position among all of them."""
        return _prometheus_triggers(self.scaler)[0]


def _why_not_one(namespace: str, name: str | None, scalers: Sequence[Manifest], *, several: bool) -> str:
    if not scalers:
        return f"namespace {namespace} has no ScaledObject and no HorizontalPodAutoscaler"
    there = ", ".join(f"{each['kind']} {each['metadata']['name']}" for each in scalers)
    if several:
        return f"namespace {namespace} has several autoscalers: {there}; name one"
    return f"no autoscaler of namespace {namespace} is named {name} or scales it; there are: {there}"


async def find_loop(
    cluster: Cluster, namespace: str, name: str | None = None, prometheus_url: str | None = None
) -> LiveLoop:
    """The autoscaler of that name, or the one that scales a workload of that name; None: the only one there is.

    Raises UsageError where there is none, or several, or one that asks no queue.
    """
    scalers = await _scalers(cluster, namespace)
    chosen = [each for each in scalers if name in (None, each["metadata"]["name"], _target(each))]
    if len(chosen) != 1:
        raise UsageError(_why_not_one(namespace, name, scalers, several=bool(chosen)))
    scaler = chosen[0]
    if scaler["kind"] == "ScaledObject" and not _prometheus_triggers(scaler):
        raise UsageError(f"ScaledObject {scaler['metadata']['name']} has no trigger that asks Prometheus")
    if scaler["kind"] != "ScaledObject" and not _queue_metrics(scaler):
        raise UsageError(f"HorizontalPodAutoscaler {scaler['metadata']['name']} has no External or Pods metric")
    kind = text(at(scaler, "spec", "scaleTargetRef", "kind")) or "Deployment"
    workload = await cluster.read("apps/v1", kind, namespace, _target(scaler)) if kind in SCALES else None
    if workload is None:
        raise UsageError(
            f"{scaler['kind']} {scaler['metadata']['name']} scales {kind} {_target(scaler)}, which is not there"
        )
    return LiveLoop(
        cluster=cluster,
        scaler=scaler,
        workload={"apiVersion": "apps/v1", "kind": kind, **workload},
        beside=tuple(each for each in scalers if each is not scaler),
        prometheus_url=prometheus_url,
    )


async def _scalers(cluster: Cluster, namespace: str) -> list[Manifest]:
    """ScaledObjects, and the HPAs that are not theirs."""
    made = await cluster.list_objects(KEDA, "ScaledObject", namespace) if await cluster.serves(KEDA) else []
    plain = [
        each
        for each in await cluster.list_objects(HPA, "HorizontalPodAutoscaler", namespace)
        if not any(owner.get("kind") == "ScaledObject" for owner in mappings(at(each, "metadata", "ownerReferences")))
    ]
    return made + plain


def _target(scaler: Manifest) -> str:
    return text(at(scaler, "spec", "scaleTargetRef", "name"))


def _prometheus_triggers(scaler: Manifest) -> list[tuple[int, Manifest]]:
    triggers = enumerate(mappings(at(scaler, "spec", "triggers")))
    return [(position, trigger) for position, trigger in triggers if trigger.get("type") == "prometheus"]


def _queue_metrics(scaler: Manifest) -> list[Manifest]:
    return [each for each in mappings(at(scaler, "spec", "metrics")) if each.get("type") in ("External", "Pods")]
