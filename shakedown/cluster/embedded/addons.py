"""What an autoscaling loop needs in a cluster besides Kubernetes: Prometheus to ask, and KEDA to ask it.

Prometheus comes as an image only, for the manifests to deploy as they do on any cluster. KEDA is installed as its own
manifests say, with what takes long on purpose taken out: it serves one short-lived cluster.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from shakedown.cluster.embedded import build, images
from shakedown.cluster.embedded.images import Image
from shakedown.cluster.embedded.layout import INFRASTRUCTURE_LABEL
from shakedown.cluster.embedded.phases import Phases
from shakedown.errors import CommandFailed
from shakedown.process import run
from shakedown.waiting import wait_until

PROGRAMS = ("prometheus", "keda", "keda-adapter")
KEDA_MODULE = "github.com/kedacore/keda/v2"
KEDA_DEPLOYMENTS = ("keda-operator", "keda-metrics-apiserver")
METRICS_API = "v1beta1.external.metrics.k8s.io"
LOCAL_IMAGES = {"keda-operator": images.KEDA_IMAGE, "keda-metrics-apiserver": images.KEDA_ADAPTER_IMAGE}
KUBECTL_LIMIT_S = 60.0
KEDA_LIMIT_S = 120.0

Object = dict[str, Any]


async def build_addons(report: build.Report) -> tuple[dict[str, Path], Path]:
    """The programs by name, one build after the other, and KEDA's own manifests."""
    programs = {name: await build.binary(name, report) for name in PROGRAMS}
    return programs, await build.module_folder("keda", KEDA_MODULE, "config", report)


def addon_images(programs: dict[str, Path]) -> tuple[Image, ...]:
    return (
        images.prometheus_image(programs["prometheus"]),
        images.keda_image(programs["keda"]),
        images.keda_adapter_image(programs["keda-adapter"]),
    )


async def install_keda(kubectl: Sequence[str], config: Path, phases: Phases) -> None:
    """Apply KEDA's manifests and wait until its metrics API answers. Raises WaitTimeout, CommandFailed."""
    with phases.measured("KEDA"):
        rendered = await run([*kubectl, "kustomize", config / "default"], timeout_s=KUBECTL_LIMIT_S)
        objects = embedded_keda([each for each in yaml.safe_load_all(rendered.stdout) if each])
        apply = [*kubectl, "apply", "--server-side", "--force-conflicts", "--filename", "-"]
        await run(apply, stdin=yaml.safe_dump_all(objects), timeout_s=KUBECTL_LIMIT_S)
        await wait_until(
            "KEDA's metrics API",
            lambda: _is_available(kubectl),
            bool,
            within_s=KEDA_LIMIT_S,
            every_s=0.5,
            tolerate=(CommandFailed,),
        )
        # The operator starts once more when it has made its certificates.
        ready = [*kubectl, "--namespace", "keda", "wait", "deployment", *KEDA_DEPLOYMENTS, "--for=condition=Available"]
        await run([*ready, f"--timeout={KEDA_LIMIT_S:.0f}s"], timeout_s=KEDA_LIMIT_S + KUBECTL_LIMIT_S)


async def is_installed(kubectl: Sequence[str]) -> bool:
    """True if KEDA's metrics API answers on this cluster already."""
    try:
        return await _is_available(kubectl)
    except CommandFailed:
        return False


async def _is_available(kubectl: Sequence[str]) -> bool:
    condition = "{.status.conditions[?(@.type=='Available')].status}"
    words = [*kubectl, "get", "apiservice", METRICS_API, "--output", f"jsonpath={condition}"]
    return (await run(words, timeout_s=KUBECTL_LIMIT_S)).stdout.strip() == "True"


def embedded_keda(objects: list[Object]) -> list[Object]:
    """KEDA's manifests for this cluster: local images, one replica without leader election, probes that do not wait.

    The admission webhook is left out: it guards against what `shakedown lint` reports.
    """
    kept = [each for each in objects if not _belongs_to_webhooks(each)]
    for each in kept:
        if each["kind"] == "Deployment":
            _make_local(each)
    namespaces = [each for each in kept if each["kind"] == "Namespace"]
    return namespaces + [each for each in kept if each["kind"] != "Namespace"]


def _belongs_to_webhooks(each: Object) -> bool:
    return each["kind"] == "ValidatingWebhookConfiguration" or "admission" in each["metadata"]["name"]


def _make_local(deployment: Object) -> None:
    pod = deployment["spec"]["template"]["spec"]
    pod["nodeSelector"] = {**pod.get("nodeSelector", {}), INFRASTRUCTURE_LABEL: "true"}
    container = pod["containers"][0]
    container["image"] = LOCAL_IMAGES[deployment["metadata"]["name"]]
    container["imagePullPolicy"] = "Never"
    container["args"] = [word for word in container["args"] if word != "--leader-elect"]
    for probe in ("livenessProbe", "readinessProbe"):
        container[probe]["initialDelaySeconds"] = 0
        container[probe]["periodSeconds"] = 1
    container["livenessProbe"]["failureThreshold"] = 60


async def write_images(programs: dict[str, Path], folder: Path) -> tuple[Path, ...]:
    """Image archives in `folder`, written side by side."""
    made = addon_images(programs)
    archives = tuple(folder / f"{image.reference.rpartition('/')[2].partition(':')[0]}.tar" for image in made)
    await asyncio.gather(
        *(asyncio.to_thread(image.write, archive) for image, archive in zip(made, archives, strict=True))
    )
    return archives
