"""Bringing a cluster up: what waits for what, and what runs side by side."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx

from shakedown.cluster.embedded import build, cgroups, controlplane, dns, images, nodes, record, sweep
from shakedown.cluster.embedded.cgroups import hierarchies
from shakedown.cluster.embedded.credentials import write_credentials
from shakedown.cluster.embedded.daemons import Daemons
from shakedown.cluster.embedded.inside import ApiInside
from shakedown.cluster.embedded.layout import STATE_ROOT, Layout, NodePlan
from shakedown.cluster.embedded.machine import require_free_space
from shakedown.cluster.embedded.mounts import mount_points
from shakedown.cluster.embedded.network import enter, make_network, namespaces, set_link
from shakedown.cluster.embedded.packages import cni_directory, ensure_packages
from shakedown.cluster.embedded.phases import Phases, together
from shakedown.cluster.embedded.record import Record
from shakedown.errors import HarnessError, SetupError
from shakedown.waiting import wait_until

Report = Callable[[str], None]

PROGRAMS = ("kubernetes", "coredns", "pause")
CLUSTER_NEEDS_BYTES = 2 * 1024**3
API_LIMIT_S = 90.0
NODES_LIMIT_S = 120.0
DNS_LIMIT_S = 120.0
REPAIR_LIMIT_S = 40.0
SIGNAL_EVERY_S = 0.1
NOT_YET = (httpx.TransportError,)


async def prerequisites(report: Report) -> dict[str, Path]:
    """Packages and programs; returns the file of each program."""
    require_free_space(STATE_ROOT, CLUSTER_NEEDS_BYTES, "a cluster")
    await ensure_packages(report)
    built = await asyncio.gather(*(build.binary(name, report) for name in PROGRAMS))
    return dict(zip(PROGRAMS, built, strict=True))


class Start:
    """One start of one cluster, from nothing to Ready."""

    def __init__(self, ordered: Record, phases: Phases) -> None:
        self.ordered, self.layout, self.phases = ordered, ordered.layout, phases
        self.multicall = Path(ordered.programs["kubernetes"])
        self.daemons = Daemons(self.layout, hierarchies())
        self._archives = [self.layout.state_dir / f"{name}.tar" for name in ("pause", "coredns", "machine")]
        self._images_written = asyncio.Event()
        self._api_ready = asyncio.Event()

    async def run(self) -> Record:
        """Make everything; return the record of what is up."""
        record.save(self.ordered)
        self.layout.run_dir.mkdir(parents=True, exist_ok=True)
        sweep.create_directories(nodes.mount_point_directories())
        self._make_cgroups()
        with self.phases.measured("network and certificates"):
            await together(make_network(self.layout), asyncio.to_thread(write_credentials, self.layout))
        async with ApiInside(self.layout.netns, self.layout.certificates) as api:
            await together(
                self._control_plane(api), self._write_images(), *(self._node(node) for node in self.layout.nodes)
            )
            await await_healthy(api, self.layout, self.daemons, NODES_LIMIT_S)
            self.phases.reached(f"{len(self.layout.nodes)} nodes Ready")
            await self._dns(api)
        complete = replace(self.ordered, complete=True, phases_s=self.phases.seconds)
        record.save(complete)
        return complete

    def _make_cgroups(self) -> None:
        found = self.daemons.found
        for name in ("daemons", *(node.name for node in self.layout.nodes)):
            cgroups.make(f"{self.layout.cgroup}/{name}", found)

    async def _control_plane(self, api: ApiInside) -> None:
        with self.phases.measured("API server ready"):
            await self._start("etcd", controlplane.etcd(self.layout))
            await self._start("kube-apiserver", controlplane.api_server(self.layout))
            await self._await_api(api)
        self._api_ready.set()
        await self._start("kube-controller-manager", controlplane.controller_manager(self.layout))
        await self._start("kube-scheduler", controlplane.scheduler(self.layout))
        # Services must answer in the control plane's namespace too, where load and metrics come from.
        await self._start("kube-proxy", controlplane.kube_proxy(self.layout, self.layout.nodes[0].name))
        await dns.deploy_dns(api, replicas=min(2, len(self.layout.nodes)))

    async def _await_api(self, api: ApiInside) -> None:
        async def ready() -> bool:
            require_alive(self.daemons)
            return await api.ready()

        await wait_until("the API server", ready, bool, within_s=API_LIMIT_S, every_s=SIGNAL_EVERY_S, tolerate=NOT_YET)

    async def _write_images(self) -> None:
        programs = {name: Path(path) for name, path in self.ordered.programs.items()}
        made = (
            images.pause_image(programs["pause"]),
            images.coredns_image(programs["coredns"]),
            images.machine_image(),
        )
        for image, archive in zip(made, self._archives, strict=True):
            await asyncio.to_thread(image.write, archive)
        self._images_written.set()

    async def _node(self, plan: NodePlan) -> None:
        with self.phases.measured(f"{plan.name}: namespaces, containerd, images"):
            node = await nodes.hold(plan, self.daemons, Path(self.ordered.programs["pause"]))
            await nodes.start_containerd(node, self.daemons, cni_directory())
            await self._images_written.wait()
            for archive in self._archives:
                await node.import_image(archive)
        await self._api_ready.wait()
        await nodes.start_kubelet(node, self.layout, self.daemons, self.multicall)
        proxy = controlplane.kube_proxy(self.layout, plan.name)
        await self.daemons.start(f"{plan.name}-kube-proxy", [*node.enter(), self.multicall, *proxy])

    async def _dns(self, api: ApiInside) -> None:
        with self.phases.measured("DNS and default service account"):
            await _await_object(api, self.daemons, dns.DEPLOYMENT_PATH, dns.is_available)
            await _await_object(api, self.daemons, "/api/v1/namespaces/default/serviceaccounts/default", bool)

    async def _start(self, name: str, words: list[str]) -> None:
        await self.daemons.start(name, [*enter(self.layout.netns), self.multicall, *words])


async def _await_object(
    api: ApiInside, daemons: Daemons, path: str, holds: Callable[[dict[str, Any] | None], bool]
) -> None:
    async def read() -> dict[str, Any] | None:
        require_alive(daemons)
        return await api.read(path)

    await wait_until(path, read, holds, within_s=DNS_LIMIT_S, every_s=SIGNAL_EVERY_S, tolerate=NOT_YET)


def require_alive(daemons: Daemons) -> None:
    """Raise SetupError, with its last words, for a daemon that has ended."""
    for name in daemons.ended():
        raise SetupError(f"{name} ended; its last words:\n{daemons.last_words(name)}")


async def await_healthy(api: ApiInside, layout: Layout, daemons: Daemons, within_s: float) -> None:
    """Wait until every node is Ready and offers the GPUs that are not broken on purpose."""

    async def unready() -> tuple[str, ...]:
        require_alive(daemons)
        listed = await api.read("/api/v1/nodes") or {"items": []}
        return unready_nodes({node.name: nodes.healthy_gpus(node) for node in layout.nodes}, listed["items"])

    await wait_until(
        f"Ready nodes of {layout.name}",
        unready,
        lambda names: not names,
        within_s=within_s,
        every_s=SIGNAL_EVERY_S,
        tolerate=NOT_YET,
    )


def unready_nodes(expected_gpus: Mapping[str, int], listed: list[dict[str, Any]]) -> tuple[str, ...]:
    """Expected nodes that the API does not call Ready, or that do not offer the expected number of GPUs."""
    by_name = {item["metadata"]["name"]: item.get("status", {}) for item in listed}
    return tuple(name for name, gpus in expected_gpus.items() if not _is_ready(by_name.get(name, {}), gpus))


def _is_ready(status: dict[str, Any], gpus: int) -> bool:
    conditions = {condition["type"]: condition["status"] for condition in status.get("conditions", [])}
    return conditions.get("Ready") == "True" and int(status.get("allocatable", {}).get("nvidia.com/gpu", 0)) == gpus


async def repair(existing: Record, report: Report) -> bool:
    """Start again what died; True if the cluster is healthy then. A lost node namespace cannot be repaired."""
    daemons = Daemons(existing.layout, hierarchies())
    dead = [name for name in daemons.names() if daemons.pid(name) is None]
    namespaces_gone = not set(namespaces(existing.name)) <= set(mount_points()) or not namespaces(existing.name)
    if namespaces_gone or any(name.endswith("-holder") for name in dead) or not daemons.names():
        return False
    for node in existing.layout.nodes:
        await set_link(existing.layout, node, up=True)
    if dead:
        report(f"restarting {', '.join(dead)}")
        await daemons.restart_dead()
    try:
        async with ApiInside(existing.layout.netns, existing.layout.certificates) as api:
            await await_healthy(api, existing.layout, daemons, REPAIR_LIMIT_S)
    except (HarnessError, OSError) as error:
        report(f"the cluster {existing.name} does not recover: {error}")
        return False
    return True
