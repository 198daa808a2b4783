"""How the world is put back: steps as data, so that a process that never saw the fault can play them.

Each step is idempotent, takes back only what the fault itself changed, and proves that it is taken back.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import httpx
import msgspec

from shakedown.cluster import embedded
from shakedown.cluster.api import ApiRefusal, Cluster
from shakedown.cluster.objects import Manifest
from shakedown.engine import knobs
from shakedown.errors import HarnessError, RollbackFailed
from shakedown.waiting import wait_until

CORDONED_BY = "shakedown.dev/cordoned-by"
KNOBS_ANSWER_WITHIN_S = 120.0
"""An engine that a fault ended takes up to a minute on a busy machine to answer again."""
CONFLICT_RETRIES_WITHIN_S = 10.0
READY_AGAIN_WITHIN_S = 60.0


class Uncordon(msgspec.Struct, frozen=True, kw_only=True, tag="uncordon"):
    """Let pods be scheduled again, if it was this run that cordoned the node."""

    node: str
    run_id: str

    def __str__(self) -> str:
        return f"uncordon node {self.node}"

    async def play(self, cluster: Cluster) -> str:
        node = await cluster.read("v1", "Node", None, self.node)
        if node is None:
            return f"node {self.node} is gone"
        if node["metadata"].get("annotations", {}).get(CORDONED_BY) != self.run_id:
            return f"node {self.node} is not cordoned by this run"
        body = {"metadata": {"annotations": {CORDONED_BY: None}}, "spec": {"unschedulable": None}}
        after = await cluster.patch("v1", "Node", None, self.node, body)
        if after.get("spec", {}).get("unschedulable"):
            raise RollbackFailed(f"node {self.node} is still cordoned")
        return f"node {self.node} is schedulable"


class RemoveTaint(msgspec.Struct, frozen=True, kw_only=True, tag="remove-taint"):
    """Take one taint off a node and leave the others."""

    node: str
    key: str

    def __str__(self) -> str:
        return f"remove taint {self.key} from node {self.node}"

    async def play(self, cluster: Cluster) -> str:
        await edit_taints(cluster, self.node, lambda taints: [t for t in taints if t["key"] != self.key])
        return f"node {self.node} has no taint {self.key}"


class RestoreReplicas(msgspec.Struct, frozen=True, kw_only=True, tag="restore-replicas"):
    """Scale a Deployment back, unless somebody else has scaled it since."""

    namespace: str
    name: str
    uid: str
    ours: int
    before: int

    def __str__(self) -> str:
        return f"scale Deployment {self.namespace}/{self.name} back to {self.before}"

    async def play(self, cluster: Cluster) -> str:
        item = await cluster.read("apps/v1", "Deployment", self.namespace, self.name)
        if item is None or item["metadata"]["uid"] != self.uid:
            return f"Deployment {self.namespace}/{self.name} is gone"
        now = item["spec"].get("replicas", 1)
        if now not in (self.ours, self.before):
            return f"Deployment {self.namespace}/{self.name} was scaled to {now} by somebody else: left alone"
        body = {"spec": {"replicas": self.before}}
        after = await cluster.patch("apps/v1", "Deployment", self.namespace, self.name, body)
        if after["spec"]["replicas"] != self.before:
            raise RollbackFailed(f"Deployment {self.namespace}/{self.name} has {after['spec']['replicas']} replicas")
        return f"Deployment {self.namespace}/{self.name} wants {self.before} replicas again"


class DeleteObject(msgspec.Struct, frozen=True, kw_only=True, tag="delete-object"):
    """Delete an object that the fault made."""

    api_version: str
    kind: str
    namespace: str | None
    name: str
    gone_within_s: float = 60.0

    def __str__(self) -> str:
        return f"delete {self.kind} {self.namespace or ''}/{self.name}"

    async def play(self, cluster: Cluster) -> str:
        await cluster.delete(self.api_version, self.kind, self.namespace, self.name)

        async def observe() -> Manifest | None:
            return await cluster.read(self.api_version, self.kind, self.namespace, self.name)

        await wait_until(
            f"deletion of {self.kind} {self.name}", observe, lambda item: item is None, within_s=self.gone_within_s
        )
        return f"{self.kind} {self.name} is deleted"


class RemovePodLabel(msgspec.Struct, frozen=True, kw_only=True, tag="remove-pod-label"):
    """Take a label off a pod."""

    namespace: str
    name: str
    uid: str
    label: str

    def __str__(self) -> str:
        return f"remove label {self.label} from Pod {self.namespace}/{self.name}"

    async def play(self, cluster: Cluster) -> str:
        if not await same_pod(cluster, self.namespace, self.name, self.uid):
            return f"Pod {self.name} is gone, and its label with it"
        await cluster.patch("v1", "Pod", self.namespace, self.name, {"metadata": {"labels": {self.label: None}}})
        return f"Pod {self.name} has no label {self.label}"


class ReleaseKnobs(msgspec.Struct, frozen=True, kw_only=True, tag="release-knobs"):
    """Turn an engine's fault knobs back to where they were."""

    namespace: str
    name: str
    uid: str
    url: str
    step_slowdown: float = 1.0
    hang: bool = False
    device_error: bool = False
    oom: bool = False
    memory_pressure_gib: float = 0.0

    def __str__(self) -> str:
        return f"release the fault knobs of Pod {self.namespace}/{self.name}"

    async def play(self, cluster: Cluster) -> str:
        async def observe() -> knobs.Knobs | None:
            if not await same_pod(cluster, self.namespace, self.name, self.uid):
                return None
            now = await knobs.read(self.url)
            wanted = replace(
                now,
                step_slowdown=self.step_slowdown,
                hang=self.hang,
                device_error=self.device_error,
                oom=self.oom,
                memory_pressure_gib=self.memory_pressure_gib,
            )
            if now != wanted:
                await knobs.turn(self.url, wanted)
            return await knobs.read(self.url)

        seen = await wait_until(
            f"an answer of the fault knobs of pod {self.name} at {self.url}",
            observe,
            lambda now: now is None or self._holds(now),
            within_s=KNOBS_ANSWER_WITHIN_S,
            tolerate=(httpx.HTTPError, OSError, HarnessError),
        )
        return f"Pod {self.name} is gone, and its knobs with it" if seen is None else f"knobs of {self.name}: {seen}"

    def _holds(self, now: knobs.Knobs) -> bool:
        ours = (self.step_slowdown, self.hang, self.device_error, self.oom, self.memory_pressure_gib)
        return (now.step_slowdown, now.hang, now.device_error, now.oom, now.memory_pressure_gib) == ours


