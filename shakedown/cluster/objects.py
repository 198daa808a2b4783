"""Kubernetes objects as frozen values, reduced to what the harness reads, in Kubernetes' own words."""

from dataclasses import dataclass, field
from typing import Any, TypeAlias

Manifest: TypeAlias = dict[str, Any]
"""One Kubernetes object as rendered by kustomize. The only dict-shaped type; it never leaves the edge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A status condition; `status` is "True", "False" or "Unknown", hence no bool."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Termination:
    """How one run of a container ended."""

    exit_code: int
    reason: str
    """OOMKilled, Error, Completed, ContainerCannotRun…"""
    message: str = ""
    signal: int = 0
    started_at: float | None = None
    finished_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerStatus:
    """A container of a pod, now and before its last restart."""

    name: str
    ready: bool
    started: bool
    restart_count: int
    running_since: float | None = None
    waiting_reason: str | None = None
    waiting_message: str | None = None
    terminated: Termination | None = None
    last_termination: Termination | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod. Identity is the uid: a namesake is not the same pod."""

    namespace: str
    name: str
    uid: str
    node: str | None
    ip: str | None
    phase: str
    labels: dict[str, str] = field(default_factory=dict)
    conditions: tuple[Condition, ...] = ()
    containers: tuple[ContainerStatus, ...] = ()
    created_at: float | None = None
    deletion_requested_at: float | None = None

    @property
    def ready(self) -> bool:
        """True if Kubernetes sends traffic to it and it is not on its way out."""
        return self.deletion_requested_at is None and any(
            condition.type == "Ready" and condition.status == "True" for condition in self.conditions
        )

    @property
    def restarts(self) -> int:
        return sum(container.restart_count for container in self.containers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """A Deployment and how far its rollout is."""

    namespace: str
    name: str
    uid: str
    generation: int
    observed_generation: int
    selector: dict[str, str]
    spec_replicas: int
    replicas: int
    updated_replicas: int
    available_replicas: int
    conditions: tuple[Condition, ...] = ()

    @property
    def rolled_out(self) -> bool:
        """True when the controller has seen the newest spec and every replica runs and serves it."""
        return (
            self.observed_generation >= self.generation
            and self.updated_replicas == self.spec_replicas
            and self.available_replicas == self.spec_replicas
            and self.replicas == self.spec_replicas
        )


GPU_RESOURCE = "nvidia.com/gpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node."""

    name: str
    uid: str
    unschedulable: bool
    taints: tuple[str, ...]
    """As kubectl prints them: key=value:Effect."""
    conditions: tuple[Condition, ...]
    capacity: dict[str, str]
    allocatable: dict[str, str]
    kubelet_version: str
    labels: dict[str, str] = field(default_factory=dict)

    @property
    def gpus(self) -> int:
        """GPUs that pods may be given."""
        return int(self.allocatable.get(GPU_RESOURCE, "0"))

    @property
    def ready(self) -> bool:
        return any(condition.type == "Ready" and condition.status == "True" for condition in self.conditions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A Kubernetes event."""

    at: float
    type: str
    """Normal or Warning."""
    reason: str
    message: str
    involved_kind: str
    involved_name: str
    involved_uid: str
    count: int = 1
