"""Whom a fault hits: always said, never defaulted, and chosen in one place."""

import math
from typing import Any

import msgspec

from shakedown.cluster.api import Cluster
from shakedown.cluster.objects import Manifest
from shakedown.cluster.reading import read_pod
from shakedown.errors import FaultDidNotLand, HarnessError, UsageError


class NotExercised(HarnessError):
    """The cluster lacks what the fault needs; nothing was done. The message names the missing capability."""


class Count(msgspec.Struct, frozen=True, tag_field="unit", tag="count"):
    """That many."""

    value: int

    def of(self, total: int) -> int:
        return self.value

    def __str__(self) -> str:
        return str(self.value)


class Percent(msgspec.Struct, frozen=True, tag_field="unit", tag="percent"):
    """That share of those there are, rounded down, but at least one."""

    value: int

    def of(self, total: int) -> int:
        return max(1, math.floor(total * self.value / 100))

    def __str__(self) -> str:
        return f"{self.value} %"


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """Ready pods of one namespace that match a label selector, and how many of them.

    For node faults it means the nodes under these pods.
    """

    namespace: str
    selector: str
    how_many: Count | Percent

    def __post_init__(self) -> None:
        if not self.namespace or not self.selector:
            raise UsageError("a fault needs a namespace and a label selector; an empty one would hit everything")
        if self.how_many.value < 1 or (isinstance(self.how_many, Percent) and self.how_many.value > 100):
            raise UsageError(f"a fault cannot hit {self.how_many} of its targets")

    def __str__(self) -> str:
        return f"{self.how_many} of {self.namespace}/{self.selector}"


class Victim(msgspec.Struct, frozen=True, kw_only=True):
    """One object that a fault acts on. Identity is the uid."""

    kind: str
    namespace: str | None = None
    name: str
    uid: str
    node: str | None = None
    ip: str | None = None
    container: str | None = None
    owner: str | None = None
    """Kind/name of the controller that replaces it, if any."""
    restarts: int = 0

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}"


async def ready_pods(cluster: Cluster, target: Target) -> tuple[Victim, ...]:
    """All Ready pods that match, by name. Raises UsageError if the selector matches nothing at all."""
    items = await cluster.list_objects("v1", "Pod", target.namespace, target.selector)
    if not items:
        raise UsageError(f"no pod in namespace {target.namespace} matches {target.selector}")
    ready = [pod_victim(item) for item in items if read_pod(item).ready]
    return tuple(sorted(ready, key=lambda victim: victim.name))


def chosen(candidates: tuple[Victim, ...], target: Target) -> tuple[Victim, ...]:
    """The first so many candidates. Raises FaultDidNotLand if there are too few."""
    wanted = target.how_many.of(len(candidates))
    if len(candidates) < wanted or not candidates:
        raise FaultDidNotLand(f"cannot hit {target}: only {len(candidates)} are Ready now; wait, or ask for fewer")
    return candidates[:wanted]


def pod_victim(item: Manifest) -> Victim:
    """A pod as the API has it."""
    pod, spec = read_pod(item), item.get("spec", {})
    return Victim(
        kind="Pod",
        namespace=pod.namespace,
        name=pod.name,
        uid=pod.uid,
        node=pod.node,
        ip=pod.ip,
        container=next((entry["name"] for entry in spec.get("containers", ())), None),
        owner=controller_of(item),
        restarts=pod.restarts,
    )


def controller_of(item: Manifest) -> str | None:
    """Kind/name of the object that owns this one."""
    owners: list[dict[str, Any]] = item["metadata"].get("ownerReferences", [])
    return next((f"{owner['kind']}/{owner['name']}" for owner in owners if owner.get("controller")), None)
