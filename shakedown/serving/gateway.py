"""The gateway in front of two pools: rendered with the pools' addresses, deployed, and handed out as a URL."""

import copy
import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from shakedown.cluster.api import Cluster
from shakedown.cluster.objects import Manifest
from shakedown.errors import ClusterUnreachable, SetupError
from shakedown.serving.configuration import only
from shakedown.serving.deployment import ServingDeployment, remove_namespace
from shakedown.serving.reach import await_answer
from shakedown.serving.rendering import MANIFESTS, render
from shakedown.settings import RunSettings
from shakedown.waiting import wait_until

NAMESPACE = "llm-gateway"
SELECTOR = "app=gateway"
ROLLOUT_LIMIT_S = 60.0

Change = Callable[[str], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """A live gateway."""

    cluster: Cluster
    url: str

    async def remove(self) -> None:
        await remove_namespace(self.cluster, NAMESPACE)


async def deploy_gateway(
    interactive: ServingDeployment,
    batch: ServingDeployment,
    settings: RunSettings,
    *,
    change: Change | None = None,
    replicas: int = 1,
) -> Gateway:
    """Deploy the gateway before the two pools and wait until it serves.

    `change` alters the text of nginx.conf. Raises SetupError when it alters nothing.
    """
    cluster = interactive.cluster
    hosted = settings.engine in ("twin", "cpu")
    folder = "overlays/hosted" if hosted else "base"
    rendered = await render(MANIFESTS / "gateway" / folder, settings.kubectl)
    manifests = routed(changed(rendered, change), interactive=interactive, batch=batch)
    deployment = only(manifests, "Deployment")
    deployment["spec"]["replicas"] = replicas
    restart_for(deployment, only(manifests, "ConfigMap"))
    applied = await cluster.apply(manifests)
    name = deployment["metadata"]["name"]
    await wait_until(
        "the rollout of the gateway",
        lambda: cluster.deployment(NAMESPACE, name),
        lambda seen: seen.rolled_out,
        within_s=ROLLOUT_LIMIT_S,
        tolerate=(ClusterUnreachable,),
    )
    # A pod on its way out still answers, with the configuration that it had.
    await wait_until(
        "the end of older pods of the gateway",
        lambda: cluster.pods(NAMESPACE, SELECTOR),
        lambda pods: len(pods) == replicas,
        within_s=ROLLOUT_LIMIT_S,
    )
    service = only(applied, "Service")["spec"]
    url = f"http://{service['clusterIP']}:{service['ports'][0]['port']}"
    await await_answer(f"{url}/gateway-health")
    return Gateway(cluster=cluster, url=url)


def changed(manifests: list[Manifest], change: Change | None) -> list[Manifest]:
    """The manifests with another nginx.conf. Raises SetupError for a change that finds nothing to change."""
    if change is None:
        return manifests
    result = copy.deepcopy(manifests)
    data = only(result, "ConfigMap")["data"]
    text = change(data["nginx.conf"])
    if text == data["nginx.conf"]:
        raise SetupError("the change leaves nginx.conf as it is; the lines that it looks for are gone")
    data["nginx.conf"] = text
    return result


def restart_for(deployment: Manifest, configuration: Manifest) -> None:
    """Tie the pods to what they are configured with: nginx reads its file once, whatever becomes of its ConfigMap."""
    digest = hashlib.sha256(repr(sorted(configuration["data"].items())).encode()).hexdigest()
    metadata = deployment["spec"]["template"].setdefault("metadata", {})
    metadata.setdefault("annotations", {})["shakedown.dev/configuration"] = digest[:12]


def routed(manifests: list[Manifest], *, interactive: ServingDeployment, batch: ServingDeployment) -> list[Manifest]:
    """The gateway's manifests in a namespace of their own, its upstreams set to the pools' Services."""
    addresses = {"INTERACTIVE_POOL": interactive.service_host, "BATCH_POOL": batch.service_host}
    result: list[Manifest] = [
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": NAMESPACE, "labels": {"app.kubernetes.io/managed-by": "shakedown"}},
        }
    ]
    for manifest in copy.deepcopy(manifests):
        manifest["metadata"]["namespace"] = NAMESPACE
        for key, text in manifest.get("data", {}).items():
            for word, host in addresses.items():
                text = text.replace(word, host)
            manifest["data"][key] = text
        result.append(manifest)
    return result
