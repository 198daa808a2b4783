"""A node: a mount namespace of its own on top of its network namespace, and the programs that run in both.

Two kubelets cannot share one file system: their logs, sockets and volumes would mix. So every node sees directories of
its own under the standard paths, and an agent that a chart mounts there (a chaos daemon, a log shipper) finds what it
expects. All these mounts vanish with the node's last process.
"""

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path

from shakedown.cluster.embedded.daemons import Daemons
from shakedown.cluster.embedded.images import PAUSE_IMAGE
from shakedown.cluster.embedded.layout import (
    CLUSTER_LABEL,
    DNS_ADDRESS,
    DNS_DOMAIN,
    INFRASTRUCTURE_LABEL,
    OFFERS_ROOT,
    Layout,
    NodePlan,
)
from shakedown.cluster.embedded.network import enter
from shakedown.errors import SetupError, UsageError
from shakedown.process import run
from shakedown.waiting import wait_until

HOLDER_LIMIT_S = 20.0
CONTAINERD_LIMIT_S = 30.0
IMPORT_LIMIT_S = 120.0
MOUNT_LIMIT_S = 20.0
GPU_PRODUCT = "NVIDIA-A100-SXM4-80GB"
GPU_MEMORY_MIB = 81920
OFFERS_MOUNT = OFFERS_ROOT.parent

# What a kubelet would set on the machine itself. It finds these values in place instead, so nothing has to be put back.
KERNEL_SETTINGS = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1_000_000,
    "kernel/keys/root_maxbytes": 25_000_000,
}

# This mount namespace is a copy, and would keep other clusters' network namespaces alive: it lets go of them first.
_HOLD = """
set -e
while read -r _ _ _ _ point rest; do
  case "$rest" in *" - nsfs "*) umount "$point" || true ;; esac
done </proc/self/mountinfo
mount --make-rshared /
mount -t tmpfs -o mode=755,size=1m shakedown-offers "$1"
hold="$2"
shift 2
while [ $# -gt 0 ]; do
  mount --bind "$1" "$2"
  mount --make-private "$2"
  mount --make-shared "$2"
  shift 2
done
exec "$hold"
"""

_OFFER = """
set -e
mkdir -p "$2"
if mountpoint -q "$2"; then
  [ "$(stat -c %d:%i "$1")" = "$(stat -c %d:%i "$2")" ] && exit 0
  umount -l "$2"
fi
mount --bind "$1" "$2"
mount -o remount,bind,ro "$2"
"""


def own_directories(node: NodePlan) -> dict[Path, Path]:
    """Directories that the node sees under standard paths: path in the node to place on the machine."""
    return {
        Path("/run/containerd"): node.run_dir / "containerd",
        Path("/run/netns"): node.run_dir / "netns",
        Path("/var/lib/containerd"): node.state_dir / "containerd",
        Path("/var/lib/kubelet"): node.state_dir / "kubelet",
        Path("/var/lib/cni"): node.state_dir / "cni",
        Path("/var/log/pods"): node.state_dir / "pod-logs",
        Path("/var/log/containers"): node.state_dir / "container-logs",
        Path("/etc/cni/net.d"): node.state_dir / "cni-configuration",
        Path("/etc/kubernetes"): node.state_dir / "kubernetes",
    }


def mount_point_directories() -> tuple[Path, ...]:
    """Directories that must exist on the machine so that a node can mount its own over them."""
    return (*own_directories(NodePlan("", 0, 0)), OFFERS_MOUNT)


def containerd_configuration(cni_directory: Path, snapshotter: str) -> str:
    """containerd's TOML. Plugins that would make directories elsewhere on the machine are off."""
    cri = 'plugins."io.containerd.grpc.v1.cri"'
    unused = ", ".join(
        f'"io.containerd.{plugin}"'
        for plugin in (
            "internal.v1.opt",
            "snapshotter.v1.aufs",
            "snapshotter.v1.btrfs",
            "snapshotter.v1.devmapper",
            "snapshotter.v1.zfs",
            "tracing.processor.v1.otlp",
        )
    )
    return f"""version = 2
disabled_plugins = [{unused}]

[{cri}]
sandbox_image = "{PAUSE_IMAGE}"
restrict_oom_score_adj = true

[{cri}.cni]
bin_dir = "{cni_directory}"
conf_dir = "/etc/cni/net.d"

[{cri}.containerd]
snapshotter = "{snapshotter}"
default_runtime_name = "runc"

[{cri}.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[{cri}.containerd.runtimes.runc.options]
SystemdCgroup = false
"""


