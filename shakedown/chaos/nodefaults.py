"""Faults of nodes, and of how many replicas there are."""

from collections.abc import Sequence
from typing import ClassVar, Literal

import msgspec

from shakedown.chaos.plan import Plan, landing
from shakedown.chaos.podfaults import evict_all
from shakedown.chaos.target import Target, Victim, chosen, controller_of, pod_victim, ready_pods
from shakedown.chaos.undo import CORDONED_BY, RemoveTaint, RestoreReplicas, Uncordon, edit_taints
from shakedown.cluster.api import Cluster
from shakedown.cluster.objects import Manifest, Node
from shakedown.errors import FaultDidNotLand, UsageError
from shakedown.waiting import wait_until

TAINT_KEY = "shakedown.dev/drill"
MIRROR = "kubernetes.io/config.mirror"
SETTLE_WITHIN_S = 60.0


async def node_plan(cluster: Cluster, target: Target, run_id: str) -> Plan:
    """The schedulable, Ready nodes under the target's pods."""
    nodes = {node.name: node for node in await cluster.nodes()}
    under = sorted({pod.node for pod in await ready_pods(cluster, target) if pod.node})
    usable = tuple(_node_victim(nodes[name]) for name in under if name in nodes and _usable(nodes[name]))
    victims = chosen(usable, target)
    bystanders = sum(_usable(node) for node in nodes.values()) - len(victims)
    return Plan(run_id=run_id, victims=victims, bystanders=bystanders)


class Cordon(msgspec.Struct, frozen=True, kw_only=True, tag="cordon"):
    """Mark the nodes under the target's pods unschedulable."""

    kind: ClassVar[str] = "cordon"
    summary: ClassVar[str] = "mark the nodes under the pods unschedulable"
    target: Target
    duration_s: float

    async def preview(self, cluster: Cluster, run_id: str) -> Plan:
        plan = await node_plan(cluster, self.target, run_id)
        undo = tuple(Uncordon(node=victim.name, run_id=run_id) for victim in plan.victims)
        return msgspec.structs.replace(plan, undo=undo)

    async def act(self, cluster: Cluster, plan: Plan) -> str:
        return await cordon_all(cluster, _nodes(plan), plan.run_id)

    async def landed(self, cluster: Cluster, plan: Plan) -> str:
        return await cordons_seen(cluster, _nodes(plan))

    async def gone(self, cluster: Cluster, plan: Plan) -> str:
        return await nodes_schedulable(cluster, _nodes(plan))


class Drain(msgspec.Struct, frozen=True, kw_only=True, tag="drain"):
    """Cordon the nodes under the target's pods and evict what runs there, as before maintenance.

    Pods of DaemonSets and static pods stay. Only the target's namespace is emptied unless `whole_node`.
    """

    kind: ClassVar[str] = "drain"
    summary: ClassVar[str] = "cordon the nodes under the pods and evict what runs there"
    target: Target
    duration_s: float
    within_s: float = 180.0
    """How long PodDisruptionBudgets may refuse, and pods may take to leave."""
    whole_node: bool = False
    delete_emptydir_data: bool = False
    """Evict also pods that would lose the contents of an emptyDir on disk."""

    async def preview(self, cluster: Cluster, run_id: str) -> Plan:
        plan = await node_plan(cluster, self.target, run_id)
        pods: list[Victim] = []
        for node in plan.victims:
            pods += await self._evictable(cluster, node)
        undo = tuple(Uncordon(node=victim.name, run_id=run_id) for victim in plan.victims)
        spared = await _spared(cluster, self.target, plan)
        return msgspec.structs.replace(plan, victims=(*plan.victims, *pods), bystanders=spared, undo=undo)

    async def _evictable(self, cluster: Cluster, node: Victim) -> list[Victim]:
        namespace = None if self.whole_node else self.target.namespace
        items = await cluster.list_objects("v1", "Pod", namespace)
        here = [item for item in items if item["spec"].get("nodeName") == node.name and _drainable(item)]
        losers = [item["metadata"]["name"] for item in here if _has_emptydir_on_disk(item)]
        if losers and not self.delete_emptydir_data:
            raise UsageError(
                f"draining {node.name} would lose emptyDir data of {', '.join(losers)}; say --delete-emptydir-data"
            )
        return [pod_victim(item) for item in here]

    async def act(self, cluster: Cluster, plan: Plan) -> str:
        said = await cordon_all(cluster, _nodes(plan), plan.run_id)
        await evict_all(cluster, _pods(plan), self.within_s)
        return f"{said}; evicted {len(_pods(plan))} pods"

    async def landed(self, cluster: Cluster, plan: Plan) -> str:
        said = await cordons_seen(cluster, _nodes(plan))
        await pods_left(cluster, plan, self.within_s)
        return f"{said}; {len(_pods(plan))} pods left it"

    async def gone(self, cluster: Cluster, plan: Plan) -> str:
        return await nodes_schedulable(cluster, _nodes(plan))


