"""Real engines of several versions were made to fail; the patterns are proven on what they said.

The logs are recorded by scripts/record_engine_words.py. What only a GPU can bring about is quoted from where it was reported.
"""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from shakedown.engine.environment import known_versions
from shakedown.engine.memory.failures import COLOURS, OUT_OF_MEMORY, Pattern, classify, patterns

WORDS = Path(__file__).parents[1] / "words"
CASES: dict[str, dict[str, Any]] = {
    case["name"]: case for case in tomllib.loads((WORDS / "cases.toml").read_text())["case"]
}
LOGS = sorted(WORDS.glob("*/*.log"))
QUOTED = [pattern for pattern in patterns() if pattern.words]
each_log = pytest.mark.parametrize("log", LOGS, ids=lambda path: f"{path.parent.name}-{path.stem}")


def matching(text: str) -> list[Pattern]:
    """All patterns that match a log, in the order in which they count."""
    plain = COLOURS.sub("", text)
    return [pattern for pattern in patterns() if re.search(pattern.pattern, plain, re.DOTALL)]


@each_log
def test_a_recorded_end_is_recognised_with_its_remedy(log: Path) -> None:
    outcome = tomllib.loads((log.parent / "outcomes.toml").read_text())[log.stem]
    exit_code = int(outcome.removeprefix("exit ")) if outcome != "unhealthy" else None
    found = classify(log.read_text(), exit_code=exit_code, reason="Completed" if exit_code == 0 else "Error")

    assert found.kind == CASES[log.stem]["expected"], found
    assert CASES[log.stem]["remedy"] in found.fix
    assert "not said" not in found.fix


@each_log
def test_no_pattern_of_another_class_claims_a_recorded_end(log: Path) -> None:
    claimed = {pattern.kind for pattern in matching(log.read_text()) if not pattern.general}

    assert claimed <= {CASES[log.stem]["expected"]}


@each_log
def test_the_version_that_said_it_lies_within_the_pattern_s_own(log: Path) -> None:
    decided = matching(log.read_text())[0]

    assert _release(decided.since) <= _release(log.parent.name)
    assert not decided.until or _release(log.parent.name) <= _release(decided.until)


@pytest.mark.parametrize("pattern", QUOTED, ids=lambda pattern: pattern.words[:60])
def test_what_no_engine_without_a_gpu_says_is_recognised_from_public_words(pattern: Pattern) -> None:
    found = classify(pattern.words, exit_code=1, reason="Error")

    assert matching(pattern.words)[0] == pattern
    assert found.kind == ("oom-at-start" if pattern.kind == OUT_OF_MEMORY else pattern.kind)
    assert "{" not in found.sentence.partition("Reasons")[0]


def test_every_pattern_has_a_recorded_log_or_names_its_public_source() -> None:
    recorded = {matching(log.read_text())[0].pattern for log in LOGS}
    unproven = [pattern.pattern for pattern in patterns() if pattern.pattern not in recorded and not pattern.source]

    assert unproven == []
    assert all(bool(pattern.words) == bool(pattern.source) for pattern in patterns())


def test_general_patterns_stand_last() -> None:
    order = [pattern.general for pattern in patterns()]

    assert order == sorted(order)


@pytest.mark.parametrize("version", known_versions())
def test_every_pinned_engine_was_tried_with_every_case(version: str) -> None:
    outcomes = tomllib.loads((WORDS / version / "outcomes.toml").read_text())

    assert list(outcomes) == list(CASES)
    assert outcomes["sound"] == "serves"
    assert {name for name, said in outcomes.items() if said != "serves"} == {
        log.stem for log in LOGS if log.parent.name == version
    }


def test_memory_that_runs_out_is_told_by_when() -> None:
    ran_out = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB."
    sized = "INFO 01-01 00:00:00 [kv_cache_utils.py:1087] GPU KV cache size: 454,656 tokens\n"
    serving = "INFO:     Application startup complete.\n"

    assert classify(ran_out).kind == "oom-at-start"
    assert classify(sized + ran_out).kind == "oom-at-warm-up"
    assert classify(sized + serving + ran_out).kind == "oom-under-load"


def test_no_recorded_log_tells_where_it_was_recorded() -> None:
    for log in LOGS:
        assert not re.search(
            r"/root/|/home/|/tmp/wt|\b(?:10|172|192)\.\d+\.\d+\.\d+(?<!10\.0\.0\.7)", log.read_text()
        ), log


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
