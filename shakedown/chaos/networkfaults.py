"""Faults of the network, by NetworkPolicy."""

from typing import ClassVar

import msgspec

from shakedown.chaos.plan import Plan, landing
from shakedown.chaos.podfaults import pod_plan
from shakedown.chaos.target import NotExercised, Target, Victim
from shakedown.chaos.undo import DeleteObject, RemovePodLabel, UndoStep
from shakedown.cluster.api import Cluster
from shakedown.cluster.objects import Manifest
from shakedown.errors import FaultDidNotLand

PARTITION_LABEL = "shakedown.dev/partition"
ENFORCING_AGENTS = ("calico-node", "cilium", "antrea-agent", "kube-router", "weave-net", "canal", "ovnkube-node")
"""DaemonSets of CNIs that enforce NetworkPolicy; others accept the object and ignore it."""
REACH = """import socket, sys
try: socket.create_connection((sys.argv[1], int(sys.argv[2])), 2).close(); print("open")
except OSError as error: print("closed:", error)"""
SETTLE_WITHIN_S = 30.0


class NetworkPartition(msgspec.Struct, frozen=True, kw_only=True, tag="network-partition"):
    """Cut the pods off from every other pod, in both directions.

    Needs a CNI that enforces NetworkPolicy, and one pod of the namespace beside the victims, with Python, to see it.
    """

    kind: ClassVar[str] = "network-partition"
    summary: ClassVar[str] = "cut pods off by NetworkPolicy (where the CNI enforces it)"
    target: Target
    duration_s: float
    port: int = 8000

    async def preview(self, cluster: Cluster, run_id: str) -> Plan:
        agents = [item["metadata"]["name"] for item in await cluster.list_objects("apps/v1", "DaemonSet")]
        if not any(agent.startswith(ENFORCING_AGENTS) for agent in agents):
            raise NotExercised("this cluster's CNI does not enforce NetworkPolicy, so a policy would cut nothing off")
        plan = await pod_plan(cluster, self.target, run_id)
        remove: list[UndoStep] = [
            RemovePodLabel(namespace=v.namespace or "", name=v.name, uid=v.uid, label=PARTITION_LABEL)
            for v in plan.victims
        ]
        policy = DeleteObject(
            api_version="networking.k8s.io/v1",
            kind="NetworkPolicy",
            namespace=self.target.namespace,
            name=_policy_name(run_id),
        )
        return msgspec.structs.replace(plan, undo=(*remove, policy))

    async def act(self, cluster: Cluster, plan: Plan) -> str:
        for victim in plan.victims:
            label = {"metadata": {"labels": {PARTITION_LABEL: plan.run_id[:63]}}}
            await cluster.patch("v1", "Pod", victim.namespace, victim.name, label)
        await cluster.apply([isolation(self.target.namespace, plan.run_id)])
        return f"applied NetworkPolicy {_policy_name(plan.run_id)}"

    async def landed(self, cluster: Cluster, plan: Plan) -> str:
        watcher = await self._watcher(cluster, plan)
        for victim in plan.victims:
            await landing(
                f"closed port {self.port} of {victim.name}",
                lambda victim=victim: self._reach(cluster, watcher, victim),  # type: ignore[misc]
                lambda said: said.startswith("closed"),
                SETTLE_WITHIN_S,
            )
        return f"{watcher} no longer reaches {', '.join(victim.name for victim in plan.victims)}:{self.port}"

    async def _watcher(self, cluster: Cluster, plan: Plan) -> str:
        uids = {victim.uid for victim in plan.victims}
        others = [p for p in await cluster.pods(self.target.namespace) if p.ready and p.uid not in uids]
        if not others:
            raise FaultDidNotLand(
                f"no other Ready pod in {self.target.namespace} from which the partition could be seen"
            )
        return others[0].name

    async def _reach(self, cluster: Cluster, watcher: str, victim: Victim) -> str:
        command = ("python3", "-c", REACH, victim.ip or "", str(self.port))
        return await cluster.exec(self.target.namespace, watcher, command)

    async def gone(self, cluster: Cluster, plan: Plan) -> str:
        found = await cluster.read(
            "networking.k8s.io/v1", "NetworkPolicy", self.target.namespace, _policy_name(plan.run_id)
        )
        if found is not None:
            raise FaultDidNotLand(f"the NetworkPolicy {_policy_name(plan.run_id)} is still there")
        return "the NetworkPolicy is gone"


def isolation(namespace: str, run_id: str) -> Manifest:
    """A policy that selects the labelled pods and allows them nothing."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {
            "name": _policy_name(run_id),
            "namespace": namespace,
            "labels": {"app.kubernetes.io/managed-by": "shakedown", "shakedown.dev/run-id": run_id[:63]},
        },
        "spec": {
            "podSelector": {"matchLabels": {PARTITION_LABEL: run_id[:63]}},
            "policyTypes": ["Ingress", "Egress"],
        },
    }


def _policy_name(run_id: str) -> str:
    return f"shakedown-partition-{run_id[:40].lower()}"
