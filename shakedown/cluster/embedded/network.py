"""The cluster's network: a namespace without uplink, a bridge in it, and a cable to each node's own namespace.

Nothing of it exists in the machine's own namespace, so no address, port, link or rule can clash or be left there.
"""

import asyncio
import contextlib
from pathlib import Path

from shakedown.cluster.embedded.layout import (
    CONTROL_PLANE_ADDRESS,
    NETNS_ROOT,
    NODE_SUBNET_BITS,
    SERVICE_NETWORK,
    Layout,
    NodePlan,
)
from shakedown.cluster.embedded.mounts import mount_points
from shakedown.process import run

BRIDGE = "nodes0"
NODE_LINK = "eth0"
STEP_LIMIT_S = 20.0


def enter(netns: Path) -> list[str]:
    """Command prefix that runs a program in a network namespace. Unlike `ip netns exec` it keeps /sys as it is."""
    return ["nsenter", f"--net={netns}", "--"]


async def make_namespace(netns: Path) -> None:
    """Make a named network namespace in which packets are forwarded. An existing one is kept."""
    if netns in mount_points():
        return
    NETNS_ROOT.mkdir(parents=True, exist_ok=True)
    netns.touch()
    await run(["unshare", f"--net={netns}", "true"], timeout_s=STEP_LIMIT_S)


async def make_network(layout: Layout) -> None:
    """Make the namespaces and wire them."""
    await asyncio.gather(*(make_namespace(netns) for netns in (layout.netns, *(node.netns for node in layout.nodes))))
    await _ip_batch(layout.netns, control_plane_commands(layout))
    await asyncio.gather(*(_ip_batch(node.netns, node_commands(node, layout)) for node in layout.nodes))
    await asyncio.gather(*(_forward(netns) for netns in (layout.netns, *(node.netns for node in layout.nodes))))


def control_plane_commands(layout: Layout) -> list[str]:
    """`ip` commands for the control plane's namespace: bridge, cables, and the way to each node's pods."""
    commands = [
        "link set lo up",
        f"link add {BRIDGE} type bridge",
        f"address add {CONTROL_PLANE_ADDRESS}/{NODE_SUBNET_BITS} dev {BRIDGE}",
        f"link set {BRIDGE} up",
        # Service addresses exist in packet filter rules only, but a packet without a route does not get that far.
        f"route add {SERVICE_NETWORK} dev {BRIDGE}",
    ]
    for node in layout.nodes:
        commands += [
            f"link add {node.link} type veth peer name {NODE_LINK} netns {node.netns.name}",
            f"link set {node.link} master {BRIDGE} up",
            f"route add {node.pod_subnet} via {node.address}",
        ]
    return commands


def node_commands(node: NodePlan, layout: Layout) -> list[str]:
    """`ip` commands for a node's namespace: its address, and the way to the other nodes' pods."""
    others = [other for other in layout.nodes if other.index != node.index]
    return [
        "link set lo up",
        f"address add {node.address}/{NODE_SUBNET_BITS} dev {NODE_LINK}",
        f"link set {NODE_LINK} up",
        f"route add default via {CONTROL_PLANE_ADDRESS}",
        *(f"route add {other.pod_subnet} via {other.address}" for other in others),
    ]


async def set_link(layout: Layout, node: NodePlan, *, up: bool) -> None:
    """Plug in or pull out the cable of a node."""
    command = ["ip", "link", "set", node.link, "up" if up else "down"]
    await run([*enter(layout.netns), *command], timeout_s=STEP_LIMIT_S)


def namespaces(name: str) -> tuple[Path, ...]:
    """Files of the network namespaces that belong to the cluster called `name`, by their names."""
    own = NETNS_ROOT / f"shakedown.{name}"
    return tuple(sorted((*NETNS_ROOT.glob(f"{own.name}.*"), *([own] if own.exists() else []))))


async def remove_namespace(netns: Path) -> None:
    """Unmount (as often as it is mounted) and remove the file of a network namespace."""
    while netns in mount_points():
        await run(["umount", netns], timeout_s=STEP_LIMIT_S)
    netns.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        NETNS_ROOT.rmdir()


async def _ip_batch(netns: Path, commands: list[str]) -> None:
    await run([*enter(netns), "ip", "-batch", "-"], stdin="\n".join(commands) + "\n", timeout_s=STEP_LIMIT_S)


async def _forward(netns: Path) -> None:
    await run([*enter(netns), "sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward"], timeout_s=STEP_LIMIT_S)
