"""What chaos may do on a cluster that is not its own: the same list as manifests/rbac, asked of the cluster itself."""

import asyncio
from dataclasses import dataclass

from shakedown.cluster.api import Cluster

NAMESPACED: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("", "pods", ("get", "list", "delete", "patch")),
    ("", "pods/eviction", ("create",)),
    ("", "pods/exec", ("get", "create")),
    ("", "configmaps", ("get", "list", "create", "delete")),
    ("", "persistentvolumeclaims", ("list",)),
    ("apps", "deployments", ("get", "list", "patch")),
    ("apps", "statefulsets", ("list",)),
    ("policy", "poddisruptionbudgets", ("list",)),
    ("networking.k8s.io", "networkpolicies", ("get", "list", "create", "patch", "delete")),
)
CLUSTER_WIDE: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("", "nodes", ("get", "list", "patch")),
    ("", "namespaces", ("get",)),
    ("", "pods", ("list",)),
    ("apps", "daemonsets", ("list",)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Right:
    """One verb on one resource; `namespace` None means cluster-wide."""

    verb: str
    group: str
    resource: str
    namespace: str | None

    def __str__(self) -> str:
        where = f"in {self.namespace}" if self.namespace else "cluster-wide"
        return f"{self.verb} {self.resource}{'.' + self.group if self.group else ''} {where}"


def needed_rights(namespace: str) -> tuple[Right, ...]:
    """All that faults on `namespace` need."""
    tables = ((NAMESPACED, namespace), (CLUSTER_WIDE, None))
    return tuple(
        Right(verb=verb, group=group, resource=resource, namespace=where)
        for table, where in tables
        for group, resource, verbs in table
        for verb in verbs
    )


async def missing_rights(cluster: Cluster, namespace: str) -> tuple[Right, ...]:
    """Those of them that the cluster says we do not have (SelfSubjectAccessReview)."""
    rights = needed_rights(namespace)
    answers = await asyncio.gather(*(cluster.can_i(r.verb, r.resource, r.namespace, r.group) for r in rights))
    return tuple(right for right, allowed in zip(rights, answers, strict=True) if not allowed)
