"""Kustomize overlays rendered by kubectl, the same one that a person would use."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from shakedown.cluster.objects import Manifest
from shakedown.errors import CommandFailed, SetupError
from shakedown.process import run
from shakedown.serving.configuration import engine_container

RENDER_LIMIT_S = 30.0
MANIFESTS = Path(__file__).resolve().parents[2] / "manifests"
"""Beside the package in a checkout and in the wheel alike."""

# A namespace before what lives in it, configuration before what reads it.
ORDER = ("Namespace", "Secret", "ConfigMap", "Service", "PodDisruptionBudget", "Deployment")


async def render(overlay: Path, kubectl: Sequence[str]) -> list[Manifest]:
    """All objects of a kustomization, in an order that can be applied. Raises SetupError if it does not render."""
    if not (overlay / "kustomization.yaml").is_file():
        raise SetupError(f"{overlay} is no kustomization: kustomization.yaml is missing")
    try:
        completed = await run([*kubectl, "kustomize", str(overlay)], timeout_s=RENDER_LIMIT_S)
    except CommandFailed as failure:
        raise SetupError(f"the kustomization {overlay} does not render: {failure}") from failure
    manifests: list[Manifest] = [document for document in yaml.safe_load_all(completed.stdout) if document]
    return sorted(manifests, key=lambda manifest: ORDER.index(manifest["kind"]) if manifest["kind"] in ORDER else 99)


def vllm_overlay(engine: str) -> Path:
    """The overlay of an engine kind: twin, cpu or gpu."""
    return MANIFESTS / "vllm" / "overlays" / engine


def vllm_base() -> Path:
    return MANIFESTS / "vllm" / "base"


def base_container() -> dict[str, Any]:
    """The engine's container as the base has it, read without kubectl."""
    return engine_container(yaml.safe_load((vllm_base() / "deployment.yaml").read_text()))
