"""From the API's JSON to the frozen values of `objects`."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from shakedown.cluster.objects import (
    Condition,
    ContainerStatus,
    Deployment,
    Event,
    Manifest,
    Node,
    Pod,
    Termination,
)

QUANTITY_SUFFIXES = {
    **{f"{letter}i": 1024.0**power for power, letter in enumerate("KMGTP", start=1)},
    **{letter: 1000.0**power for power, letter in enumerate("kMGTP", start=1)},
    "m": 1e-3,
}
"""https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/"""


def epoch(stamp: str | None) -> float | None:
    """An RFC 3339 time as seconds since the Unix epoch; None for none."""
    return datetime.fromisoformat(stamp).timestamp() if stamp else None


def read_pod(item: Manifest) -> Pod:
    meta, spec, status = item["metadata"], item.get("spec", {}), item.get("status", {})
    return Pod(
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta["uid"],
        node=spec.get("nodeName"),
        ip=status.get("podIP"),
        phase=status.get("phase", "Unknown"),
        labels=meta.get("labels", {}),
        conditions=_conditions(status),
        containers=tuple(_container(entry) for entry in status.get("containerStatuses", ())),
        created_at=epoch(meta.get("creationTimestamp")),
        deletion_requested_at=epoch(meta.get("deletionTimestamp")),
    )


def read_deployment(item: Manifest) -> Deployment:
    meta, spec, status = item["metadata"], item["spec"], item.get("status", {})
    return Deployment(
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta["uid"],
        generation=meta["generation"],
        observed_generation=status.get("observedGeneration", 0),
        selector=spec["selector"].get("matchLabels", {}),
        spec_replicas=spec.get("replicas", 1),
        replicas=status.get("replicas", 0),
        updated_replicas=status.get("updatedReplicas", 0),
        available_replicas=status.get("availableReplicas", 0),
        conditions=_conditions(status),
    )


def read_node(item: Manifest) -> Node:
    spec, status = item.get("spec", {}), item.get("status", {})
    return Node(
        name=item["metadata"]["name"],
        uid=item["metadata"]["uid"],
        unschedulable=spec.get("unschedulable", False),
        taints=tuple(_taint(taint) for taint in spec.get("taints", ())),
        conditions=_conditions(status),
        capacity=status.get("capacity", {}),
        allocatable=status.get("allocatable", {}),
        kubelet_version=status.get("nodeInfo", {}).get("kubeletVersion", ""),
        labels=item["metadata"].get("labels", {}),
    )


def read_event(item: Manifest) -> Event:
    about = item.get("involvedObject", {})
    stamp = item.get("lastTimestamp") or item.get("eventTime") or item["metadata"]["creationTimestamp"]
    return Event(
        at=epoch(stamp) or 0.0,
        type=item.get("type", "Normal"),
        reason=item.get("reason", ""),
        message=item.get("message", ""),
        involved_kind=about.get("kind", ""),
        involved_name=about.get("name", ""),
        involved_uid=about.get("uid", ""),
        count=item.get("count") or 1,
    )


def _conditions(status: Mapping[str, Any]) -> tuple[Condition, ...]:
    return tuple(
        Condition(
            type=entry["type"],
            status=entry["status"],
            reason=entry.get("reason", ""),
            message=entry.get("message", ""),
            last_transition_at=epoch(entry.get("lastTransitionTime")),
        )
        for entry in status.get("conditions", ())
    )


def _container(entry: Mapping[str, Any]) -> ContainerStatus:
    state = entry.get("state", {})
    waiting = state.get("waiting", {})
    return ContainerStatus(
        name=entry["name"],
        ready=entry.get("ready", False),
        started=bool(entry.get("started")),
        restart_count=entry.get("restartCount", 0),
        running_since=epoch(state.get("running", {}).get("startedAt")),
        waiting_reason=waiting.get("reason"),
        waiting_message=waiting.get("message"),
        terminated=_termination(state.get("terminated")),
        last_termination=_termination(entry.get("lastState", {}).get("terminated")),
    )


def _termination(entry: Mapping[str, Any] | None) -> Termination | None:
    if entry is None:
        return None
    return Termination(
        exit_code=entry["exitCode"],
        reason=entry.get("reason", ""),
        message=entry.get("message", ""),
        signal=entry.get("signal", 0),
        started_at=epoch(entry.get("startedAt")),
        finished_at=epoch(entry.get("finishedAt")),
    )


def _taint(taint: Mapping[str, str]) -> str:
    value = f"={taint['value']}" if taint.get("value") else ""
    return f"{taint['key']}{value}:{taint['effect']}"


def read_quantity(text: str) -> float:
    """A Kubernetes quantity such as "7", "2500m", "1k" or "2Gi" as a number. Raises ValueError."""
    for suffix, factor in QUANTITY_SUFFIXES.items():
        if text.endswith(suffix):
            return float(text.removesuffix(suffix)) * factor
    return float(text)
