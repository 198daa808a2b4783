"""A vLLM deployment on a cluster: value in, live handle out."""

import copy
from dataclasses import dataclass

from shakedown.cluster.api import Cluster
from shakedown.cluster.objects import Deployment, Manifest, Pod
from shakedown.engine.metrics import read_metrics
from shakedown.errors import ClusterUnreachable, ManifestRejected, SetupError
from shakedown.serving.boot import BootDiagnosis, BootState, diagnose
from shakedown.serving.configuration import (
    Serving,
    configured,
    differences,
    engine_container,
    flag_value,
    only,
    startup_budget_s,
)
from shakedown.serving.rendering import render, vllm_base, vllm_overlay
from shakedown.settings import RunSettings
from shakedown.waiting import wait_until

LAST_WORDS = 12
NAMESPACE_GONE_LIMIT_S = 90.0
# Scheduling, the sandbox and a busy machine come on top of the container's own start.
ROLLOUT_MARGIN_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """One configuration as manifests, with what makes it differ from the production base."""

    serving: Serving
    manifests: tuple[Manifest, ...]
    changed_by_overlay: tuple[str, ...]

    @property
    def deployment(self) -> Manifest:
        return only(self.manifests, "Deployment")

    @property
    def namespace(self) -> str:
        return str(self.deployment["metadata"]["namespace"])


async def render_serving(serving: Serving, settings: RunSettings) -> Rendered:
    """Render the overlay of the run's engine in this configuration."""
    base = await render(vllm_base(), settings.kubectl)
    overlay = await render(vllm_overlay(settings.engine), settings.kubectl)
    manifests = configured(overlay, serving, settings)
    return Rendered(serving=serving, manifests=tuple(manifests), changed_by_overlay=differences(base, overlay))


class ServingDeployment:
    """A handle on one deployed configuration."""

    def __init__(self, cluster: Cluster, rendered: Rendered, settings: RunSettings, service_ip: str) -> None:
        self.cluster, self.rendered, self.settings = cluster, rendered, settings
        deployment = rendered.deployment
        self.namespace = rendered.namespace
        self.name: str = deployment["metadata"]["name"]
        labels = deployment["spec"]["selector"]["matchLabels"]
        self.selector = ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
        container = engine_container(deployment)
        args = container.get("args", [])
        self.model = flag_value(args, "--served-model-name") or flag_value(args, "--model") or ""
        self.port = int(flag_value(args, "--port") or 8000)
        self.startup_budget_s = startup_budget_s(container)
        self.service_host = f"{only(rendered.manifests, 'Service')['metadata']['name']}.{self.namespace}.svc"
        self.url = settings.service_url or f"http://{service_ip}:{self.port}"

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    async def pods(self) -> tuple[Pod, ...]:
        """All pods of the deployment, those on their way out included."""
        return await self.cluster.pods(self.namespace, self.selector)

    async def ready_pods(self) -> tuple[Pod, ...]:
        return tuple(pod for pod in await self.pods() if pod.ready)

    async def engine_urls(self) -> dict[str, str]:
        """Base URL of every engine that has an address, by pod name."""
        return {pod.name: f"http://{pod.ip}:{self.port}" for pod in await self.pods() if pod.ip}

    async def ready_engine_urls(self) -> dict[str, str]:
        """The same of the pods that serve; one that is still loading has no metrics, and that is no outage."""
        return {pod.name: f"http://{pod.ip}:{self.port}" for pod in await self.ready_pods()}

    async def total(self, *metrics: str) -> float:
        """The sum of engine metrics over the pods that serve; one that an engine has not exported yet counts as 0."""
        seen = [await read_metrics(url) for url in (await self.ready_engine_urls()).values()]
        return sum(values.get(metric, 0.0) for values in seen for metric in metrics)

    async def status(self) -> Deployment:
        return await self.cluster.deployment(self.namespace, self.name)

    async def live_manifest(self) -> Manifest:
        """The Deployment as the API server has it. Raises SetupError if it is gone."""
        live = await self.cluster.read("apps/v1", "Deployment", self.namespace, self.name)
        if live is None:
            raise SetupError(f"the Deployment {self} is gone")
        return live

    async def drift(self) -> tuple[str, ...]:
        """Where the live spec is not what the manifests mean, one line each.

        The manifests' meaning, defaults included, comes from the API server: a dry-run creation under another name.
        """
        wanted = copy.deepcopy(self.rendered.deployment)
        wanted["metadata"]["name"] = f"{self.name}-as-rendered"
        expected = await self.cluster.create(wanted, dry_run=True)
        live = await self.live_manifest()
        return differences([_spec_only(expected)], [_spec_only(live)])

    async def boot(self) -> tuple[BootDiagnosis, ...]:
        """How far each pod is on its way to Ready, and why not."""
        events = await self.cluster.events(self.namespace)
        return tuple(diagnose(pod, events) for pod in await self.pods())

    async def await_rolled_out(self, within_s: float | None = None) -> Deployment:
        """Wait until every replica of the newest spec serves.

        Raises SetupError at once when a pod can never start by waiting (a crash, a probe kill), naming the reason.
        """
        limit_s = self.startup_budget_s + ROLLOUT_MARGIN_S if within_s is None else within_s

        async def observe() -> tuple[Deployment, tuple[BootDiagnosis, ...]]:
            boots = await self.boot()
            for boot in boots:
                if boot.is_boot_loop or boot.state is BootState.IMAGE:
                    raise SetupError(f"{self} cannot become Ready: {boot.sentence}{await self._last_words(boot)}")
            return await self.status(), boots

        status, _ = await wait_until(
            f"the rollout of {self}",
            observe,
            lambda seen: seen[0].rolled_out,
            within_s=limit_s,
            every_s=0.5,
            tolerate=(ClusterUnreachable,),
        )
        return status

    async def _last_words(self, boot: BootDiagnosis) -> str:
        """The end of a crashed container's log, where the reason stands."""
        if boot.state is not BootState.CRASH:
            return ""
        try:
            log = await self.cluster.logs(self.namespace, boot.pod, previous=True, tail_lines=LAST_WORDS)
        except ManifestRejected:
            return " (and that log is gone)"
        return f"; it ends with:\n{log.strip()}"

    async def restore(self, within_s: float | None = None) -> Deployment:
        """Apply the rendered manifests again and wait for the rollout."""
        await self.cluster.apply(self.rendered.manifests)
        return await self.await_rolled_out(within_s)


