"""The ledger, the limits, the audit and the rights."""

import os
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import yaml

from shakedown.chaos.audit import differences, snapshot
from shakedown.chaos.faults import Cordon, Count, PodKill, Target
from shakedown.chaos.ledger import FOREIGN_GRACE_S, Entry, Ledger, Runner
from shakedown.chaos.rights import CLUSTER_WIDE, NAMESPACED
from shakedown.chaos.safety import Safety
from shakedown.cluster.api import Cluster
from shakedown.errors import HarnessError, UsageError
from tests.chaos.fake_kubernetes import FakeKubernetes

ONE = Target(namespace="serving", selector="app=engine", how_many=Count(1))
RBAC = Path(__file__).resolve().parents[2] / "manifests" / "rbac"


async def _cordoned(cluster: Cluster, folder: Path) -> Entry:
    """A cordon whose intent is in the ledger."""
    fault = Cordon(target=ONE, duration_s=1)
    plan = await fault.preview(cluster, "Run_1")
    entry = await (await Ledger.of(cluster, folder)).open("Run_1", "serving", "cordon", plan.undo, 1)
    await fault.act(cluster, plan)
    return entry


def _rewritten(fake: FakeKubernetes, entry: Entry, runner: Runner) -> None:
    """Make the ConfigMap say that another process opened it."""
    changed = msgspec.structs.replace(entry, runner=runner)
    data = fake.get("configmaps", entry.object_name)["data"]
    data["entry.json"] = msgspec.json.encode(changed).decode()


async def test_an_intent_is_on_disk_and_in_the_cluster_with_its_owner(
    fake: FakeKubernetes, cluster: Cluster, tmp_path: Path
) -> None:
    entry = await _cordoned(cluster, tmp_path)
    labels = fake.get("configmaps", entry.object_name)["metadata"]["labels"]
    assert labels["app.kubernetes.io/managed-by"] == "shakedown"
    assert labels["shakedown.dev/run-id"] == "Run_1"
    assert msgspec.json.decode((tmp_path / f"{entry.id}.json").read_bytes(), type=Entry) == entry


@pytest.mark.parametrize("lost", ["disk", "cluster"])
async def test_either_copy_is_enough_to_recover_from(
    fake: FakeKubernetes, cluster: Cluster, tmp_path: Path, lost: str
) -> None:
    entry = await _cordoned(cluster, tmp_path)
    if lost == "disk":
        (tmp_path / f"{entry.id}.json").unlink()
    else:
        del fake.objects["configmaps", "serving", entry.object_name]
    ledger = await Ledger.of(cluster, tmp_path)
    assert [outcome.done for outcome in await ledger.recover()] == [False]
    assert [outcome.done for outcome in await ledger.recover(force=True)] == [True]
    assert "unschedulable" not in fake.get("nodes", "node-1")["spec"]
    assert await ledger.entries() == ()


async def test_a_failed_undo_keeps_the_intent_open(fake: FakeKubernetes, cluster: Cluster, tmp_path: Path) -> None:
    await _cordoned(cluster, tmp_path)
    fake.refuse = lambda verb, path: verb == "PATCH"
    ledger = await Ledger.of(cluster, tmp_path)
    (outcome,) = await ledger.recover(force=True)
    assert not outcome.done
    assert "uncordon node node-1" in outcome.text
    assert len(await ledger.entries()) == 1


async def test_the_intents_of_a_cluster_that_was_built_anew_are_not_its_own(
    fake: FakeKubernetes, cluster: Cluster, tmp_path: Path
) -> None:
    entry = await _cordoned(cluster, tmp_path)
    del fake.objects["configmaps", "serving", entry.object_name]
    fake.get("namespaces", "kube-system")["metadata"]["uid"] = "another"
    assert await (await Ledger.of(cluster, tmp_path)).entries() == ()


async def test_a_spoiled_entry_is_reported_and_not_skipped(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "half.json").write_text('{"id": ')
    with pytest.raises(HarnessError, match=r"half\.json cannot be read"):
        await (await Ledger.of(cluster, tmp_path)).entries()


