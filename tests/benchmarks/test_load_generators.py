"""When a level counts as sustained, what the table says, and what the last line holds."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import load_generators as bench
from benchmarks.cores import CoreWatch, Look, Process, busy_s
from benchmarks.equality import Equality, Row, rows_of
from benchmarks.load_generators import Level
from benchmarks.tools import Said

SAID = Said(ttft_p50_ms=21.0, ttft_p99_ms=24.0, itl_p50_ms=20.0, itl_p99_ms=21.0, schedule_lag_p99_ms=2.0)
LEVEL = Level(
    streams=500,
    chunks_per_s=25_000.0,
    said=SAID,
    server_ttft_p50_ms=20.5,
    server_ttft_p99_ms=21.0,
    server_itl_p50_ms=20.0,
    server_itl_p99_ms=20.9,
    server_late_share=0.0,
    schedule_lag_p99_ms=3.0,
    cpu_share=0.3,
    others_cpu=0.02,
    load_average_before=0.4,
)
ROW = Row(name="TTFT p50, ms", shakedown=20.004, vllm_arithmetic=20.0, vllm_run=21.7)


@pytest.mark.parametrize(
    ("level", "missed"),
    [
        (LEVEL, ()),
        (replace(LEVEL, chunks_per_s=23_000.0), ("chunks",)),
        (replace(LEVEL, schedule_lag_p99_ms=10.0), ("lag",)),
        (replace(LEVEL, said=replace(SAID, schedule_lag_p99_ms=12.0)), ("lag",)),
        (replace(LEVEL, schedule_lag_p99_ms=None), ()),
        (replace(LEVEL, schedule_lag_p99_ms=None, said=replace(SAID, schedule_lag_p99_ms=None)), ("lag",)),
        (replace(LEVEL, said=replace(SAID, ttft_p50_ms=31.0)), ("TTFT",)),
        (replace(LEVEL, said=replace(SAID, ttft_p50_ms=0.3)), ("TTFT",)),
        (replace(LEVEL, said=replace(SAID, ttft_p50_ms=None), chunks_per_s=0.0), ("chunks", "TTFT")),
    ],
)
def test_a_level_is_sustained_when_all_was_sent_served_and_seen_in_time(level: Level, missed: tuple[str, ...]) -> None:
    assert level.missed == missed


def test_the_lag_is_the_worse_of_what_the_tool_says_and_what_the_server_saw() -> None:
    assert LEVEL.lag_ms == 3.0
    assert replace(LEVEL, said=replace(SAID, schedule_lag_p99_ms=5.0)).lag_ms == 5.0


def test_the_best_is_the_highest_sustained_level_and_nothing_for_who_was_not_run() -> None:
    late = replace(LEVEL, streams=1000, chunks_per_s=50_000.0, schedule_lag_p99_ms=80.0)
    assert bench.best([replace(LEVEL, streams=250), LEVEL, late]) == 500
    assert bench.best("cannot be installed") == 0


def test_the_table_has_a_line_for_who_was_not_run_too() -> None:
    text = bench.table({"shakedown": [LEVEL], "aiperf": "cannot be installed: no such release"})
    assert (
        "| shakedown | 500 | 25,000 (100%) | 21.0 / 24.0 | 20.5 / 21.0 | 20.0 / 21.0 | 20.0 / 20.9 | 0.50 | 3.00 | 30% | yes |"
        in text
    )
    assert "not run: cannot be installed: no such release |" in text
    assert len({line.count("|") for line in text.splitlines()}) == 1


def test_the_last_line_says_everything_and_can_be_read_back(tmp_path: Path) -> None:
    peer = replace(LEVEL, streams=250, chunks_per_s=12_500.0)
    results: bench.Results = {"shakedown": [LEVEL], "guidellm": [peer], "aiperf": "cannot be installed"}
    equality = Equality(streams=50, rows=(ROW,))
    said = bench.summary(results, equality)
    assert set(said) == {
        "tools",
        "highest_sustained_streams",
        "shakedown_times_best_peer",
        "shakedown_ttft_bias_ms_at_500_streams",
        "equality",
        "load_average",
        "cores",
    }
    assert said["highest_sustained_streams"] == {"shakedown": 500, "guidellm": 250, "aiperf": 0}
    assert said["shakedown_times_best_peer"] == 2.0
    assert said["shakedown_ttft_bias_ms_at_500_streams"] == pytest.approx(0.5)
    assert said["tools"]["shakedown"][0]["sustained"] is True
    output = tmp_path / "output"
    output.write_text(f"| a table |\n{json.dumps(said)}\n")
    assert bench.earlier([output]) == (results, equality)


def test_without_a_peer_that_sustains_anything_there_is_no_factor() -> None:
    said = bench.summary({"shakedown": [LEVEL], "aiperf": "cannot be installed"}, None)
    assert said["shakedown_times_best_peer"] is None
    assert said["equality"] is None


def test_equal_is_equal_as_far_as_vllm_prints() -> None:
    assert ROW.equal
    assert not replace(ROW, vllm_arithmetic=20.02).equal
    assert "| TTFT p50, ms | 20.00 | 20.00 | yes | 21.70 |" in Equality(streams=50, rows=(ROW,)).table()


def test_every_number_is_compared_and_a_missing_one_is_an_error() -> None:
    names = ("ttft", "tpot", "itl", "e2e")
    ours = {name: {"mean_s": 0.02, "p50_s": 0.02, "p99_s": 0.03} for name in names}
    theirs = {f"{at}_{name}_ms": 20.0 for name in ("ttft", "tpot", "itl", "e2el") for at in ("mean", "p50", "p99")}
    rates = {"request_throughput": 25.0, "output_throughput": 2500.0}
    rows = rows_of(
        {**ours, "request_throughput": 25.0, "output_token_throughput": 2500.0}, theirs | rates, theirs | rates
    )
    assert len(rows) == 14
    assert [row.name for row in rows if not row.equal] == ["TTFT p99, ms", "TPOT p99, ms", "ITL p99, ms", "E2E p99, ms"]
    with pytest.raises(ValueError, match="requests/s"):
        rows_of(ours, theirs | rates, theirs | rates)
    with pytest.raises(KeyError):
        rows_of({**ours, "request_throughput": 25.0}, theirs, theirs)


def test_a_line_of_proc_stat_is_busy_time_without_idle_waiting_and_stolen() -> None:
    assert busy_s(["100", "10", "50", "9000", "800", "5", "35", "77", "0", "0"]) == pytest.approx(2.0)


def test_what_this_process_does_is_seen_as_somebody_elses() -> None:
    with CoreWatch() as cores:
        total = sum(number * number for number in range(3_000_000))
    assert total > 0
    assert cores.others_cpu > 0


def test_the_cpu_of_a_tool_is_that_of_all_its_processes() -> None:
    processes = {10: Process(1, 2.0), 11: Process(10, 3.0), 12: Process(11, 4.0), 20: Process(1, 50.0)}
    assert Look(0.0, (), processes).tree_s(10) == 9.0
    assert Look(0.0, (), {}).tree_s(10) == 0.0
