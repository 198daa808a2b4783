"""`shakedown plan --autoscale` and `shakedown simulate` as a user meets them."""

import json
from pathlib import Path

import pytest
import yaml

from shakedown.cli.main import _exit_code
from shakedown.cli.replica_curve import picture
from shakedown.serving.autoscaling.simulator import Sample, Simulation

REPLICA = ["--service-rate", "4", "--max-num-seqs", "32", "--load-time-s", "60"]
PLAN = ["plan", "--autoscale", *REPLICA, "--growth-per-min", "0.4"]
SIMULATE = ["simulate", *REPLICA, "--duration-s", "600"]


def said(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = _exit_code(list(args))
    out, err = capsys.readouterr()
    return code, out, err


def test_plan_says_settings_reasons_assumptions_growth_and_the_object(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = said(capsys, *PLAN)
    assert code == 0
    for part in ("threshold", "scaleDown window", "Assumed", "requests/s a minute", "kind: ScaledObject"):
        assert part in out


def test_plan_prints_the_object_alone_and_lint_and_simulate_take_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, out, _ = said(capsys, *PLAN, "--yaml", "--name", "llama")
    assert code == 0
    assert yaml.safe_load(out)["spec"]["scaleTargetRef"] == {"name": "llama"}
    path = tmp_path / "scaledobject.yaml"
    path.write_text(out)
    assert said(capsys, "lint", str(path), "--strict")[0] == 0
    assert said(capsys, *SIMULATE, str(path), "--rate", "3")[0] == 0


def test_plan_as_json_has_the_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = said(capsys, *PLAN, "--json")
    found = json.loads(out)
    assert code == 0
    assert found["follows"] is True
    assert found["followed_growth_per_min"] >= 0.4
    assert found["tried"]["figures"]["attainment"] > 0.95
    assert found["scaled_object"]["spec"]["minReplicaCount"] >= 1


def test_plan_that_cannot_follow_exits_1(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = said(capsys, *PLAN[:-1], "40", "--gpus", "3")
    assert code == 1
    assert "follows only" in out


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--gpus", "2", "--min-replicas", "3"], "2 GPUs hold 2 replicas"),
        (["--rate", "100"], "25 replicas"),
        (["--min-replicas", "5", "--max-replicas", "4"], "no fewer than the minimum"),
        (["--yaml", "--json"], "choose one"),
        (["--prefill-s", "2"], "nothing for the queue"),
    ],
)
def test_plan_refuses_what_cannot_be(capsys: pytest.CaptureFixture[str], args: list[str], words: str) -> None:
    code, _, err = said(capsys, *PLAN, *args)
    assert code == 4
    assert words in err


def test_plan_with_a_search_says_what_it_took(capsys: pytest.CaptureFixture[str]) -> None:
    small = ("--service-rate", "1", "--max-num-seqs", "16", "--load-time-s", "60", "--growth-per-min", "0.1")
    code, out, _ = said(capsys, "plan", "--autoscale", *small, "--search")
    assert code == 0
    assert "Cheapest by search" in out


def test_plan_without_the_flag_is_still_the_memory_calculator(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = said(capsys, "plan", "--model", "llama-3-8b", "--device", "A100-80", "--max-model-len", "4096")
    assert code == 0
    assert "It fits." in out
    assert "--load-time-s" in said(capsys, "plan", "--autoscale", "--help")[1]


@pytest.mark.parametrize(
    "load",
    [
        ["--rate", "3"],
        ["--ramp", "1:6"],
        ["--sinusoid", "3:0.5:300"],
        ["--steps", "2:200,5:400"],
    ],
)
def test_simulate_draws_the_curve_of_any_load(capsys: pytest.CaptureFixture[str], load: list[str]) -> None:
    code, out, _ = said(capsys, *SIMULATE, "--threshold", "20", *load)
    assert code in (0, 1)
    for part in ("█", "600 s", "first token", "replicas", "GPU-hours"):
        assert part in out


def test_simulate_reads_a_load_from_a_csv(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "monday.csv"
    path.write_text("time_s,rate\n0,1\n300,6\n600,1\n")
    code, out, _ = said(capsys, "simulate", *REPLICA, "--threshold", "20", "--csv", str(path), "--json")
    found = json.loads(out)
    assert code in (0, 1)
    assert found["figures"]["requests"] == pytest.approx(2100, rel=0.1)
    assert found["samples"][-1]["t_s"] == 600.0


def test_simulate_says_that_a_target_is_out_of_reach(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = said(capsys, *SIMULATE, "--threshold", "32", "--metric", "running", "--rate", "12")
    assert code == 1
    assert "never be exceeded" in out


def test_simulate_shows_an_outage_of_the_metric(capsys: pytest.CaptureFixture[str]) -> None:
    outage = ["--threshold", "20", "--rate", "3", "--outage", "queries:100:400", "--json"]
    assert json.loads(said(capsys, *SIMULATE, *outage)[1])["figures"]["lost"] == 0
    assert "missing at 20 syncs" in said(capsys, *SIMULATE, *outage[:-1])[1]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--threshold", "5"], "choose one of --rate"),
        (["--threshold", "5", "--rate", "3", "--ramp", "1:2"], "choose one of --rate"),
        (["--rate", "3"], "give FILES"),
        (["--threshold", "5", "--ramp", "fast"], "4:20"),
        (["--threshold", "5", "--ramp", "1:inf"], "4:20"),
        (["--threshold", "5", "--rate", "nan"], "not a finite number"),
        (["--threshold", "5", "--steps", "5"], "4:600"),
        (["--threshold", "5", "--rate", "3", "--up", "many"], "4/15"),
        (["--threshold", "5", "--rate", "3", "--up", "4/9999"], "1800"),
        (["--threshold", "5", "--rate", "3", "--outage", "rain:1:2"], "scrapes:600:900"),
        (["--threshold", "5", "--rate", "3", "--min-replicas", "11"], "maxReplicas"),
        (["--threshold", "5", "--rate", "1e9"], "can be simulated"),
        (["--threshold", "5", "--rate", "3", "--min-replicas", "3", "--gpus", "2"], "to be ready"),
        (["--threshold", "5", "--rate", "3", "--duration-s", "1e12"], "a month"),
        (["--threshold", "5", "--rate", "3", "--sync-period-s", "1e-9"], "0.1"),
        (["--threshold", "5", "--csv", "/nowhere.csv"], "cannot be read"),
        (["--threshold", "5", "--rate", "3", "--service-time-s", "99"], "full batch"),
        (["/nowhere.yaml", "--rate", "3"], "does not exist"),
    ],
)
def test_bad_usage_is_one_line_and_exit_4(capsys: pytest.CaptureFixture[str], args: list[str], words: str) -> None:
    code, _, err = said(capsys, *SIMULATE, *args)
    assert code == 4
    assert words in err
    assert "Traceback" not in err


@pytest.mark.parametrize("content", ["", "time,rate\n0,1\n1,2\n", "time_s,rate\n0,x\n", "time_s,rate\n5,1\n0,1\n"])
def test_a_csv_that_is_none_is_bad_usage(capsys: pytest.CaptureFixture[str], tmp_path: Path, content: str) -> None:
    path = tmp_path / "load.csv"
    path.write_text(content)
    assert said(capsys, "simulate", *REPLICA, "--threshold", "5", "--csv", str(path))[0] == 4


def test_the_picture_shows_ready_loading_and_waiting_for_a_gpu() -> None:
    samples = (Sample(0.0, 1, 1, 1, 0, 0), Sample(1.0, 3, 2, 1, 4, 0), Sample(2.0, 3, 3, 3, 2, 0))
    simulation = Simulation(
        duration_s=2.0,
        samples=samples,
        changes=(),
        arrivals_s=(),
        started_s=(),
        lost=frozenset(),
        prefill_s=0.0,
        gpu_hours=0.0,
        syncs_without_metric=0,
    )
    lines = picture(simulation).splitlines()
    assert lines[:3] == ["   3 │ ░█", "   2 │ ▒█", "   1 │███"]
    assert lines[4] == "queue  █▄ 4 at most"