def test_a_reused_pid_is_not_taken_for_the_runner() -> None:
    me = Runner.me()
    assert me.alive
    assert not msgspec.structs.replace(me, started="1").alive
    assert not msgspec.structs.replace(me, boot="another boot").alive
    assert not msgspec.structs.replace(me, host="another host").alive


def test_a_runner_elsewhere_is_dead_only_when_long_overdue() -> None:
    runner = Runner(host="elsewhere", boot="", pid=os.getpid(), started="1")
    entry = Entry(
        id="x",
        run_id="x",
        cluster="c",
        namespace="serving",
        fault="cordon",
        undo=(),
        runner=runner,
        opened_at=0,
        due_at=10,
    )
    assert not entry.orphaned(10 + FOREIGN_GRACE_S)
    assert entry.orphaned(11 + FOREIGN_GRACE_S)


@pytest.mark.parametrize("namespace", ["kube-system", "kube-public", "default"])
async def test_a_protected_namespace_needs_to_be_named(fake: FakeKubernetes, cluster: Cluster, namespace: str) -> None:
    for name in ("a", "b"):
        fake.add_pod(name, namespace=namespace)
    fault = PodKill(target=Target(namespace=namespace, selector="app=engine", how_many=Count(1)))
    plan = await fault.preview(cluster, "run-1")
    with pytest.raises(UsageError, match=f"--allow-namespace {namespace}"):
        Safety().check(fault, plan)
    Safety(allowed=frozenset({namespace})).check(fault, plan)


async def test_the_owners_list_outranks_what_the_drill_allows(cluster: Cluster) -> None:
    fault = PodKill(target=ONE)
    plan = await fault.preview(cluster, "run-1")
    with pytest.raises(UsageError, match="SHAKEDOWN_NAMESPACES does not allow namespace serving"):
        Safety(allowed=frozenset({"serving"}), only=frozenset({"staging"})).check(fault, plan)


async def test_the_last_unharmed_target_is_spared_unless_asked(fake: FakeKubernetes, cluster: Cluster) -> None:
    del fake.objects["pods", "serving", "engine-b"]
    fault = PodKill(target=ONE)
    plan = await fault.preview(cluster, "run-1")
    with pytest.raises(UsageError, match="say --all"):
        Safety().check(fault, plan)
    replace(Safety(), allow_all=True).check(fault, plan)


async def test_the_audit_names_what_is_left_and_nothing_else(
    fake: FakeKubernetes, cluster: Cluster, tmp_path: Path
) -> None:
    before = await snapshot(cluster, "serving")
    assert differences(before, await snapshot(cluster, "serving")) == ()
    await _cordoned(cluster, tmp_path)
    fake.add("networkpolicies", {"metadata": {"name": "left", "namespace": "serving"}})
    stuck = fake.get("pods", "engine-b")["metadata"]
    stuck |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["example.com/hold"]}
    left = differences(before, await snapshot(cluster, "serving"))
    assert "Node node-1: cordoned: no → yes" in left
    assert "NetworkPolicy serving/left: absent → present" in left
    assert "Pod serving/engine-b: held back from deletion by: absent → example.com/hold" in left
    assert any(line.startswith("ConfigMap serving/shakedown-ledger-run-1-") for line in left)


@pytest.mark.parametrize(("file", "table"), [("role.yaml", NAMESPACED), ("clusterrole.yaml", CLUSTER_WIDE)])
def test_the_rights_that_are_asked_for_are_those_that_the_manifests_give(
    file: str, table: tuple[tuple[str, str, tuple[str, ...]], ...]
) -> None:
    role = next(iter(yaml.safe_load_all((RBAC / file).read_text())))
    given = {
        (g, r, v) for rule in role["rules"] for g in rule["apiGroups"] for r in rule["resources"] for v in rule["verbs"]
    }
    assert given == {(group, resource, verb) for group, resource, verbs in table for verb in verbs}
