"""Workloads, and the container in them that runs vLLM, as a linter sees them."""

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from shakedown.serving.lint.tree import at, labels_of, mapping, mappings, number, text, texts

TEMPLATED = ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Rollout", "Job")
RUNS_VLLM = re.compile(r"\bvllm\s+serve\b|vllm\.entrypoints")
ENGINE_IMAGE = re.compile(r"vllm-openai|vllm-cpu|(^|/)vllm([:@-](?!shakedown)|$)|llm-d-inference-sim")
NOT_AN_ENGINE = re.compile(r"router|gateway|nginx|envoy|benchmark")
SHORT_FLAGS = {"-tp": "--tensor-parallel-size", "-pp": "--pipeline-parallel-size", "-dp": "--data-parallel-size"}
UNITS = {"k": 1e3, "K": 1024, "m": 1e6, "M": 1024**2, "g": 1e9, "G": 1024**3}
"""vLLM's own reading of --max-model-len 32k and 32K."""


@dataclass(frozen=True, slots=True, eq=False)
class Workload:
    """What runs pods: the pod's spec and labels, and how many there are."""

    spec: Mapping[str, Any]
    pod: Mapping[str, Any]
    labels: Mapping[str, str]
    replicas: int

    @property
    def containers(self) -> list[dict[Any, Any]]:
        return mappings(self.pod.get("containers"))

    @property
    def grace_s(self) -> float:
        return number(self.pod.get("terminationGracePeriodSeconds"), 30.0) or 0.0

    @property
    def gpus(self) -> int:
        """GPUs that one pod asks for."""
        return sum(gpus_of(container) or 0 for container in self.containers)


@dataclass(frozen=True, slots=True, eq=False)
class Engine:
    """A container that runs vLLM."""

    container: Mapping[str, Any]
    flags: Mapping[str, str]

    @property
    def name(self) -> str:
        return text(self.container.get("name")) or "engine"

    def number(self, flag: str, default: float | None = None) -> float | None:
        """A flag's number; "32k" is read as vLLM does."""
        value = self.flags.get(flag, "")
        factor = UNITS.get(value[-1:])
        found = number(value[:-1] if factor else value)
        return default if found is None else found * (factor or 1)

    @property
    def environment(self) -> dict[str, str]:
        return {text(entry.get("name")): text(entry.get("value")) for entry in mappings(self.container.get("env"))}

    @property
    def version(self) -> tuple[int, int] | None:
        """The release that the image's tag names, such as (0, 11); None if it names none."""
        found = re.search(r":v?(\d+)\.(\d+)(\.|-|$|\+)", text(self.container.get("image")))
        official = ENGINE_IMAGE.search(text(self.container.get("image")))
        return (int(found[1]), int(found[2])) if found and official else None

    @property
    def keep_alive_s(self) -> float:
        """How long the API server keeps an idle connection; 5 s is uvicorn's default, which vLLM keeps."""
        return number(self.environment.get("VLLM_HTTP_TIMEOUT_KEEP_ALIVE"), 5.0) or 0.0

    @property
    def model(self) -> str:
        return self.flags.get("--served-model-name") or self.flags.get("--model") or self.flags.get("", "")


def workload_body(kind: str, body: Mapping[str, Any]) -> Workload | None:
    """The pods that an object runs; None if it runs none."""
    spec = mapping(body.get("spec"))
    if kind == "Pod":
        return Workload(spec, spec, labels_of(at(body, "metadata", "labels")), 1)
    if kind == "CronJob":
        spec = mapping(at(spec, "jobTemplate", "spec"))
    elif kind not in TEMPLATED:
        return None
    pod = at(spec, "template", "spec")
    if not mappings(at(pod, "containers")):
        return None
    labels = labels_of(at(spec, "template", "metadata", "labels"))
    return Workload(spec, pod, labels, int(number(spec.get("replicas"), 1) or 0))


def engine_of(workload: Workload) -> Engine | None:
    """The container that runs vLLM, if one does."""
    for container in workload.containers:
        words = list(_words(container))
        line, image = " ".join(words), text(container.get("image"))
        named = ENGINE_IMAGE.search(image) and not NOT_AN_ENGINE.search(image.rpartition("/")[2])
        if RUNS_VLLM.search(line) or named:
            return Engine(container, _flags(words))
    return None


def gpus_of(container: Mapping[str, Any]) -> int | None:
    """GPUs that a container asks for, of whatever vendor; None if it does not mention any."""
    for part in ("limits", "requests"):
        for resource, count in mapping(at(container, "resources", part)).items():
            if text(resource).endswith(("/gpu", ".com/gpu.shared")) and number(count) is not None:
                return int(number(count) or 0)
    return None


def _words(container: Mapping[str, Any]) -> Iterator[str]:
    """Command and arguments as words; a shell's script is split too."""
    for word in (*texts(container.get("command")), *texts(container.get("args"))):
        if any(space in word for space in " \n\t") and "{" not in word:
            try:
                yield from shlex.split(word.replace("\\\n", " "))
            except ValueError:
                yield from word.split()
        else:
            yield word


def _flags(words: list[str]) -> dict[str, str]:
    """Flags by their long names; the model of `vllm serve MODEL` under the empty name. A switch has the value ""."""
    flags: dict[str, str] = {}
    for position, word in enumerate(words):
        following = words[position + 1] if position + 1 < len(words) else ""
        if word == "serve" and following and not following.startswith("-"):
            flags[""] = following
        if not word.startswith("-"):
            continue
        name, assigned, value = word.partition("=")
        name = SHORT_FLAGS.get(name, name.replace("_", "-"))
        flags[name] = value if assigned else ("" if following.startswith("--") else following)
    return flags
