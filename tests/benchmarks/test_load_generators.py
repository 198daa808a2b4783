"""What peers say is read where they say it, and a level counts as sustained only when the server and the tool agree."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from benchmarks import load_generators as bench
from benchmarks.load_generators import Level, Place


def level(streams: int = 500, chunks_per_s: float = 25_000, ttft_ms: float | None = 21.0) -> Level:
    return Level(
        streams=streams, chunks_per_s=chunks_per_s, offered_per_s=streams * 50.0, ttft_p50_ms=ttft_ms, cpu_share=0.3
    )


@pytest.mark.parametrize(
    ("found", "sustained"),
    [
        (level(), True),
        (level(chunks_per_s=23_000), False),
        (level(ttft_ms=120.0), False),
        (level(ttft_ms=0.2), False),
        (level(ttft_ms=None), False),
    ],
)
def test_a_level_is_sustained_when_all_arrived_and_the_tool_was_not_late(found: Level, sustained: bool) -> None:
    assert found.sustained is sustained


def test_the_best_is_the_highest_sustained_level_and_nothing_for_who_was_not_run() -> None:
    assert bench.best([level(250, 12_500), level(500, 25_000), level(1000, 30_000)]) == 25_000
    assert bench.best("cannot be installed") == 0


def test_the_ends_of_a_run_do_not_count() -> None:
    assert bench.steady_chunks_per_s([0, 10, 5000, 12_000, 12_500, 12_400, 12_600, 12_500, 900, 0]) == 24_900
    assert bench.steady_chunks_per_s([]) == 0


def test_each_tool_is_read_where_it_says_its_median(tmp_path: Path) -> None:
    place = cast(Place, SimpleNamespace(scratch=tmp_path))
    (tmp_path / "vllm.json").write_text(json.dumps({"median_ttft_ms": 17.2}))
    (tmp_path / "guidellm.json").write_text(
        json.dumps({"benchmarks": [{"metrics": {"time_to_first_token_ms": {"successful": {"median": 25.9}}}}]})
    )
    (tmp_path / "inference-perf").mkdir()
    (tmp_path / "inference-perf" / "summary_lifecycle_metrics.json").write_text(
        json.dumps({"successes": {"latency": {"time_to_first_token": {"median": 0.0213}}}})
    )
    (tmp_path / "aiperf").mkdir()
    (tmp_path / "aiperf" / "profile_export_aiperf.json").write_text(json.dumps({"time_to_first_token": {"p50": 28.9}}))
    said = {
        "shakedown": 'progress\n{"summary":{"ttft":{"p50_s":0.0235}}}',
        "locust": 'noise\n[{"method":"first word","response_times":{"20":3,"30":1}}]',
    }
    read = {tool.name: tool.ttft_p50_ms(place, said.get(tool.name, "")) for tool in bench.TOOLS}
    assert read == {
        "shakedown": pytest.approx(23.5),
        "vllm bench serve": 17.2,
        "guidellm": 25.9,
        "inference-perf": pytest.approx(21.3),
        "aiperf": 28.9,
        "locust": 20.0,
    }


def test_the_table_has_a_line_for_who_was_not_run_too() -> None:
    text = bench.table({"shakedown": [level()], "aiperf": "cannot be installed"})
    assert "| shakedown | 500 | 25,000 | 100% | 21 ms | 30% | yes |" in text
    assert "not run: cannot be installed" in text
