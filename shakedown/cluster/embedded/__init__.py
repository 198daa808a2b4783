"""The embedded cluster: real Kubernetes on one Linux machine, in network namespaces without uplink.

Every function takes the cluster's name; several clusters run side by side. All need root.
"""

import asyncio
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from shakedown.cluster.embedded import addons, build, nodes, record, sweep
from shakedown.cluster.embedded.cgroups import hierarchies
from shakedown.cluster.embedded.daemons import Daemons
from shakedown.cluster.embedded.inside import ApiInside
from shakedown.cluster.embedded.layout import Layout, NodePlan, layout_of
from shakedown.cluster.embedded.lifecycle import Start, prerequisites, repair
from shakedown.cluster.embedded.machine import require_root
from shakedown.cluster.embedded.network import enter, namespaces, set_link
from shakedown.cluster.embedded.phases import Phases
from shakedown.cluster.embedded.record import Record, exclusive
from shakedown.errors import SetupError, UsageError

__all__ = [
    "DEFAULT_NAME",
    "ClusterStatus",
    "EmbeddedCluster",
    "EmbeddedNode",
    "NodeStatus",
    "down",
    "find",
    "leftovers",
    "status",
    "up",
]

DEFAULT_NAME = "shakedown"
Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class EmbeddedNode:
    """A node of an embedded cluster."""

    name: str
    address: str
    gpus: tuple[str, ...]
    """Ids of its simulated GPUs."""


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """What the API server says about a node."""

    name: str
    ready: bool
    version: str
    gpus_allocatable: int


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """Where a cluster stands."""

    name: str
    state: str
    """up · degraded (something died or a node is not Ready) · half-made (a start that did not end) · down."""
    kubernetes: str = ""
    kubeconfig: str = ""
    netns: str = ""
    nodes: tuple[NodeStatus, ...] = ()
    dead: tuple[str, ...] = ()
    """Programs that should run and do not."""
    phases_s: tuple[tuple[str, float], ...] = ()


class EmbeddedCluster:
    """A cluster that is up: how to reach it, and the levers that only this kind of cluster has."""

    def __init__(self, found: Record) -> None:
        self._layout = found.layout
        self._daemons = Daemons(self._layout, hierarchies())
        self.name = found.name
        self.kubeconfig: Path = self._layout.kubeconfig
        self.netns: str = self._layout.netns.name
        self.multicall = Path(found.programs["kubernetes"])
        self.nodes = tuple(EmbeddedNode(plan.name, plan.address, plan.gpus) for plan in self._layout.nodes)
        self.kubernetes_version = found.kubernetes
        self.phases_s = dict(found.phases_s)

    def enter(self, argv: Sequence[str]) -> list[str]:
        """`argv` prefixed so that it runs in the control plane's network namespace, where pods and Services answer."""
        return [*enter(self._layout.netns), *argv]

    def kubectl(self, args: Sequence[str]) -> list[str]:
        """The command that runs kubectl as the cluster's administrator."""
        cache = self._layout.run_dir / "kubectl-cache"
        options = [f"--kubeconfig={self.kubeconfig}", f"--cache-dir={cache}"]
        if args and args[0].startswith("__complete"):
            options = []
        return self.enter([str(self.multicall), "kubectl", *options, *args])

    async def offer(self, name: str, source: Path) -> None:
        """Show the directory `source` of this machine on every node, read-only, at /srv/shakedown/NAME.

        Works on a running cluster; another directory under a name replaces the one before for pods that start from then
        on. Raises UsageError for what is not a directory, or lies where nodes have directories of their own.
        """
        origin = source.resolve()
        if not origin.is_dir():
            raise UsageError(f"{source} is not a directory, so it cannot be offered to the nodes")
        hidden = [place for place in nodes.mount_point_directories() if origin.is_relative_to(place)]
        if hidden:
            raise UsageError(f"{source} is below {hidden[0]}, where each node has its own; move it elsewhere")
        await asyncio.gather(*(node.offer(name, origin) for node in self._running()))

    async def import_image(self, archive: Path) -> None:
        """Load an image archive (docker or OCI) into every node."""
        await asyncio.gather(*(node.import_image(archive.resolve()) for node in self._running()))

    async def install_autoscaling(self, report: Report) -> None:
        """Bring in what an autoscaling loop needs: Prometheus' image and a KEDA that answers. Idempotent.

        Raises MissingPrerequisite, CommandFailed, WaitTimeout.
        """
        kubectl = self.kubectl([])
        if await addons.is_installed(kubectl):
            return
        programs, keda_config = await addons.build_addons(report)
        phases = Phases(report)
        with phases.measured("Prometheus and KEDA images"), tempfile.TemporaryDirectory() as scratch:
            for archive in await addons.write_images(programs, Path(scratch)):
                await self.import_image(archive)
        await addons.install_keda(kubectl, keda_config, phases)

    async def set_gpu_health(self, node: str, device_id: str, healthy: bool) -> None:
        """Break or mend a simulated GPU: its device plugin tells the kubelet, which lowers or raises allocatable."""
        nodes.set_gpu_health(self._plan(node), device_id, healthy=healthy)

    async def disconnect_node(self, node: str) -> None:
        """Pull the node's network cable. Its pods live on, unreachable; it turns NotReady after the grace period."""
        await set_link(self._layout, self._plan(node), up=False)

    async def reconnect_node(self, node: str) -> None:
        """Plug the node's network cable in again."""
        await set_link(self._layout, self._plan(node), up=True)

    def enter_node(self, node: str, argv: Sequence[str]) -> list[str]:
        """`argv` prefixed so that it runs on a node, in its mount and network namespaces."""
        return [*nodes.running_node(self._plan(node), self._daemons).enter(), *argv]

    def _running(self) -> list[nodes.RunningNode]:
        return [nodes.running_node(plan, self._daemons) for plan in self._layout.nodes]

    def _plan(self, name: str) -> NodePlan:
        for plan in self._layout.nodes:
            if plan.name == name:
                return plan
        raise UsageError(f"no node {name!r} in {self.name}; there are {', '.join(n.name for n in self.nodes)}")


