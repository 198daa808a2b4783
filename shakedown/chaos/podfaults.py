"""Faults that end pods and containers."""

import asyncio
from collections.abc import Sequence
from typing import ClassVar

import msgspec

from shakedown.chaos.plan import Plan, landing
from shakedown.chaos.target import Target, Victim, chosen, controller_of, ready_pods
from shakedown.cluster.api import ApiRefusal, Cluster
from shakedown.cluster.objects import Manifest
from shakedown.cluster.reading import read_pod
from shakedown.errors import FaultDidNotLand, WaitTimeout
from shakedown.waiting import wait_until

GONE_WITHIN_S = 60.0
RESTART_WITHIN_S = 90.0
EVICTION_EVERY_S = 1.0
# Processes are found by the title they give themselves; pure shell, as an image may have no tool but sh.
SIGNAL_BY_TITLE = """for d in /proc/[0-9]*; do
  read -r title < "$d/comm" 2>/dev/null || continue
  case "$title" in $2*) kill -"$1" "${d#/proc/}" && echo "sent SIG$1 to ${d#/proc/} $title";; esac
done; true"""
ENGINE_CORE = "VLLM::EngineCor"
"""What the kernel keeps (15 characters) of the title of vLLM's engine core process."""


def signal_command(signal: str, title: str) -> tuple[str, ...]:
    """Argument list that signals, inside a container, each process whose title begins so."""
    return ("sh", "-c", SIGNAL_BY_TITLE, "signal", signal, title)


async def pod_plan(cluster: Cluster, target: Target, run_id: str) -> Plan:
    """The pods to hit now."""
    candidates = await ready_pods(cluster, target)
    victims = chosen(candidates, target)
    return Plan(run_id=run_id, victims=victims, bystanders=len(candidates) - len(victims))


class PodKill(msgspec.Struct, frozen=True, kw_only=True, tag="pod-kill"):
    """Delete pods with no grace period, as when a machine loses power for one of them."""

    kind: ClassVar[str] = "pod-kill"
    summary: ClassVar[str] = "delete pods with no grace period"
    target: Target
    duration_s: float = 0.0

    async def preview(self, cluster: Cluster, run_id: str) -> Plan:
        return await pod_plan(cluster, self.target, run_id)

    async def act(self, cluster: Cluster, plan: Plan) -> str:
        await asyncio.gather(
            *(cluster.delete("v1", "Pod", v.namespace, v.name, grace_s=0, uid=v.uid) for v in plan.victims)
        )
        return f"deleted {_names(plan.victims)}"

    async def landed(self, cluster: Cluster, plan: Plan) -> str:
        return await pods_gone_and_replaced(cluster, self.target, plan.victims)

    async def gone(self, cluster: Cluster, plan: Plan) -> str:
        return "a deletion is over at once"


class PodEvict(msgspec.Struct, frozen=True, kw_only=True, tag="pod-evict"):
    """Evict pods through the eviction API: grace period and PodDisruptionBudget hold."""

    kind: ClassVar[str] = "pod-evict"
    summary: ClassVar[str] = "evict pods; grace period and PodDisruptionBudget hold"
    target: Target
    duration_s: float = 0.0
    within_s: float = 120.0
    """How long a PodDisruptionBudget may refuse, and a pod may take to leave."""

    async def preview(self, cluster: Cluster, run_id: str) -> Plan:
        return await pod_plan(cluster, self.target, run_id)

    async def act(self, cluster: Cluster, plan: Plan) -> str:
        await evict_all(cluster, plan.victims, self.within_s)
        return f"evicted {_names(plan.victims)}"

    async def landed(self, cluster: Cluster, plan: Plan) -> str:
        return await pods_gone_and_replaced(cluster, self.target, plan.victims, within_s=self.within_s)

    async def gone(self, cluster: Cluster, plan: Plan) -> str:
        return "an eviction is over at once"


