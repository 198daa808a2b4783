"""Plans of arrivals are pure: the same seed gives the same instants, and they have the shape they say."""

from itertools import islice, pairwise
from pathlib import Path

import pytest

from shakedown.errors import UsageError
from shakedown.load import Arrivals, Burst, Constant, Gamma, Poisson, Ramp, Sinusoid, Steps, Together, Trace

SEEDED = (
    Poisson(50, seed=3),
    Gamma(50, 0.5, seed=3),
    Ramp(10, 90, seed=3),
    Steps(((20, 5), (80, 5)), seed=3),
    Sinusoid(50, 0.8, 5, seed=3),
)
AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:16:46.6805900,1,2
"""
MOONCAKE = """{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47]}
{"timestamp": 30535, "input_length": 6472, "output_length": 26, "hash_ids": []}
"""


@pytest.mark.parametrize("plan", SEEDED, ids=lambda plan: type(plan).__name__)
def test_a_seeded_plan_is_ordered_bounded_repeatable_and_has_its_rate(plan: Arrivals) -> None:
    times = list(plan.due_times(100))
    assert times == list(plan.due_times(100)) == sorted(times)
    assert 0 <= times[0] <= times[-1] < 100
    # 5 standard deviations of a Poisson count; shape 0.5 has twice its variance.
    expected = 20 * 5 + 80 * 95 if isinstance(plan, Steps) else 50 * 100
    assert abs(len(times) - expected) < 5 * (2 * expected) ** 0.5


def test_another_seed_gives_other_instants() -> None:
    assert list(Poisson(5, seed=1).due_times(10)) != list(Poisson(5, seed=2).due_times(10))


def test_plans_are_lazy() -> None:
    assert len(list(islice(Poisson(1e6).due_times(1e12), 10))) == 10


def test_constant_keeps_its_distance_and_a_burst_has_none() -> None:
    assert list(Constant(4).due_times(1)) == [0, 0.25, 0.5, 0.75]
    assert list(Burst(3, at_s=2).due_times(5)) == [2, 2, 2]
    assert list(Burst(3, at_s=2).due_times(2)) == []


def test_smaller_burstiness_is_burstier() -> None:
    def variance(burstiness: float) -> float:
        times = list(Gamma(10, burstiness, seed=1).due_times(200))
        gaps = [later - earlier for earlier, later in pairwise(times)]
        mean = sum(gaps) / len(gaps)
        return sum((gap - mean) ** 2 for gap in gaps) / len(gaps) / mean**2

    assert variance(0.25) > 2 * variance(1) > 8 * variance(16)


def test_a_ramp_rises_and_steps_step() -> None:
    ramp = list(Ramp(0, 100, seed=1).due_times(10))
    assert sum(t < 5 for t in ramp) < sum(t >= 5 for t in ramp) / 2
    steps = list(Steps(((10, 5), (100, 5)), seed=1).due_times(20))
    assert sum(t < 5 for t in steps) < 100 < sum(5 <= t < 10 for t in steps)
    assert sum(t >= 15 for t in steps) > 400  # the last step's rate goes on


def test_a_burst_lies_on_top_of_a_stream() -> None:
    assert list(Together((Constant(1), Burst(2, at_s=1.5))).due_times(3)) == [0, 1, 1.5, 1.5, 2]


def test_both_trace_formats_are_read(tmp_path: Path) -> None:
    azure, mooncake = tmp_path / "azure.csv", tmp_path / "mooncake.jsonl"
    azure.write_text(AZURE)
    mooncake.write_text(MOONCAKE)
    first, second = Trace(azure).rows(60)
    assert first == (0, 374, 44)
    assert second.due_s == pytest.approx(4.314579, abs=1e-5)
    assert list(Trace(mooncake, speed=2).rows(60)) == [(0, 6955, 52), (pytest.approx(3.053 / 2), 6472, 26)]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("h,e,a\n2023-11-16 18:15:46,x,4\n", ":2: not a row"),
        ("h,e,a\n2023-11-16 18:15:46\n", ":2: not a row"),
        ('{"timestamp": 1}\n', ":1: not a row"),
        (MOONCAKE + '{"timestamp": 0, "input_length": 1, "output_length": 1}\n', ":3: the trace goes back"),
    ],
)
def test_a_broken_trace_names_its_line(tmp_path: Path, content: str, says: str) -> None:
    path = tmp_path / "trace"
    path.write_text(content)
    with pytest.raises(UsageError, match=says):
        list(Trace(path).rows(60))


def test_a_missing_trace_and_senseless_rates_are_usage_errors() -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        list(Trace(Path("/nowhere/trace")).rows(1))
    for wrong in (0, -1, float("inf"), float("nan")):
        with pytest.raises(UsageError):
            Poisson(wrong)
