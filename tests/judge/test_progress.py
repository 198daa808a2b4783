"""Thrashing, hung, stuck and dead engines are told apart from scrapes alone."""

from collections.abc import Sequence

import pytest

from shakedown.judge.expectations import expectation, time_in
from shakedown.judge.judgement import judge
from shakedown.judge.progress import GENERATED, PREEMPTIONS, RUNNING, WAITING, Progress, stretches
from shakedown.judge.records import MetricSample, Recorded
from shakedown.judge.verdict import Verdict


def scrapes(*rows: tuple[float, float, float, float], pod: str = "engine") -> list[MetricSample]:
    """One a second: (generated so far, preempted so far, running, waiting)."""
    return [
        MetricSample(
            at=float(at), pod=pod, values=dict(zip((GENERATED, PREEMPTIONS, RUNNING, WAITING), row, strict=True))
        )
        for at, row in enumerate(rows)
    ]


def kinds(samples: Sequence[MetricSample]) -> list[Progress]:
    return [stretch.progress for stretch in stretches(samples)]


@pytest.mark.parametrize(
    ("name", "samples", "expected"),
    [
        ("nothing to do", scrapes(*[(0, 0, 0, 0)] * 5), [Progress.IDLE]),
        ("tokens flow", scrapes(*[(100 * s, 0, 8, 0) for s in range(6)]), [Progress.FLOWING]),
        ("a long queue alone is no standstill", scrapes(*[(100 * s, 0, 8, 500) for s in range(6)]), [Progress.FLOWING]),
        ("runs and makes nothing", scrapes(*[(100, 0, 8, 3)] * 6), [Progress.HUNG]),
        ("waits and nothing runs", scrapes(*[(100, 0, 0, 3)] * 6), [Progress.STUCK]),
        ("a prefill of two seconds is no hang", scrapes(*[(100, 0, 8, 0)] * 3), [Progress.FLOWING]),
        ("set back now and then", scrapes(*[(100 * s, s // 3, 40, 9) for s in range(9)]), [Progress.FLOWING]),
        (
            "set back again and again",
            scrapes(*[(100 * s, 6 * s, 40, 9) for s in range(9)]),
            [Progress.FLOWING, Progress.THRASHING],
        ),
        (
            "came back with new counters",
            scrapes((500, 0, 8, 0), (600, 0, 8, 0), (10, 0, 1, 0), (110, 0, 8, 0)),
            [Progress.FLOWING, Progress.DEAD, Progress.FLOWING],
        ),
    ],
)
def test_progress_is_told_from_scrapes(name: str, samples: list[MetricSample], expected: list[Progress]) -> None:
    assert kinds(samples) == expected


def test_engines_are_told_apart_by_their_pod() -> None:
    samples = scrapes(*[(100, 0, 8, 3)] * 6, pod="hung") + scrapes(*[(100 * s, 0, 8, 0) for s in range(6)], pod="well")
    assert {(stretch.pod, stretch.progress) for stretch in stretches(samples)} == {
        ("hung", Progress.HUNG),
        ("well", Progress.FLOWING),
    }


@pytest.mark.parametrize(("limit_s", "verdict"), [(4.0, Verdict.HELD), (6.0, Verdict.DEVIATED)])
def test_the_seconds_spent_hung_are_a_quantity(limit_s: float, verdict: Verdict) -> None:
    recorded = Recorded(samples=tuple(scrapes(*[(100, 0, 8, 3)] * 6)))
    assert judge([expectation(time_in(Progress.HUNG), at_least=limit_s)], recorded).verdict is verdict


def test_without_scrapes_nobody_knows() -> None:
    assert judge([expectation(time_in(Progress.HUNG), at_most=0.0)], Recorded()).verdict is Verdict.UNKNOWN