class ContainerKill(msgspec.Struct, frozen=True, kw_only=True, tag="container-kill"):
    """End a process of a container with SIGKILL; the pod stays and Kubernetes restarts the container.

    The kernel shields PID 1 of a container from its own SIGKILL, so the victim is the engine core, whose death the API
    server of vLLM must notice. With an empty title it is every process, and PID 1 is asked by SIGTERM.
    """

    kind: ClassVar[str] = "container-kill"
    summary: ClassVar[str] = "SIGKILL the engine core inside the container; the pod stays"
    target: Target
    duration_s: float = 0.0
    title: str = ENGINE_CORE

    async def preview(self, cluster: Cluster, run_id: str) -> Plan:
        return await pod_plan(cluster, self.target, run_id)

    async def act(self, cluster: Cluster, plan: Plan) -> str:
        said = [await self._kill(cluster, victim) for victim in plan.victims]
        return "; ".join(said)

    async def _kill(self, cluster: Cluster, victim: Victim) -> str:
        everything = ("sh", "-c", "echo sending SIGTERM to PID 1 and SIGKILL to the rest; kill -TERM 1; kill -9 -1")
        command = signal_command("KILL", self.title) if self.title else everything
        said = await cluster.exec(victim.namespace or "", victim.name, command, container=victim.container)
        if not said.strip():
            raise FaultDidNotLand(f"{victim} has no process whose title begins with {self.title!r}")
        return f"{victim}: {said.strip()}"

    async def landed(self, cluster: Cluster, plan: Plan) -> str:
        return await containers_restarted(cluster, plan.victims)

    async def gone(self, cluster: Cluster, plan: Plan) -> str:
        return "a kill is over at once"


async def pods_gone_and_replaced(
    cluster: Cluster, target: Target, victims: Sequence[Victim], within_s: float = GONE_WITHIN_S
) -> str:
    """Proof by uid: the victims are gone, and for each that has a controller there is a pod that was not there before.

    Raises FaultDidNotLand.
    """
    gone_uids = {victim.uid for victim in victims}

    async def observe() -> list[Manifest]:
        return await cluster.list_objects("v1", "Pod", target.namespace, target.selector)

    await landing(
        f"the end of {_names(victims)}",
        observe,
        lambda items: gone_uids.isdisjoint(item["metadata"]["uid"] for item in items),
        within_s,
    )
    successors = [f"{v.name} (uid {v.uid}) is gone" for v in victims]
    owners = {victim.owner for victim in victims if victim.owner}
    if owners:
        items = await landing(
            f"a pod made by {', '.join(sorted(owners))}",
            observe,
            lambda items: all(any(controller_of(item) == owner for item in items) for owner in owners),
            within_s,
        )
        young = sorted(items, key=lambda item: str(item["metadata"].get("creationTimestamp")))[-len(victims) :]
        successors += [f"{i['metadata']['name']} (uid {i['metadata']['uid']}) is there" for i in young]
    return "; ".join(successors)


async def containers_restarted(cluster: Cluster, victims: Sequence[Victim], within_s: float = RESTART_WITHIN_S) -> str:
    """Proof that a container of each pod ended: its restart count rose, or it is over now. Raises FaultDidNotLand."""

    async def ended(victim: Victim) -> str:
        async def observe() -> str:
            item = await cluster.read("v1", "Pod", victim.namespace, victim.name)
            if item is None or item["metadata"]["uid"] != victim.uid:
                return f"pod {victim.name} is gone altogether"
            pod = read_pod(item)
            over = next((c.terminated or c.last_termination for c in pod.containers if c.terminated), None)
            if pod.restarts > victim.restarts:
                over = next((c.last_termination for c in pod.containers if c.last_termination), over)
                how = f", {over.reason} with exit code {over.exit_code}" if over else ""
                return f"{victim.name} restarted ({victim.restarts} to {pod.restarts} restarts{how})"
            return f"{victim.name} ended: {over.reason} with exit code {over.exit_code}" if over else ""

        return await landing(f"an ended container of {victim}", observe, bool, within_s)

    return "; ".join(await asyncio.gather(*(ended(victim) for victim in victims)))


async def evict_all(cluster: Cluster, victims: Sequence[Victim], within_s: float) -> None:
    """Evict each pod, asking again while a PodDisruptionBudget refuses. Raises FaultDidNotLand past `within_s`."""

    async def attempt(victim: Victim) -> str:
        item = await cluster.read("v1", "Pod", victim.namespace, victim.name)
        if item is None or item["metadata"]["uid"] != victim.uid or item["metadata"].get("deletionTimestamp"):
            return ""
        try:
            await cluster.evict(victim.namespace or "", victim.name)
        except ApiRefusal as refusal:
            if refusal.status == 404:
                return ""
            if refusal.status == 429:
                return str(refusal)
            raise
        return ""

    async def evict(victim: Victim) -> None:
        try:
            await wait_until(
                f"eviction of {victim}",
                lambda: attempt(victim),
                lambda refusal: not refusal,
                within_s=within_s,
                every_s=EVICTION_EVERY_S,
            )
        except WaitTimeout as error:
            raise FaultDidNotLand(f"{victim} may not be evicted: {error.last_seen}") from error

    await asyncio.gather(*(evict(victim) for victim in victims))


def _names(victims: Sequence[Victim]) -> str:
    return ", ".join(victim.name for victim in victims)