class Taint(msgspec.Struct, frozen=True, kw_only=True, tag="taint"):
    """Taint the nodes under the target's pods; NoExecute makes pods without a toleration leave at once."""

    kind: ClassVar[str] = "taint"
    summary: ClassVar[str] = "taint the nodes under the pods (NoSchedule or NoExecute)"
    target: Target
    duration_s: float
    effect: Literal["NoSchedule", "NoExecute"] = "NoSchedule"

    async def preview(self, cluster: Cluster, run_id: str) -> Plan:
        plan = await node_plan(cluster, self.target, run_id)
        undo = tuple(RemoveTaint(node=victim.name, key=TAINT_KEY) for victim in plan.victims)
        if self.effect != "NoExecute":
            return msgspec.structs.replace(plan, undo=undo)
        spared = await _spared(cluster, self.target, plan)
        victims = (*plan.victims, *await self._leaving(cluster, plan))
        return msgspec.structs.replace(plan, victims=victims, bystanders=spared, undo=undo)

    async def _leaving(self, cluster: Cluster, plan: Plan) -> list[Victim]:
        names = {victim.name for victim in plan.victims}
        items = await cluster.list_objects("v1", "Pod")
        return [pod_victim(i) for i in items if i["spec"].get("nodeName") in names and not _tolerates(i, self.effect)]

    async def act(self, cluster: Cluster, plan: Plan) -> str:
        ours = {"key": TAINT_KEY, "value": plan.run_id[:63], "effect": self.effect}
        for node in _nodes(plan):
            await edit_taints(cluster, node.name, lambda taints: [*_without_ours(taints), ours])
        return f"tainted {', '.join(node.name for node in _nodes(plan))}"

    async def landed(self, cluster: Cluster, plan: Plan) -> str:
        wanted = f"{TAINT_KEY}={plan.run_id[:63]}:{self.effect}"
        nodes = {node.name: node for node in await cluster.nodes()}
        missing = [v.name for v in _nodes(plan) if v.name not in nodes or wanted not in nodes[v.name].taints]
        if missing:
            raise FaultDidNotLand(f"no taint {wanted} on {', '.join(missing)}")
        await pods_left(cluster, plan, SETTLE_WITHIN_S)
        return f"{wanted} on {', '.join(v.name for v in _nodes(plan))}; {len(_pods(plan))} pods left"

    async def gone(self, cluster: Cluster, plan: Plan) -> str:
        ours = {victim.name for victim in _nodes(plan)}
        left = [n.name for n in await cluster.nodes() if n.name in ours and any(TAINT_KEY in t for t in n.taints)]
        if left:
            raise FaultDidNotLand(f"the taint {TAINT_KEY} is still on {', '.join(left)}")
        return f"no taint {TAINT_KEY} left"


class Scale(msgspec.Struct, frozen=True, kw_only=True, tag="scale"):
    """Scale the Deployments that the selector matches."""

    kind: ClassVar[str] = "scale"
    summary: ClassVar[str] = "scale the Deployments that the selector matches"
    target: Target
    duration_s: float
    replicas: int

    async def preview(self, cluster: Cluster, run_id: str) -> Plan:
        found = await cluster.list_objects("apps/v1", "Deployment", self.target.namespace, self.target.selector)
        if not found:
            raise UsageError(f"no Deployment in namespace {self.target.namespace} matches {self.target.selector}")
        ordered = sorted(found, key=lambda item: str(item["metadata"]["name"]))
        victims = chosen(tuple(_deployment_victim(item) for item in ordered), self.target)
        before = {item["metadata"]["name"]: item["spec"].get("replicas", 1) for item in ordered}
        undo = tuple(
            RestoreReplicas(
                namespace=self.target.namespace, name=v.name, uid=v.uid, ours=self.replicas, before=before[v.name]
            )
            for v in victims
        )
        return Plan(run_id=run_id, victims=victims, bystanders=self.replicas, undo=undo)

    async def act(self, cluster: Cluster, plan: Plan) -> str:
        for victim in plan.victims:
            body = {"spec": {"replicas": self.replicas}}
            await cluster.patch("apps/v1", "Deployment", victim.namespace, victim.name, body)
        return f"scaled {', '.join(v.name for v in plan.victims)} to {self.replicas}"

    async def landed(self, cluster: Cluster, plan: Plan) -> str:
        async def observe() -> dict[str, int]:
            found = [await cluster.deployment(self.target.namespace, victim.name) for victim in plan.victims]
            return {d.name: d.replicas if d.observed_generation >= d.generation else -1 for d in found}

        what = f"{self.replicas} replicas of {', '.join(v.name for v in plan.victims)}"
        seen = await landing(
            what, observe, lambda seen: all(count == self.replicas for count in seen.values()), SETTLE_WITHIN_S
        )
        return ", ".join(f"{name} has {count} replicas" for name, count in seen.items())

    async def gone(self, cluster: Cluster, plan: Plan) -> str:
        found = [await cluster.deployment(self.target.namespace, victim.name) for victim in plan.victims]
        return "; ".join(f"{d.name} wants {d.spec_replicas} replicas" for d in found)


