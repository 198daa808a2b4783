"""GPUs that somebody else holds."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from shakedown.cluster.api import Cluster
from shakedown.cluster.objects import GPU_RESOURCE, Manifest
from shakedown.serving.deployment import ServingDeployment
from shakedown.serving.placeholders import placeholders

NAME = "gpu-placeholder"


@asynccontextmanager
async def occupied_gpus(engine: ServingDeployment, total: int, *, leave: int) -> AsyncIterator[int]:
    """Hold all of the cluster's `total` GPUs but those in use and `leave` more; yields how many are held.

    Raises WaitTimeout when the placeholders find no GPUs, as where somebody else takes them at the same time.
    """
    count = max(0, total - await gpus_in_use(engine.cluster) - leave)
    async with placeholders(engine, NAME, count, gpus=1):
        yield count


async def gpus_in_use(cluster: Cluster) -> int:
    """GPUs that pods with a node, and not over yet, ask for."""
    pods = await cluster.list_objects("v1", "Pod")
    return sum(_gpus_of(pod) for pod in pods if pod["spec"].get("nodeName") and not _is_over(pod))


def _is_over(pod: Manifest) -> bool:
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def _gpus_of(pod: Manifest) -> int:
    limits = [container.get("resources", {}).get("limits", {}) for container in pod["spec"]["containers"]]
    return sum(int(each.get(GPU_RESOURCE, 0)) for each in limits)
