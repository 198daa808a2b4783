"""A node that goes dark: only where there is a cable to pull, and never left without one."""

import pytest

from shakedown.chaos.faults import Count, NodeLoss, NotExercised, Target, from_plain, to_plain
from shakedown.chaos.undo import play_all
from shakedown.cluster import embedded
from shakedown.cluster.api import Cluster
from shakedown.cluster.embedded.layout import CLUSTER_LABEL
from shakedown.errors import FaultDidNotLand, RollbackFailed
from tests.chaos.fake_kubernetes import FakeKubernetes

LOSS = NodeLoss(target=Target(namespace="serving", selector="app=engine", how_many=Count(1)), duration_s=1)


class Cables:
    """An embedded cluster whose control plane notices at once."""

    def __init__(self, fake: FakeKubernetes, *, pulled_without_effect: bool = False) -> None:
        self.fake, self.deaf = fake, pulled_without_effect

    async def disconnect_node(self, node: str) -> None:
        self._ready(node, self.deaf)

    async def reconnect_node(self, node: str) -> None:
        self._ready(node, True)

    def _ready(self, node: str, ready: bool) -> None:
        self.fake.get("nodes", node)["status"]["conditions"] = [{"type": "Ready", "status": str(ready or "Unknown")}]


@pytest.fixture
def cables(fake: FakeKubernetes, monkeypatch: pytest.MonkeyPatch) -> Cables:
    found = Cables(fake)
    for node in ("node-1", "node-2"):
        fake.get("nodes", node)["metadata"]["labels"] = {CLUSTER_LABEL: "drill"}

    async def find(name: str) -> Cables | None:
        return found if name == "drill" else None

    monkeypatch.setattr(embedded, "find", find)
    return found


@pytest.mark.usefixtures("cables")
async def test_a_lost_node_turns_not_ready_and_comes_back(cluster: Cluster) -> None:
    plan = await LOSS.preview(cluster, "run-1")
    assert plan.bystanders == 1
    await LOSS.act(cluster, plan)
    assert await LOSS.landed(cluster, plan) == "node-1 NotReady"
    assert await play_all(cluster, plan.undo) == ("node-1 is Ready",)
    assert await LOSS.gone(cluster, plan) == "node-1 is Ready"


async def test_a_cable_that_cuts_nothing_off_is_no_landed_fault(
    cluster: Cluster, cables: Cables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shakedown.chaos.nodeloss.LOST_WITHIN_S", 0.0)
    cables.deaf = True
    plan = await LOSS.preview(cluster, "run-1")
    await LOSS.act(cluster, plan)
    with pytest.raises(FaultDidNotLand, match="loss of node-1"):
        await LOSS.landed(cluster, plan)


async def test_a_node_of_another_cluster_has_no_cable(cluster: Cluster) -> None:
    with pytest.raises(NotExercised, match="node-1 is no node of an embedded cluster"):
        await LOSS.preview(cluster, "run-1")


@pytest.mark.usefixtures("cables")
async def test_a_cluster_that_is_gone_is_said_to_be(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = await LOSS.preview(cluster, "run-1")

    async def none(_: str) -> None:
        return None

    monkeypatch.setattr(embedded, "find", none)
    with pytest.raises(RollbackFailed, match="drill does not run"):
        await play_all(cluster, plan.undo)


def test_it_travels_as_plain_data() -> None:
    assert from_plain(to_plain(LOSS)) == LOSS
