"""A node that is lost without a word: nobody evicts its pods, and nobody answers for them.

Kubernetes learns of it when the kubelet's lease runs out; until then the Service goes on sending to its pods.
"""

import asyncio
from typing import ClassVar

import msgspec

from shakedown.chaos.nodefaults import node_plan
from shakedown.chaos.plan import Plan, landing
from shakedown.chaos.target import NotExercised, Target
from shakedown.chaos.undo import PlugIn, node_is_ready
from shakedown.cluster import embedded
from shakedown.cluster.api import Cluster
from shakedown.cluster.embedded.layout import CLUSTER_LABEL

LOST_WITHIN_S = 90.0
"""Kubernetes gives a node 40 s (the embedded cluster 20 s) from its last lease."""


class NodeLoss(msgspec.Struct, frozen=True, kw_only=True, tag="node-loss"):
    """Pull the network cable of the nodes under the target's pods. The embedded cluster alone has such a cable."""

    kind: ClassVar[str] = "node-loss"
    summary: ClassVar[str] = "pull the network cable of the nodes under the pods (embedded cluster)"
    target: Target
    duration_s: float

    async def preview(self, cluster: Cluster, run_id: str) -> Plan:
        plan = await node_plan(cluster, self.target, run_id)
        owners = {node.name: node.labels.get(CLUSTER_LABEL, "") for node in await cluster.nodes()}
        for victim in plan.victims:
            if not owners[victim.name] or await embedded.find(owners[victim.name]) is None:
                raise NotExercised(
                    f"{victim.name} is no node of an embedded cluster on this machine, and there is no cable to pull; "
                    "drain or taint it instead, or take its power through whoever hosts it"
                )
        undo = tuple(PlugIn(cluster=owners[victim.name], node=victim.name) for victim in plan.victims)
        return msgspec.structs.replace(plan, undo=undo)

    async def act(self, cluster: Cluster, plan: Plan) -> str:
        for step in plan.undo:
            assert isinstance(step, PlugIn)
            await (await step.owner()).disconnect_node(step.node)
        return f"pulled the cable of {', '.join(victim.name for victim in plan.victims)}"

    async def landed(self, cluster: Cluster, plan: Plan) -> str:
        names = [victim.name for victim in plan.victims]
        await landing(
            f"loss of {', '.join(names)}",
            lambda: asyncio.gather(*(node_is_ready(cluster, name) for name in names)),
            lambda ready: not any(ready),
            LOST_WITHIN_S,
        )
        return f"{', '.join(names)} NotReady"

    async def gone(self, cluster: Cluster, plan: Plan) -> str:
        return "; ".join([await step.play(cluster) for step in plan.undo])
