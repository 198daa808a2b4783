"""GPUs that somebody else holds: placeholder pods that ask for them and do nothing."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from shakedown.cluster.api import Cluster
from shakedown.cluster.objects import GPU_RESOURCE, Manifest
from shakedown.serving.configuration import engine_container
from shakedown.serving.deployment import ServingDeployment
from shakedown.waiting import wait_until

NAME = "gpu-placeholder"
LABELS = {"app": NAME}
HOSTED_IMAGE = "shakedown.local/pause:1"
TAKEN_WITHIN_S = 60.0
GONE_WITHIN_S = 60.0


@asynccontextmanager
async def occupied_gpus(engine: ServingDeployment, total: int, *, leave: int) -> AsyncIterator[int]:
    """Hold all of the cluster's `total` GPUs but those in use and `leave` more; yields how many are held.

    Raises WaitTimeout when the placeholders find no GPUs, as where somebody else takes them at the same time.
    """
    count = max(0, total - await gpus_in_use(engine.cluster) - leave)
    await engine.cluster.apply([_placeholder(engine, count)])
    try:
        await wait_until(
            f"{count} GPUs taken by placeholders",
            lambda: engine.cluster.pods(engine.namespace, f"app={NAME}"),
            lambda pods: sum(pod.ready for pod in pods) == count,
            within_s=TAKEN_WITHIN_S,
        )
        yield count
    finally:
        await engine.cluster.delete("apps/v1", "Deployment", engine.namespace, NAME)
        await wait_until(
            "the end of the placeholders",
            lambda: engine.cluster.pods(engine.namespace, f"app={NAME}"),
            lambda pods: not pods,
            within_s=GONE_WITHIN_S,
        )


async def gpus_in_use(cluster: Cluster) -> int:
    """GPUs that pods with a node, and not over yet, ask for."""
    pods = await cluster.list_objects("v1", "Pod")
    return sum(_gpus_of(pod) for pod in pods if pod["spec"].get("nodeName") and not _is_over(pod))


def _is_over(pod: Manifest) -> bool:
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def _gpus_of(pod: Manifest) -> int:
    limits = [container.get("resources", {}).get("limits", {}) for container in pod["spec"]["containers"]]
    return sum(int(each.get(GPU_RESOURCE, 0)) for each in limits)


def _placeholder(engine: ServingDeployment, replicas: int) -> Manifest:
    container: Manifest = {
        "name": "placeholder",
        "image": HOSTED_IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "resources": {"limits": {GPU_RESOURCE: "1"}},
    }
    if engine.settings.engine == "gpu":
        container.update(image=engine_container(engine.rendered.deployment)["image"], command=["sleep", "infinity"])
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": NAME, "namespace": engine.namespace, "labels": LABELS},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": LABELS},
            "template": {
                "metadata": {"labels": LABELS},
                "spec": {"terminationGracePeriodSeconds": 0, "containers": [container]},
            },
        },
    }