async def deploy(cluster: Cluster, rendered: Rendered, settings: RunSettings) -> ServingDeployment:
    """Apply a configuration and return its handle at once; waiting is the caller's choice."""
    await _await_not_terminating(cluster, rendered.namespace)
    await _ensure_token_secret(cluster, rendered)
    applied = await cluster.apply(rendered.manifests)
    service = only(applied, "Service")
    return ServingDeployment(cluster, rendered, settings, str(service["spec"].get("clusterIP", "")))


async def remove_namespace(cluster: Cluster, namespace: str) -> None:
    """Delete a namespace with all that is in it and wait until it is gone. Absence is no error.

    Its pods get no grace: nobody is served any more, and a loading engine would sit its grace period out.
    """
    await cluster.delete("v1", "Namespace", None, namespace)
    for pod in await cluster.pods(namespace):
        await cluster.delete("v1", "Pod", namespace, pod.name, grace_s=0)
    await _await_gone(cluster, namespace)


def _spec_only(deployment: Manifest) -> Manifest:
    return {"kind": "Deployment", "spec": deployment["spec"]}


async def _await_not_terminating(cluster: Cluster, namespace: str) -> None:
    found = await cluster.read("v1", "Namespace", None, namespace)
    if found is not None and found["status"]["phase"] == "Terminating":
        await _await_gone(cluster, namespace)


async def _await_gone(cluster: Cluster, namespace: str) -> None:
    await wait_until(
        f"the removal of namespace {namespace}",
        lambda: cluster.read("v1", "Namespace", None, namespace),
        lambda seen: seen is None,
        within_s=NAMESPACE_GONE_LIMIT_S,
    )


async def _ensure_token_secret(cluster: Cluster, rendered: Rendered) -> None:
    """The base reads a Hugging Face token. Without its Secret a pod waits for ever, so say it before it does."""
    if any(manifest["kind"] == "Secret" for manifest in rendered.manifests):
        return
    for name in _secrets_read(rendered.deployment):
        if await cluster.read("v1", "Secret", rendered.namespace, name) is None:
            raise SetupError(
                f"namespace {rendered.namespace} has no Secret {name}: create it with "
                f"kubectl -n {rendered.namespace} create secret generic {name} --from-literal=token=…"
            )


def _secrets_read(deployment: Manifest) -> tuple[str, ...]:
    sources = [entry.get("valueFrom", {}) for entry in engine_container(deployment).get("env", ())]
    return tuple(source["secretKeyRef"]["name"] for source in sources if "secretKeyRef" in source)
