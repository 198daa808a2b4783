"""A rollout: no fault in itself, but the moment in which many are found."""

from datetime import UTC, datetime
from typing import ClassVar

import msgspec

from shakedown.chaos.plan import Plan, landing
from shakedown.chaos.podfaults import pod_plan
from shakedown.chaos.target import Percent, Target
from shakedown.cluster.api import Cluster
from shakedown.errors import UsageError

RESTARTED_AT = "kubectl.kubernetes.io/restartedAt"
"""The annotation of `kubectl rollout restart`."""


class RolloutRestart(msgspec.Struct, frozen=True, kw_only=True, tag="rollout-restart"):
    """Replace every pod of the Deployments that the selector matches, as their strategy says."""

    kind: ClassVar[str] = "rollout-restart"
    summary: ClassVar[str] = "replace all pods of the Deployments that the selector matches, as a new version would"
    target: Target
    duration_s: float = 0.0
    within_s: float = 600.0
    """How long the rollout may take."""

    def __post_init__(self) -> None:
        if self.target.how_many != Percent(100):
            raise UsageError("a rollout replaces every pod; say --percent 100")

    async def preview(self, cluster: Cluster, run_id: str) -> Plan:
        plan = await pod_plan(cluster, self.target, run_id)
        # The strategy keeps the others up while one is replaced: nobody is meant to be harmed.
        return msgspec.structs.replace(plan, bystanders=len(plan.victims))

    async def act(self, cluster: Cluster, plan: Plan) -> str:
        found = await cluster.list_objects("apps/v1", "Deployment", self.target.namespace, self.target.selector)
        if not found:
            raise UsageError(f"no Deployment in {self.target.namespace} matches {self.target.selector}")
        names = [str(item["metadata"]["name"]) for item in found]
        stamp = {"metadata": {"annotations": {RESTARTED_AT: datetime.now(UTC).isoformat(timespec="seconds")}}}
        for name in names:
            await cluster.patch("apps/v1", "Deployment", self.target.namespace, name, {"spec": {"template": stamp}})
        return f"restarted the rollout of {', '.join(names)}"

    async def landed(self, cluster: Cluster, plan: Plan) -> str:
        """Proof by uid: each pod is gone, and as many others, of another ReplicaSet, are Ready."""
        before = {victim.uid for victim in plan.victims}
        pods = await landing(
            f"the replacement of {', '.join(victim.name for victim in plan.victims)}",
            lambda: cluster.pods(self.target.namespace, self.target.selector),
            lambda pods: (
                before.isdisjoint(pod.uid for pod in pods) and sum(pod.ready for pod in pods) >= len(plan.victims)
            ),
            self.within_s,
        )
        return f"{', '.join(sorted(pod.name for pod in pods))} in place of {len(before)} pods before"

    async def gone(self, cluster: Cluster, plan: Plan) -> str:
        return "a rollout is over when its pods are replaced"
