"""One configuration of the system under test, as a value, and the manifests that it means."""

import copy
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from shakedown.cluster.objects import Manifest
from shakedown.errors import SetupError
from shakedown.settings import RunSettings

PROBES = ("startupProbe", "livenessProbe", "readinessProbe")
PROBE_TIMES = ("initialDelaySeconds", "periodSeconds")
LOAD_TIME_VARIABLE = "SHAKEDOWN_TWIN_LOAD_S"
DEVICE_VARIABLE = "SHAKEDOWN_TWIN_DEVICE"
TENANT_VARIABLE = "SHAKEDOWN_TWIN_OTHER_TENANT_GIB"
ENDPOINTS_FORGET_S = 5
EXIT_MARGIN_S = 10
AWAIT_IDLE = """
import time, urllib.request
time.sleep({forget_s})
end = time.monotonic() + {drain_s}
busy = ("vllm:num_requests_running", "vllm:num_requests_waiting")
while time.monotonic() < end:
    lines = urllib.request.urlopen("http://127.0.0.1:{port}/metrics").read().decode().splitlines()
    if not sum(float(line.split()[-1]) for line in lines if line.startswith(busy)):
        break
    time.sleep(0.5)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """What a scenario wants deployed; anything left out is as the manifests say."""

    replicas: int | None = None
    engine_args: tuple[tuple[str, str], ...] = ()
    """Flags set on top of the manifest's, such as ("--gpu-memory-utilization", "0.95")."""
    switches: tuple[str, ...] = ()
    """Flags without a value, such as "--no-enable-prefix-caching"."""
    device: str | None = None
    """Device profile of the twin; on real GPUs the node decides."""
    weights_load_s: float | None = None
    """Seconds from process start until the weights are loaded, at time scale 1. Only the twin can be told."""
    other_tenant_gib: float = 0.0
    """Device memory that somebody else holds. Only the twin can be told."""
    memory_limit: str | None = None
    """Of the container (host memory), such as "512Mi"."""
    drain_s: int | None = None
    """A replica that goes finishes its answers for so long. As vLLM comes, it drops them."""
    priority_class: str | None = None
    """Kubernetes' PriorityClass of the replicas, which must exist: manifests/priority."""
    pool: str = ""
    """Tells deployments apart that are equal otherwise, such as an interactive and a batch pool."""
    becomes_ready: bool = True
    """False for a configuration whose point is that it never gets Ready."""

    @property
    def key(self) -> str:
        """Short name of this configuration; equal configurations share a deployment."""
        return hashlib.sha256(repr(self).encode()).hexdigest()[:6]


def is_default(serving: Serving) -> bool:
    return serving == Serving()


def namespace_for(serving: Serving, base: str) -> str:
    """The manifests' own namespace for the plain configuration, one beside it for every other."""
    return base if is_default(serving) else f"{base}-{serving.key}"


def configured(manifests: Sequence[Manifest], serving: Serving, settings: RunSettings) -> list[Manifest]:
    """The rendered manifests with this configuration and the run's time scale applied."""
    result = [copy.deepcopy(manifest) for manifest in manifests]
    deployment = only(result, "Deployment")
    namespace = namespace_for(serving, deployment["metadata"]["namespace"])
    for manifest in result:
        _move(manifest, namespace)
        manifest["metadata"].setdefault("labels", {})["app.kubernetes.io/managed-by"] = "shakedown"
    if serving.replicas is not None:
        deployment["spec"]["replicas"] = serving.replicas
    container = engine_container(deployment)
    for flag, value in serving.engine_args:
        set_flag(container["args"], flag, value)
    container["args"].extend(serving.switches)
    if serving.memory_limit is not None:
        container["resources"]["requests"]["memory"] = serving.memory_limit
        container["resources"]["limits"]["memory"] = serving.memory_limit
    if serving.priority_class is not None:
        deployment["spec"]["template"]["spec"]["priorityClassName"] = serving.priority_class
    if serving.drain_s is not None:
        let_drain(deployment, serving.drain_s)
    if settings.engine == "twin":
        _tell_twin(container, serving, settings)
    scale_probes(container, settings)
    return result


