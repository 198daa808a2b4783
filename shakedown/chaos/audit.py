"""What differs on a cluster from before: everything that chaos can leave behind."""

from dataclasses import dataclass
from typing import Any

from shakedown.chaos.ledger import LEDGER_LABEL
from shakedown.chaos.undo import CORDONED_BY
from shakedown.cluster.api import Cluster
from shakedown.cluster.objects import Manifest
from shakedown.errors import ManifestRejected

CHAOS_MESH = "chaos-mesh.org/v1alpha1"
CHAOS_KINDS = ("PodChaos", "NetworkChaos", "StressChaos", "IOChaos", "HTTPChaos", "TimeChaos", "DNSChaos", "Schedule")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What matters, as "subject: aspect" to its value in words."""

    values: dict[str, str]


async def snapshot(cluster: Cluster, *namespaces: str) -> Snapshot:
    """Look at nodes, and at these namespaces."""
    values: dict[str, str] = {}
    for node in await cluster.list_objects("v1", "Node"):
        values |= _of_node(node)
    for namespace in namespaces:
        for item in await _objects(cluster, namespace):
            values |= _of_object(item)
    return Snapshot(values)


def differences(before: Snapshot, after: Snapshot) -> tuple[str, ...]:
    """One line for each thing that is not as it was; empty when all is."""
    subjects = sorted(before.values.keys() | after.values.keys())
    pairs = [(s, before.values.get(s, "absent"), after.values.get(s, "absent")) for s in subjects]
    return tuple(f"{subject}: {was} → {now}" for subject, was, now in pairs if was != now)


async def _objects(cluster: Cluster, namespace: str) -> list[Manifest]:
    kinds = [
        ("apps/v1", "Deployment"),
        ("apps/v1", "StatefulSet"),
        ("policy/v1", "PodDisruptionBudget"),
        ("networking.k8s.io/v1", "NetworkPolicy"),
        ("v1", "Pod"),
        ("v1", "PersistentVolumeClaim"),
    ]
    found = [item for version, kind in kinds for item in await cluster.list_objects(version, kind, namespace)]
    found += await cluster.list_objects("v1", "ConfigMap", namespace, f"{LEDGER_LABEL}=open")
    if await cluster.serves(CHAOS_MESH):
        for kind in CHAOS_KINDS:
            found += await _chaos_objects(cluster, kind, namespace)
    return found


async def _chaos_objects(cluster: Cluster, kind: str, namespace: str) -> list[Manifest]:
    try:
        return await cluster.list_objects(CHAOS_MESH, kind, namespace)
    except ManifestRejected:
        return []


def _of_node(item: Manifest) -> dict[str, str]:
    subject, spec = f"Node {item['metadata']['name']}", item.get("spec", {})
    taints = sorted(f"{t['key']}={t.get('value', '')}:{t['effect']}" for t in spec.get("taints", ()))
    values = {f"{subject}: cordoned": "yes" if spec.get("unschedulable") else "no"}
    values[f"{subject}: taints"] = ", ".join(taints) or "none"
    if owner := item["metadata"].get("annotations", {}).get(CORDONED_BY):
        values[f"{subject}: cordoned by run"] = owner
    return values


def _of_object(item: Manifest) -> dict[str, str]:
    meta, kind = item["metadata"], item["kind"]
    subject = f"{kind} {meta['namespace']}/{meta['name']}"
    values = {} if kind in ("Pod", "PersistentVolumeClaim") else {subject: _gist(kind, item.get("spec", {}))}
    if meta.get("deletionTimestamp") and meta.get("finalizers"):
        values[f"{subject}: held back from deletion by"] = ", ".join(meta["finalizers"])
    return values


def _gist(kind: str, spec: dict[str, Any]) -> str:
    if kind in ("Deployment", "StatefulSet"):
        return f"{spec.get('replicas', 1)} replicas"
    if kind == "PodDisruptionBudget":
        return next((f"{k} {spec[k]}" for k in ("minAvailable", "maxUnavailable") if k in spec), "no bound")
    return "present"