class ContinueProcess(msgspec.Struct, frozen=True, kw_only=True, tag="continue-process"):
    """Send SIGCONT to what the fault stopped in a container."""

    namespace: str
    name: str
    uid: str
    container: str
    command: tuple[str, ...]

    def __str__(self) -> str:
        return f"let the stopped process of Pod {self.namespace}/{self.name} continue"

    async def play(self, cluster: Cluster) -> str:
        if not await same_pod(cluster, self.namespace, self.name, self.uid):
            return f"Pod {self.name} is gone, and its processes with it"
        said = await cluster.exec(self.namespace, self.name, self.command, container=self.container)
        return f"in Pod {self.name}: {said.strip() or 'no such process any more'}"


class PlugIn(msgspec.Struct, frozen=True, kw_only=True, tag="plug-in"):
    """Give a node of an embedded cluster its network back."""

    cluster: str
    node: str

    def __str__(self) -> str:
        return f"plug in the network cable of {self.node}"

    async def play(self, cluster: Cluster) -> str:
        await (await self.owner()).reconnect_node(self.node)
        await wait_until(
            f"a Ready {self.node}", lambda: node_is_ready(cluster, self.node), bool, within_s=READY_AGAIN_WITHIN_S
        )
        return f"{self.node} is Ready"

    async def owner(self) -> embedded.EmbeddedCluster:
        """The cluster that the node is of. Raises RollbackFailed where it does not run any more."""
        found = await embedded.find(self.cluster)
        if found is None:
            raise RollbackFailed(f"the embedded cluster {self.cluster} does not run, and its nodes with it")
        return found


UndoStep: TypeAlias = (
    Uncordon | RemoveTaint | RestoreReplicas | DeleteObject | RemovePodLabel | ReleaseKnobs | ContinueProcess | PlugIn
)


async def play_all(cluster: Cluster, steps: tuple[UndoStep, ...]) -> tuple[str, ...]:
    """Play the steps newest first, all of them; return the proofs. Raises RollbackFailed naming each that failed."""
    proofs, failures = [], []
    for step in reversed(steps):
        try:
            proofs.append(await step.play(cluster))
        except (HarnessError, httpx.HTTPError, OSError) as error:
            failures.append(f"{step}: {error}")
    if failures:
        raise RollbackFailed("; ".join(failures))
    return tuple(proofs)


async def same_pod(cluster: Cluster, namespace: str, name: str, uid: str) -> bool:
    """True while the pod of that uid is there."""
    item = await cluster.read("v1", "Pod", namespace, name)
    return item is not None and bool(item["metadata"]["uid"] == uid)


async def node_is_ready(cluster: Cluster, name: str) -> bool:
    """What the API server says of a node; one that is gone is not Ready."""
    return any(node.name == name and node.ready for node in await cluster.nodes())


async def edit_taints(cluster: Cluster, node: str, edit: Callable[[list[Manifest]], list[Manifest]]) -> list[Manifest]:
    """Change a node's taints under its resourceVersion; a concurrent change makes us read again."""

    async def attempt() -> list[Manifest] | None:
        item = await cluster.read("v1", "Node", None, node)
        if item is None:
            return []
        taints: list[Manifest] = edit(item.get("spec", {}).get("taints", []))
        body = {"metadata": {"resourceVersion": item["metadata"]["resourceVersion"]}, "spec": {"taints": taints}}
        try:
            after = await cluster.patch("v1", "Node", None, node, body)
        except ApiRefusal as refusal:
            if refusal.status == 409:
                return None
            raise
        return list(after.get("spec", {}).get("taints", []))

    what = f"an undisputed change of the taints of node {node}"
    seen = await wait_until(what, attempt, lambda taints: taints is not None, within_s=CONFLICT_RETRIES_WITHIN_S)
    return seen or []