async def cordon_all(cluster: Cluster, nodes: Sequence[Victim], run_id: str) -> str:
    """Cordon, and say on the node who did."""
    for node in nodes:
        body = {"metadata": {"annotations": {CORDONED_BY: run_id}}, "spec": {"unschedulable": True}}
        await cluster.patch("v1", "Node", None, node.name, body)
    return f"cordoned {', '.join(node.name for node in nodes)}"


async def cordons_seen(cluster: Cluster, nodes: Sequence[Victim]) -> str:
    """Proof: the node controller has answered with the taint that keeps pods away. Raises FaultDidNotLand."""
    names = {node.name for node in nodes}

    async def observe() -> dict[str, bool]:
        return {n.name: _kept_free(n) for n in await cluster.nodes() if n.name in names}

    await landing(
        f"cordon of {', '.join(sorted(names))}",
        observe,
        lambda seen: bool(seen) and all(seen.values()),
        within_s=SETTLE_WITHIN_S,
    )
    return f"{', '.join(sorted(names))} unschedulable"


async def nodes_schedulable(cluster: Cluster, nodes: Sequence[Victim]) -> str:
    """Proof that no node of ours is cordoned or kept free any more. Raises WaitTimeout."""
    names = {node.name for node in nodes}

    async def observe() -> list[str]:
        return [n.name for n in await cluster.nodes() if n.name in names and (n.unschedulable or _has_cordon_taint(n))]

    await wait_until(
        f"schedulable {', '.join(sorted(names))}", observe, lambda left: not left, within_s=SETTLE_WITHIN_S
    )
    return f"{', '.join(sorted(names))} schedulable"


async def pods_left(cluster: Cluster, plan: Plan, within_s: float) -> None:
    """Wait until each planned pod is gone, by uid. Raises FaultDidNotLand."""
    uids = {victim.uid for victim in _pods(plan)}
    namespaces = {victim.namespace for victim in _pods(plan)}

    async def observe() -> list[str]:
        items = [item for space in namespaces for item in await cluster.list_objects("v1", "Pod", space)]
        return [item["metadata"]["name"] for item in items if item["metadata"]["uid"] in uids]

    await landing("departure of the pods", observe, lambda left: not left, within_s)


async def _spared(cluster: Cluster, target: Target, plan: Plan) -> int:
    """What stays unharmed when nodes are emptied: other nodes, and replicas on them."""
    emptied = {victim.name for victim in plan.victims}
    elsewhere = sum(pod.node not in emptied for pod in await ready_pods(cluster, target))
    return min(plan.bystanders, elsewhere)


def _nodes(plan: Plan) -> tuple[Victim, ...]:
    return tuple(victim for victim in plan.victims if victim.kind == "Node")


def _pods(plan: Plan) -> tuple[Victim, ...]:
    return tuple(victim for victim in plan.victims if victim.kind == "Pod")


def _usable(node: Node) -> bool:
    return node.ready and not node.unschedulable


def _kept_free(node: Node) -> bool:
    return node.unschedulable and _has_cordon_taint(node)


def _has_cordon_taint(node: Node) -> bool:
    return any("node.kubernetes.io/unschedulable" in taint for taint in node.taints)


def _node_victim(node: Node) -> Victim:
    return Victim(kind="Node", name=node.name, uid=node.uid)


def _deployment_victim(item: Manifest) -> Victim:
    meta = item["metadata"]
    return Victim(kind="Deployment", namespace=meta["namespace"], name=meta["name"], uid=meta["uid"])


def _without_ours(taints: Sequence[Manifest]) -> list[Manifest]:
    return [taint for taint in taints if taint["key"] != TAINT_KEY]


def _drainable(item: Manifest) -> bool:
    over = item.get("status", {}).get("phase") in ("Succeeded", "Failed")
    stays = (controller_of(item) or "").startswith("DaemonSet/") or MIRROR in item["metadata"].get("annotations", {})
    return not over and not stays


def _has_emptydir_on_disk(item: Manifest) -> bool:
    volumes = item["spec"].get("volumes", ())
    return any("emptyDir" in v and (v["emptyDir"] or {}).get("medium") != "Memory" for v in volumes)


def _tolerates(item: Manifest, effect: str) -> bool:
    return any(
        toleration.get("key", TAINT_KEY) == TAINT_KEY and toleration.get("effect", effect) == effect
        for toleration in item["spec"].get("tolerations", ())
    )
