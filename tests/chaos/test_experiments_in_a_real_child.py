"""The real Chaos Toolkit, in its child process, against the fake cluster."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from shakedown.chaos.access import Access
from shakedown.chaos.experiment import SteadyState
from shakedown.chaos.faults import AnyFault, Cordon, Count, PodKill, Target
from shakedown.chaos.journal import Journal
from shakedown.chaos.ledger import Ledger
from shakedown.chaos.toolkit import run_experiment
from shakedown.cluster.api import Cluster
from shakedown.errors import UsageError
from shakedown.judge.records import Mark, MarkKind
from shakedown.process import run
from shakedown.waiting import wait_until
from tests.chaos.fake_kubernetes import FakeKubernetes

ONE = Target(namespace="serving", selector="app=engine", how_many=Count(1))


class World:
    """One experiment after another in a folder of its own."""

    def __init__(self, cluster: Cluster, access: Access, root: Path) -> None:
        self.cluster, self.access, self.root = cluster, access, root
        self.marks: list[Mark] = []
        self.ledger_folder = root / "cache" / "ledger"
        self.marks_file = root / "scenario" / "marks.jsonl"

    async def play(self, fault: AnyFault, hypothesis: SteadyState | None = None) -> Journal:
        return await run_experiment(
            self.cluster,
            fault,
            access=self.access,
            run_id="run-1",
            folder=self.root / "scenario",
            hypothesis=hypothesis,
            on_mark=self.marks.append,
            ledger_folder=self.ledger_folder,
        )

    async def landing(self) -> None:
        await _until("landing", lambda: self.marks_file.exists() and "fault_landed" in self.marks_file.read_text())

    async def drill(self, *words: str) -> asyncio.subprocess.Process:
        argv = [sys.executable, "-m", "shakedown.cli.main", "drill", *words, "-n", "serving", "-l", "app=engine"]
        more = ["--kubeconfig", str(self.access.kubeconfig), "--folder", str(self.root / "scenario"), "--yes"]
        cache = {**os.environ, "SHAKEDOWN_CACHE": str(self.root / "cache")}
        return await asyncio.create_subprocess_exec(*argv, *more, env=cache, stderr=asyncio.subprocess.DEVNULL)


@pytest.fixture
def world(cluster: Cluster, access: Access, tmp_path: Path) -> World:
    return World(cluster, access, tmp_path)


async def test_a_killed_pod_is_proven_by_uid_and_leaves_nothing_open(fake: FakeKubernetes, world: World) -> None:
    uid = fake.get("pods", "engine-a")["metadata"]["uid"]
    journal = await world.play(PodKill(target=ONE))
    assert journal.fault_landed, journal.failed_activities
    assert f"engine-a (uid {uid}) is gone" in journal.evidence
    assert journal.steady_state_recovered
    assert not journal.deviated
    assert journal.rolled_back
    faults = [mark.kind for mark in world.marks if mark.kind is not MarkKind.NOTE]
    assert faults == [MarkKind.FAULT_STARTED, MarkKind.FAULT_LANDED, MarkKind.FAULT_ENDED]
    assert not fake.names("configmaps")
    assert not list(world.ledger_folder.iterdir())


async def test_a_failed_action_is_no_landed_fault_although_the_status_says_completed(
    fake: FakeKubernetes, world: World
) -> None:
    fake.refuse = lambda verb, path: verb == "DELETE" and "/pods/" in path
    journal = await world.play(PodKill(target=ONE))
    assert journal.status == "completed"
    assert not journal.fault_landed
    assert "forbidden by the test" in journal.failed_activities[0]
    assert journal.rolled_back


async def test_an_unsteady_state_stops_the_fault_before_it_acts_and_still_rolls_back(
    fake: FakeKubernetes, world: World
) -> None:
    three = SteadyState(namespace="serving", selector="app=engine", ready_pods=3, within_s=0.0)
    journal = await world.play(PodKill(target=ONE), three)
    assert journal.steady_before is False
    assert not journal.fault_landed
    assert "engine-a" in fake.names("pods")
    assert journal.rolled_back
    assert not fake.names("configmaps")


async def test_a_steady_state_that_does_not_come_back_deviates(fake: FakeKubernetes, world: World) -> None:
    fake.get("pods", "engine-a")["metadata"]["ownerReferences"] = []
    both = SteadyState(namespace="serving", selector="app=engine", ready_pods=2, within_s=0.0)
    journal = await world.play(PodKill(target=ONE), both)
    assert journal.fault_landed, journal.failed_activities
    assert journal.deviated
    assert not journal.steady_state_recovered


async def test_cancelling_rolls_back_before_it_returns(fake: FakeKubernetes, world: World) -> None:
    running = asyncio.create_task(world.play(Cordon(target=ONE, duration_s=600)))
    await world.landing()
    assert fake.get("nodes", "node-1")["spec"]["unschedulable"]
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert "unschedulable" not in fake.get("nodes", "node-1")["spec"]
    assert not fake.names("configmaps")


async def test_a_killed_runner_takes_its_fault_along(fake: FakeKubernetes, world: World) -> None:
    runner = await world.drill("cordon", "--count", "1", "--duration", "10m")
    await world.landing()
    runner.kill()
    await runner.wait()
    await _until("rollback by the child", lambda: not fake.names("configmaps"))
    assert "unschedulable" not in fake.get("nodes", "node-1")["spec"]


async def test_recover_takes_back_what_a_runner_and_its_child_left_when_both_were_killed(
    fake: FakeKubernetes, world: World
) -> None:
    runner = await world.drill("cordon", "--count", "1", "--duration", "10m")
    await world.landing()
    alive = await (await Ledger.of(world.cluster, world.ledger_folder)).recover()
    assert [outcome.done for outcome in alive] == [False]
    child = int(Path(f"/proc/{runner.pid}/task/{runner.pid}/children").read_text().split()[0])
    os.kill(child, signal.SIGSTOP)
    runner.kill()
    os.kill(child, signal.SIGKILL)
    await runner.wait()
    assert fake.get("nodes", "node-1")["spec"]["unschedulable"]
    recover = [sys.executable, "-m", "shakedown.cli.main", "recover", "--json"]
    cache = {"SHAKEDOWN_CACHE": str(world.root / "cache")}
    done = await run([*recover, "--kubeconfig", str(world.access.kubeconfig)], timeout_s=30, env=cache)
    assert [entry["done"] for entry in json.loads(done.stdout)["entries"]] == [True]
    assert "unschedulable" not in fake.get("nodes", "node-1")["spec"]
    assert not fake.names("configmaps")
    assert not await (await Ledger.of(world.cluster, world.ledger_folder)).recover()


async def test_what_safety_forbids_is_never_written_down(fake: FakeKubernetes, world: World) -> None:
    everyone = Target(namespace="serving", selector="app=engine", how_many=Count(2))
    with pytest.raises(UsageError, match="--all"):
        await world.play(PodKill(target=everyone))
    assert not [line for line in fake.requests if not line.startswith("GET")]


async def _until(what: str, claim: Callable[[], bool]) -> None:
    async def observe() -> bool:
        return claim()

    await wait_until(what, observe, bool, within_s=20, every_s=0.05)