async def up(name: str = DEFAULT_NAME, *, nodes: int = 2, gpus_per_node: int = 4, report: Report) -> EmbeddedCluster:
    """Bring a cluster up and return when its nodes are Ready and names resolve.

    A healthy one is returned as it is, a damaged one repaired, a half-made one removed and made anew; `report` is told.
    Raises MissingPrerequisite, SetupError, UsageError; what was made until then is removed again.
    """
    require_root()
    layout = layout_of(name, nodes=nodes, gpus_per_node=gpus_per_node)
    if not layout.nodes:
        raise UsageError("a cluster needs at least one node")
    with exclusive(layout):
        existing = record.load(layout)
        if existing is not None and existing.complete:
            _require_same_order(existing, nodes, gpus_per_node)
            if await repair(existing, report):
                report(f"the cluster {name} is up")
                return EmbeddedCluster(existing)
        if sweep.leftovers(layout):
            report(f"removing what is left of a damaged or half-made cluster {name}")
            await sweep.sweep(layout)
        return await _make(layout, gpus_per_node, report)


async def _make(layout: Layout, gpus_per_node: int, report: Report) -> EmbeddedCluster:
    phases = Phases(report)
    with phases.measured("packages and programs"):
        programs = await prerequisites(report)
    ordered = Record(
        name=layout.name,
        nodes=len(layout.nodes),
        gpus_per_node=gpus_per_node,
        kubernetes=build.kubernetes_version(),
        programs={program: str(path) for program, path in programs.items()},
    )
    try:
        made = await Start(ordered, phases).run()
    except BaseException:
        report(f"the cluster {layout.name} did not come up; removing what was made")
        await asyncio.shield(sweep.sweep(layout))
        raise
    report(f"the cluster {layout.name} is up after {phases.elapsed_s:.1f} s")
    return EmbeddedCluster(made)


def _require_same_order(existing: Record, node_count: int, gpus_per_node: int) -> None:
    if (existing.nodes, existing.gpus_per_node) != (node_count, gpus_per_node):
        raise UsageError(
            f"the cluster {existing.name!r} is up with {existing.nodes} nodes and {existing.gpus_per_node} GPUs each; "
            f"take it down first (shakedown down --name {existing.name}) or choose another --name"
        )


async def find(name: str = DEFAULT_NAME) -> EmbeddedCluster | None:
    """The cluster called `name` if it was brought up and its API server runs."""
    layout = layout_of(name)
    found = record.load(layout)
    if found is None or not found.complete or Daemons(layout, hierarchies()).pid("kube-apiserver") is None:
        return None
    return EmbeddedCluster(found)


async def status(name: str = DEFAULT_NAME) -> ClusterStatus:
    """Where the cluster called `name` stands. Never fails because it is broken: that is an answer."""
    layout = layout_of(name)
    found = record.load(layout)
    if found is None or not found.complete:
        return ClusterStatus(name, "half-made" if sweep.leftovers(layout) else "down")
    daemons = Daemons(layout, hierarchies())
    dead = tuple(each for each in daemons.names() if daemons.pid(each) is None)
    seen = await _node_statuses(found)
    healthy = not dead and len(seen) == found.nodes and all(node.ready for node in seen)
    return ClusterStatus(
        name,
        "up" if healthy else "degraded",
        kubernetes=found.kubernetes,
        kubeconfig=str(layout.kubeconfig),
        netns=layout.netns.name,
        nodes=seen,
        dead=dead,
        phases_s=tuple(found.phases_s.items()),
    )


async def _node_statuses(found: Record) -> tuple[NodeStatus, ...]:
    layout = found.layout
    if layout.netns not in namespaces(layout.name):
        return ()
    try:
        async with ApiInside(layout.netns, layout.certificates) as api:
            listed = await api.read("/api/v1/nodes") or {"items": []}
    except (httpx.HTTPError, OSError, SetupError):
        return ()
    return tuple(_node_status(item) for item in listed["items"])


def _node_status(item: dict[str, dict[str, object]]) -> NodeStatus:
    status: dict[str, object] = item["status"]
    conditions, allocatable, facts = status.get("conditions"), status.get("allocatable"), status.get("nodeInfo")
    return NodeStatus(
        name=str(item["metadata"]["name"]),
        ready=any(
            each.get("type") == "Ready" and each.get("status") == "True"
            for each in (conditions if isinstance(conditions, list) else [])
        ),
        version=str(facts["kubeletVersion"]) if isinstance(facts, dict) else "",
        gpus_allocatable=int(allocatable.get("nvidia.com/gpu", 0)) if isinstance(allocatable, dict) else 0,
    )


async def down(name: str = DEFAULT_NAME, report: Report = lambda _: None) -> None:
    """Take the cluster called `name` down, in whatever state it is; nothing to take down is fine too."""
    layout = layout_of(name)
    require_root()
    with exclusive(layout):
        if not sweep.leftovers(layout):
            sweep.remove_created_directories()
            report(f"there is no cluster {name}")
            return
        phases = Phases(lambda _: None)
        await sweep.sweep(layout)
        report(f"the cluster {name} is down; it took {phases.elapsed_s:.1f} s")


def leftovers(name: str = DEFAULT_NAME) -> tuple[str, ...]:
    """What exists of the cluster called `name`: processes, namespaces, mounts… Empty after `down`."""
    return sweep.leftovers(layout_of(name))