def let_drain(deployment: Manifest, drain_s: int) -> None:
    """Let a pod that is told to go answer what it has begun.

    The endpoints of a Service take a moment to forget a pod; then the engine is told of its end only when it has
    nothing left to do. Its own --shutdown-timeout is the second line: an engine that ends itself after its last answer
    was seen to lose that answer's last token.
    """
    container = engine_container(deployment)
    set_flag(container["args"], "--shutdown-timeout", str(drain_s))
    port = flag_value(container["args"], "--port") or "8000"
    script = AWAIT_IDLE.format(forget_s=ENDPOINTS_FORGET_S, drain_s=drain_s, port=port)
    container["lifecycle"] = {"preStop": {"exec": {"command": ["python3", "-c", script]}}}
    pod = deployment["spec"]["template"]["spec"]
    pod["terminationGracePeriodSeconds"] = ENDPOINTS_FORGET_S + drain_s + EXIT_MARGIN_S


def only(manifests: Sequence[Manifest], kind: str) -> Manifest:
    """The one manifest of a kind. Raises SetupError if there are none or several."""
    found = [manifest for manifest in manifests if manifest["kind"] == kind]
    if len(found) != 1:
        raise SetupError(f"the manifests hold {len(found)} objects of kind {kind}; one is needed")
    return found[0]


def engine_container(deployment: Manifest) -> dict[str, Any]:
    """The container that runs vLLM: the first of the pod template."""
    container: dict[str, Any] = deployment["spec"]["template"]["spec"]["containers"][0]
    return container


def flag_value(args: Sequence[str], flag: str) -> str | None:
    """Value of a flag in an argument list, written as two words or with "="."""
    for position, word in enumerate(args):
        if word == flag and position + 1 < len(args):
            return args[position + 1]
        if word.startswith(f"{flag}="):
            return word.split("=", 1)[1]
    return None


def set_flag(args: list[str], flag: str, value: str) -> None:
    """Set a flag in place, or append it."""
    for position, word in enumerate(args):
        if word == flag:
            args[position + 1] = value
            return
        if word.startswith(f"{flag}="):
            args[position] = f"{flag}={value}"
            return
    args.extend((flag, value))


def startup_budget_s(container: dict[str, Any]) -> float:
    """Seconds a container may take to answer before the kubelet restarts it: delay + period × failures."""
    probe = container["startupProbe"]
    return float(
        probe.get("initialDelaySeconds", 0) + probe.get("periodSeconds", 10) * probe.get("failureThreshold", 3)
    )


def scale_probes(container: dict[str, Any], settings: RunSettings) -> None:
    """Apply the time scale to every probe; counts stay, times shrink."""
    for name in PROBES:
        probe = container.get(name, {})
        for field in PROBE_TIMES:
            if field in probe:
                probe[field] = settings.scaled_whole_s(probe[field], f"{name}.{field}")


def differences(base: Sequence[Manifest], overlay: Sequence[Manifest]) -> tuple[str, ...]:
    """What an overlay changes, one line each: "Deployment spec.replicas: 2 → 1"."""
    before, after = _flat(base), _flat(overlay)
    lines = []
    for path in sorted(before.keys() | after.keys()):
        if before.get(path) != after.get(path):
            lines.append(f"{path}: {before.get(path, 'absent')} → {after.get(path, 'absent')}")
    return tuple(lines)


def _move(manifest: Manifest, namespace: str) -> None:
    if manifest["kind"] == "Namespace":
        manifest["metadata"]["name"] = namespace
    elif "namespace" in manifest["metadata"]:
        manifest["metadata"]["namespace"] = namespace


def _tell_twin(container: dict[str, Any], serving: Serving, settings: RunSettings) -> None:
    if serving.device is not None:
        _set_env(container, DEVICE_VARIABLE, serving.device)
    if serving.other_tenant_gib:
        _set_env(container, TENANT_VARIABLE, f"{serving.other_tenant_gib:g}")
    if serving.weights_load_s is not None:
        _set_env(container, LOAD_TIME_VARIABLE, f"{serving.weights_load_s * settings.time_scale:g}")


def _set_env(container: dict[str, Any], name: str, value: str) -> None:
    environment: list[dict[str, Any]] = container.setdefault("env", [])
    for entry in environment:
        if entry["name"] == name:
            entry["value"] = value
            return
    environment.append({"name": name, "value": value})


def _flat(manifests: Sequence[Manifest]) -> dict[str, str]:
    return {
        f"{manifest['kind']} {path}": value
        for manifest in manifests
        for path, value in _leaves(manifest, "")
        if not path.startswith(("kind", "apiVersion"))
    }


def _leaves(node: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(node, dict):
        for key, value in node.items():
            yield from _leaves(value, f"{path}.{key}" if path else str(key))
    elif isinstance(node, list):
        for index, value in enumerate(node):
            name = value.get("name", index) if isinstance(value, dict) else index
            yield from _leaves(value, f"{path}[{name}]")
    else:
        yield path, str(node)
