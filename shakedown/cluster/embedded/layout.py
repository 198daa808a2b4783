"""Names, places and addresses of an embedded cluster, all derived from its name.

Nothing has to be remembered to be found again: who knows the name can take the cluster down, whatever happened to the
process that started it. Addresses are the same in every cluster, because each has network namespaces of its own.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from shakedown.errors import UsageError

RUN_ROOT = Path("/run/shakedown")
STATE_ROOT = Path("/var/lib/shakedown")
NETNS_ROOT = Path("/run/netns")
OFFERS_ROOT = Path("/srv/shakedown")

CONTROL_PLANE_ADDRESS = "10.10.0.1"
API_PORT = 6443
NODE_SUBNET_BITS = 24
POD_NETWORK = "10.244.0.0/16"
SERVICE_NETWORK = "10.96.0.0/16"
API_SERVICE_ADDRESS = "10.96.0.1"
DNS_ADDRESS = "10.96.0.10"
DNS_DOMAIN = "cluster.local"
CLUSTER_LABEL = "shakedown.dev/cluster"
"""On every node: the name of its embedded cluster."""
INFRASTRUCTURE_LABEL = "shakedown.dev/infrastructure"
"""On the node of Prometheus and KEDA, so that the loss of another one is no loss of theirs."""
MOST_NODES = 64
MOST_GPUS_PER_NODE = 64

_NAME = re.compile(r"[a-z][a-z0-9-]{0,30}")


@dataclass(frozen=True, slots=True)
class NodePlan:
    """What a node is called and where its things are."""

    cluster: str
    index: int
    gpus_per_node: int

    @property
    def name(self) -> str:
        return f"node-{self.index}"

    @property
    def address(self) -> str:
        return f"10.10.0.{10 + self.index}"

    @property
    def pod_subnet(self) -> str:
        return f"10.244.{self.index}.0/24"

    @property
    def netns(self) -> Path:
        return NETNS_ROOT / f"shakedown.{self.cluster}.{self.name}"

    @property
    def link(self) -> str:
        """The control plane's end of the cable to the node."""
        return f"to-{self.name}"

    @property
    def cgroup(self) -> str:
        return f"shakedown.{self.cluster}/{self.name}"

    @property
    def run_dir(self) -> Path:
        return RUN_ROOT / self.cluster / self.name

    @property
    def state_dir(self) -> Path:
        return STATE_ROOT / self.cluster / self.name

    @property
    def unhealthy_gpus(self) -> Path:
        """Read by the device plugin: the ids of broken devices, one per line."""
        return self.state_dir / "gpus" / "unhealthy"

    @property
    def gpus(self) -> tuple[str, ...]:
        return tuple(f"GPU-{self.name}-{number}" for number in range(self.gpus_per_node))


@dataclass(frozen=True, slots=True)
class Layout:
    """What a cluster is called and where its things are."""

    name: str
    nodes: tuple[NodePlan, ...] = ()

    @property
    def run_dir(self) -> Path:
        return RUN_ROOT / self.name

    @property
    def state_dir(self) -> Path:
        return STATE_ROOT / self.name

    @property
    def lock(self) -> Path:
        return RUN_ROOT / f"{self.name}.lock"

    @property
    def pids(self) -> Path:
        return self.run_dir / "daemons"

    @property
    def logs(self) -> Path:
        return self.state_dir / "logs"

    @property
    def certificates(self) -> Path:
        return self.state_dir / "certificates"

    @property
    def kubeconfig(self) -> Path:
        return self.run_dir / "kubeconfig"

    @property
    def netns(self) -> Path:
        return NETNS_ROOT / f"shakedown.{self.name}"

    @property
    def cgroup(self) -> str:
        """Everything the cluster runs is in this cgroup or below it."""
        return f"shakedown.{self.name}"


def layout_of(name: str, *, nodes: int = 0, gpus_per_node: int = 0) -> Layout:
    """The layout of the cluster called `name`. Raises UsageError for a name or size that cannot be."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} cannot name a cluster: start with a lower-case letter, go on with letters, digits and hyphens, "
            "31 characters at most"
        )
    if not 0 <= nodes <= MOST_NODES:
        raise UsageError(f"a cluster of {nodes} nodes cannot be: choose 1 to {MOST_NODES}")
    if not 0 <= gpus_per_node <= MOST_GPUS_PER_NODE:
        raise UsageError(f"{gpus_per_node} GPUs per node cannot be: choose 0 to {MOST_GPUS_PER_NODE}")
    return Layout(name, tuple(NodePlan(name, index, gpus_per_node) for index in range(1, nodes + 1)))
