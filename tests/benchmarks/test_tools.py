"""Each tool's figures are read where it writes them; the samples are outputs that were recorded and cut."""

from pathlib import Path
from typing import Any, cast

import pytest

from benchmarks.tools import TOOLS, NotRun, Place, Said, Tool, number_at, peer
from shakedown.engine.environment import EngineEnvironment

RECORDED = Path(__file__).parent / "recorded"
EXPECTED = {
    "shakedown": Said(
        ttft_p50_ms=22.24, ttft_p99_ms=25.58, itl_p50_ms=19.99, itl_p99_ms=23.41, schedule_lag_p99_ms=1.35
    ),
    "vllm bench serve": Said(ttft_p50_ms=23.86, ttft_p99_ms=30.36, itl_p50_ms=19.98, itl_p99_ms=24.50),
    "guidellm": Said(
        ttft_p50_ms=31.90, ttft_p99_ms=328.70, itl_p50_ms=20.08, itl_p99_ms=22.71, schedule_lag_p99_ms=482.57
    ),
    "inference-perf": Said(
        ttft_p50_ms=22.05, ttft_p99_ms=25.17, itl_p50_ms=20.05, itl_p99_ms=22.60, schedule_lag_p99_ms=1.90
    ),
    "aiperf": Said(ttft_p50_ms=23.19, ttft_p99_ms=25.10, itl_p50_ms=20.00, itl_p99_ms=20.02),
    "locust": Said(ttft_p50_ms=22.26, ttft_p99_ms=24.29, itl_p50_ms=19.95, itl_p99_ms=22.12, schedule_lag_p99_ms=1.15),
}


def place(scratch: Path) -> Place:
    engine = EngineEnvironment(
        version="0", venv=scratch, python_home=scratch, twin_root=scratch, models_root=scratch / "models"
    )
    return Place(url="http://127.0.0.1:1", rate=250.0, lasts_s=10.0, scratch=scratch, engine=engine)


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: cast(Tool, tool).name)
def test_each_tool_is_read_where_it_says_its_figures(tool: Tool) -> None:
    stdout = (RECORDED / "shakedown.txt").read_text() if tool.name == "shakedown" else ""
    said, expected = tool.said(RECORDED, stdout), EXPECTED[tool.name]
    for name in Said.__dataclass_fields__:
        assert getattr(said, name) == pytest.approx(getattr(expected, name), abs=0.005), name


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: cast(Tool, tool).name)
def test_a_tool_that_died_gives_no_figures(tool: Tool, tmp_path: Path) -> None:
    with pytest.raises((OSError, ValueError, IndexError)):
        tool.said(tmp_path, "Traceback (most recent call last): …")


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: cast(Tool, tool).name)
def test_every_tool_is_asked_for_the_same_load(tool: Tool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.tools.peer", lambda name: tmp_path / name)
    (tmp_path / "models" / "llama-3-8b").mkdir(parents=True)
    words = " ".join(tool.command(place(tmp_path)))
    assert "http://127.0.0.1:1" in words
    assert any(rate in words for rate in ("rate 250", "rate=250", "RATE=250", '"rate": 250.0'))


def test_a_peer_that_cannot_be_installed_is_said_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHAKEDOWN_CACHE", str(tmp_path))
    fails = tmp_path / "uv"
    fails.write_text("#!/bin/sh\necho 'no such release' >&2\nexit 1\n")
    fails.chmod(0o755)
    monkeypatch.setattr("benchmarks.tools.uv_program", lambda: fails)
    with pytest.raises(NotRun, match="cannot be installed: no such release"):
        peer("aiperf")


@pytest.mark.parametrize(
    ("content", "expected"),
    [({"a": {"b": 2}}, 2000.0), ({"a": None}, None), ({}, None), ([], None), ({"a": {"b": "x"}}, None)],
)
def test_a_number_that_is_not_there_is_none(content: Any, expected: float | None) -> None:
    assert number_at(content, "a", "b", factor=1000) == expected
