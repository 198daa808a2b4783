"""Pods that do nothing but be there: they hold a GPU, or stand for clients whose existence is what counts."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from shakedown.cluster.objects import GPU_RESOURCE, Manifest
from shakedown.serving.configuration import engine_container
from shakedown.serving.deployment import ServingDeployment
from shakedown.waiting import wait_until

HOSTED_IMAGE = "shakedown.local/pause:1"
THERE_WITHIN_S = 60.0
GONE_WITHIN_S = 60.0


@asynccontextmanager
async def placeholders(engine: ServingDeployment, app: str, count: int, *, gpus: int = 0) -> AsyncIterator[None]:
    """Keep `count` pods labelled `app` beside an engine, each with so many GPUs; they are gone when it returns.

    Raises WaitTimeout when there is no place for them.
    """
    await engine.cluster.apply([_deployment(engine, app, count, gpus)])
    try:
        await wait_until(
            f"{count} pods of {app}",
            lambda: engine.cluster.pods(engine.namespace, f"app={app}"),
            lambda pods: sum(pod.ready for pod in pods) == count,
            within_s=THERE_WITHIN_S,
        )
        yield
    finally:
        await engine.cluster.delete("apps/v1", "Deployment", engine.namespace, app)
        await wait_until(
            f"the end of the pods of {app}",
            lambda: engine.cluster.pods(engine.namespace, f"app={app}"),
            lambda pods: not pods,
            within_s=GONE_WITHIN_S,
        )


def _deployment(engine: ServingDeployment, app: str, replicas: int, gpus: int) -> Manifest:
    container: Manifest = {"name": "placeholder", "image": HOSTED_IMAGE, "imagePullPolicy": "IfNotPresent"}
    if gpus:
        container["resources"] = {"limits": {GPU_RESOURCE: str(gpus)}}
    if engine.settings.engine == "gpu":
        container.update(image=engine_container(engine.rendered.deployment)["image"], command=["sleep", "infinity"])
    labels = {"app": app}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": app, "namespace": engine.namespace, "labels": labels},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"terminationGracePeriodSeconds": 0, "containers": [container]},
            },
        },
    }
