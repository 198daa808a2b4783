"""`shakedown drill` and `recover` at the edge: bad input, dry run, verdicts."""

import asyncio
import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from shakedown.chaos.access import Access
from shakedown.chaos.journal import Activity, Journal
from shakedown.cli.chaos import drill, seconds, verdict_of
from shakedown.errors import HarnessError, UsageError
from shakedown.judge.verdict import Verdict
from tests.chaos.fake_kubernetes import FakeKubernetes

TARGET = ["-n", "serving", "-l", "app=engine"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["pod-kill"], "say whom to hit"),
        (["pod-kill", *TARGET], "say how many"),
        (["pod-kill", *TARGET, "--count", "1", "--percent", "5"], "say how many"),
        (["pod-kill", *TARGET, "--count", "0"], "cannot hit 0"),
        (["pod-kill", *TARGET, "--percent", "101"], "cannot hit 101 %"),
        (["nonsense", *TARGET, "--count", "1"], "unknown fault"),
        (["cordon", *TARGET, "--count", "1"], "needs --duration"),
        (["cordon", *TARGET, "--count", "1", "--duration", "soon"], "no duration"),
        (["pod-kill", *TARGET, "--count", "1", "--kubeconfig", "/nowhere"], "does not exist"),
    ],
)
def test_bad_input_is_one_line(words: list[str], said: str) -> None:
    refusal = CliRunner().invoke(drill, words, standalone_mode=False).exception
    assert isinstance(refusal, UsageError)
    assert said in str(refusal)
    assert "\n" not in str(refusal)


async def test_a_dry_run_names_the_victims_and_does_nothing(fake: FakeKubernetes, access: Access) -> None:
    words = ["cordon", *TARGET, "--count", "1", "--duration", "30s", "--dry-run"]
    result = await asyncio.to_thread(CliRunner().invoke, drill, [*words, "--kubeconfig", str(access.kubeconfig)])
    printed = json.loads(result.stdout)
    assert printed["victims"] == ["Node node-1"]
    assert printed["undo"] == ["uncordon node node-1"]
    assert [activity["provider"]["func"] for activity in printed["experiment"]["method"]] == [
        "act",
        "landed",
        "hold",
        "undo",
    ]
    assert {line.split()[0] for line in fake.requests} == {"GET"}


async def test_without_a_terminal_nothing_is_harmed_unless_it_is_said(fake: FakeKubernetes, access: Access) -> None:
    words = ["pod-kill", *TARGET, "--count", "1", "--kubeconfig", str(access.kubeconfig)]
    result = await asyncio.to_thread(CliRunner().invoke, drill, words, standalone_mode=False)
    assert "say --yes" in str(result.exception)
    assert {line.split()[0] for line in fake.requests} == {"GET"}


@pytest.mark.parametrize(("text", "value"), [("90", 90.0), ("1.5m", 90.0), ("1h", 3600.0), ("0s", 0.0)])
def test_durations_are_read(text: str, value: float) -> None:
    assert seconds(text) == value


def test_a_fault_lasted_from_its_proof_until_its_undo_began() -> None:
    landed = Activity(name="proof", function="landed", succeeded=True, started_at=2, ended_at=3, output="seen")
    undo = Activity(name="take back", function="undo", succeeded=True, started_at=8, ended_at=9)
    journal = Journal(
        status="completed", deviated=False, steady_before=None, steady_after=None, method=(landed, undo), rollbacks=()
    )
    assert journal.lasted == (3, 8)
    with pytest.raises(HarnessError, match="never landed"):
        _ = replace(journal, method=(replace(landed, succeeded=False), undo)).lasted


def test_the_verdict_of_a_drill_never_rests_on_the_status_alone() -> None:
    ran = Activity(name="proof", function="landed", succeeded=True, started_at=0, ended_at=1, output="seen")
    good = Journal(
        status="completed", deviated=False, steady_before=True, steady_after=True, method=(ran,), rollbacks=(ran,)
    )
    assert verdict_of(good)[0] is Verdict.HELD
    assert verdict_of(replace(good, deviated=True))[0] is Verdict.DEVIATED
    assert verdict_of(replace(good, method=(replace(ran, output=""),)))[0] is Verdict.UNKNOWN
    assert verdict_of(replace(good, method=()))[0] is Verdict.UNKNOWN
    assert verdict_of(replace(good, rollbacks=(replace(ran, succeeded=False),)))[0] is Verdict.UNKNOWN
    assert verdict_of(replace(good, status="interrupted"))[0] is Verdict.UNKNOWN