def cni_configuration(node: NodePlan) -> str:
    """The pod network: a routed cable per pod; Services work between pods of one node without bridge filtering."""
    plugins = [
        {
            "type": "ptp",
            "ipMasq": False,
            "ipam": {
                "type": "host-local",
                "ranges": [[{"subnet": node.pod_subnet}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        },
        {"type": "portmap", "capabilities": {"portMappings": True}},
    ]
    return json.dumps({"cniVersion": "0.4.0", "name": "pods", "plugins": plugins}, indent=1)


def kubelet_configuration(layout: Layout, node: NodePlan) -> str:
    """The KubeletConfiguration (JSON, which is YAML). Leases are renewed every 5 s to fit the 20 s grace of a node."""
    keys = layout.certificates
    content = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {"anonymous": {"enabled": False}, "x509": {"clientCAFile": str(keys / "ca.crt")}},
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(keys / f"{node.name}.crt"),
        "tlsPrivateKeyFile": str(keys / f"{node.name}.key"),
        "address": node.address,
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{node.cgroup}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "resolvConf": "",
        "clusterDNS": [DNS_ADDRESS],
        "clusterDomain": DNS_DOMAIN,
        "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
        "nodeLeaseDurationSeconds": 20,
        "nodeStatusUpdateFrequency": "2s",
        "serializeImagePulls": False,
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
    }
    return json.dumps(content, indent=1)


def kubelet(layout: Layout, node: NodePlan) -> list[str]:
    """The kubelet's arguments."""
    return [
        "kubelet",
        f"--config={node.state_dir / 'kubelet.json'}",
        f"--kubeconfig={layout.certificates / f'{node.name}-kubelet.kubeconfig'}",
        f"--hostname-override={node.name}",
        f"--node-ip={node.address}",
        f"--node-labels={','.join(f'{key}={value}' for key, value in labels(layout, node).items())}",
    ]


def labels(layout: Layout, node: NodePlan) -> dict[str, str]:
    """Whose node it is, and what GPU feature discovery would set. The last node carries what watches the others."""
    found = {CLUSTER_LABEL: node.cluster}
    if node.index == layout.nodes[-1].index:
        found[INFRASTRUCTURE_LABEL] = "true"
    if node.gpus_per_node:
        found |= {
            "shakedown.dev/simulated-gpu": "true",
            "nvidia.com/gpu.present": "true",
            "nvidia.com/gpu.product": GPU_PRODUCT,
            "nvidia.com/gpu.count": str(node.gpus_per_node),
            "nvidia.com/gpu.memory": str(GPU_MEMORY_MIB),
        }
    return found


def device_plugin(node: NodePlan) -> list[str]:
    """The device plugin's arguments."""
    return ["device-plugin", f"--devices={','.join(node.gpus)}", f"--unhealthy={node.unhealthy_gpus}"]


@dataclass(frozen=True, slots=True)
class RunningNode:
    """A node whose namespaces exist: commands can be run in it."""

    plan: NodePlan
    holder: int
    """Process that keeps the node's mount namespace."""

    def enter(self) -> list[str]:
        """Command prefix that runs a program on the node."""
        return ["nsenter", f"--target={self.holder}", "--mount", "--net", "--"]

    async def offer(self, name: str, source: Path) -> None:
        """Show a directory of the machine on the node, read-only, at OFFERS_ROOT / name."""
        argv: list[str | Path] = [*self.enter(), "sh", "-c", _OFFER, "offer", source, OFFERS_ROOT / name]
        await run(argv, timeout_s=MOUNT_LIMIT_S)

    async def import_image(self, archive: Path) -> None:
        """Load an image archive into the node's containerd."""
        await run([*self.enter(), "ctr", "-n", "k8s.io", "images", "import", archive], timeout_s=IMPORT_LIMIT_S)


async def hold(node: NodePlan, daemons: Daemons, pause: Path) -> RunningNode:
    """Make the node's mount namespace and keep it."""
    settings = {}
    for name, value in KERNEL_SETTINGS.items():
        if Path("/proc/sys", name).exists():
            settings[Path("/proc/sys", name)] = file = node.run_dir / "settings" / name.replace("/", ".")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{value}\n")
    directories = own_directories(node)
    for place in directories.values():
        place.mkdir(parents=True, exist_ok=True)
    binds = [str(path) for inside, outside in {**directories, **settings}.items() for path in (outside, inside)]
    name = f"{node.name}-holder"
    unshare = [*enter(node.netns), "unshare", "--mount", "--propagation=private", "--"]
    await daemons.start(name, [*unshare, "sh", "-c", _HOLD, "hold", OFFERS_MOUNT, pause, *binds])

    async def program() -> str:
        pid = daemons.pid(name)
        if pid is None:
            raise SetupError(f"the mounts of {node.name} cannot be made:\n{daemons.last_words(name)}")
        return str(Path(f"/proc/{pid}/exe").readlink())

    await wait_until(
        f"the namespaces of {node.name}", program, lambda exe: exe == str(pause), within_s=HOLDER_LIMIT_S, every_s=0.02
    )
    return running_node(node, daemons)


def running_node(node: NodePlan, daemons: Daemons) -> RunningNode:
    """The node of a cluster that is up. Raises SetupError if its namespaces are gone."""
    pid = daemons.pid(f"{node.name}-holder")
    if pid is None:
        raise SetupError(f"{node.name} has lost its namespaces; `shakedown up --name {node.cluster}` makes it anew")
    return RunningNode(node, pid)


async def start_containerd(node: RunningNode, daemons: Daemons, cni_directory: Path) -> None:
    """Start the node's containerd and wait until it answers on its socket."""
    plan = node.plan
    configuration = plan.state_dir / "containerd.toml"
    configuration.write_text(containerd_configuration(cni_directory, _snapshotter(plan.state_dir)))
    (plan.state_dir / "cni-configuration" / "10-pods.conflist").write_text(cni_configuration(plan))
    name = f"{plan.name}-containerd"
    await daemons.start(name, [*node.enter(), "containerd", "--config", configuration, "--log-level", "warn"])
    socket = plan.run_dir / "containerd" / "containerd.sock"

    async def answers() -> bool:
        if daemons.pid(name) is None:
            raise SetupError(f"containerd of {plan.name} ended:\n{daemons.last_words(name)}")
        _, writer = await asyncio.open_unix_connection(str(socket))
        writer.close()
        return True

    await wait_until(
        f"containerd of {plan.name}", answers, bool, within_s=CONTAINERD_LIMIT_S, every_s=0.05, tolerate=(OSError,)
    )


async def start_kubelet(node: RunningNode, layout: Layout, daemons: Daemons, multicall: Path) -> None:
    """Start the kubelet, kube-proxy and the device plugin of a node; who is Ready when, the API server tells."""
    plan = node.plan
    (plan.state_dir / "kubelet.json").write_text(kubelet_configuration(layout, plan))
    (plan.state_dir / "kubelet" / "device-plugins").mkdir(exist_ok=True)
    plan.unhealthy_gpus.parent.mkdir(exist_ok=True)
    plan.unhealthy_gpus.touch()
    programs = {"kubelet": kubelet(layout, plan)}
    if plan.gpus:
        programs["device-plugin"] = device_plugin(plan)
    for name, words in programs.items():
        await daemons.start(f"{plan.name}-{name}", [*node.enter(), multicall, *words])


def healthy_gpus(node: NodePlan) -> int:
    """How many of the node's GPUs are not broken on purpose."""
    return len(set(node.gpus) - _broken_gpus(node))


def set_gpu_health(node: NodePlan, device_id: str, *, healthy: bool) -> None:
    """Break or mend a simulated GPU; the device plugin sees the file change. Raises UsageError for an unknown id."""
    if device_id not in node.gpus:
        raise UsageError(f"{node.name} has no GPU {device_id!r}; it has {', '.join(node.gpus) or 'none'}")
    broken = _broken_gpus(node)
    broken = broken - {device_id} if healthy else broken | {device_id}
    draft = node.unhealthy_gpus.with_name("unhealthy.new")
    draft.write_text("".join(f"{each}\n" for each in sorted(broken)))
    draft.rename(node.unhealthy_gpus)


def _broken_gpus(node: NodePlan) -> set[str]:
    return set(node.unhealthy_gpus.read_text().split()) if node.unhealthy_gpus.exists() else set()


def _snapshotter(place: Path) -> str:
    """overlayfs, except where the machine's own root is one already: overlays do not stack."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    above = [words for words in mounts if place.is_relative_to(words[1])]
    return "native" if max(above, key=lambda words: len(words[1]))[2] == "overlay" else "overlayfs"
