"""Windows, policies and bounds, held against the cases of kubernetes 1.34's horizontal_test.go."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shakedown.errors import UsageError
from shakedown.serving.autoscaling.behavior import (
    DEFAULT_DOWN,
    DEFAULT_UP,
    Behavior,
    Granted,
    History,
    Policy,
    PolicyKind,
    Rules,
    Select,
    Stamped,
    limited,
    limited_by_default,
    scaled,
    stabilized,
    stabilized_by_default,
)
from shakedown.serving.autoscaling.hpa import Gauge, HpaSettings, Target, sync

NOW_S = 10_000.0
MINUTE_S = 60.0
TARGET = Target(Gauge.WAITING, 5)


def rules(*, pods: tuple[int, int] | None = None, percent: tuple[int, int] | None = None) -> Rules:
    """Policies of (value, period); the higher change counts."""
    policies = [Policy(PolicyKind.PODS, *pods)] if pods else []
    return Rules(policies=(*policies, *([Policy(PolicyKind.PERCENT, *percent)] if percent else ())))


def spread(sizes: list[int], period_s: int) -> tuple[Stamped, ...]:
    """Changes in the middle of equal parts of the last seconds, the oldest first."""
    part_s = period_s / len(sizes)
    return tuple(
        Stamped(size, NOW_S - (period_s - part_s * (index + 1) + part_s / 2)) for index, size in enumerate(sizes)
    )


def seen(*recommendations: tuple[int, float]) -> History:
    """Recommendations of (replicas, minutes ago)."""
    return History(tuple(Stamped(replicas, NOW_S - ago * MINUTE_S) for replicas, ago in recommendations))


@pytest.mark.parametrize(
    ("current", "wanted", "bounds", "expected"),
    [
        (5, 7, (3, 8), Granted(7, "DesiredWithinRange")),
        (3, 1, (2, 8), Granted(2, "TooFewReplicas")),
        (1, 0, (0, 10), Granted(0, "DesiredWithinRange")),
        (20, 1000, (1, 10), Granted(10, "TooManyReplicas")),
        (3, 1000, (1, 2000), Granted(6, "ScaleUpLimit")),
        (1, 1000, (1, 2000), Granted(4, "ScaleUpLimit")),
    ],
)
def test_limits_without_a_behavior(current: int, wanted: int, bounds: tuple[int, int], expected: Granted) -> None:
    assert limited_by_default(wanted, current, bounds) == expected


@pytest.mark.parametrize(
    ("current", "wanted", "bounds", "up", "added", "removed", "expected"),
    [
        (5, 7, (3, 8), DEFAULT_UP, [], [], Granted(7, "DesiredWithinRange")),
        (20, 1000, (1, 10), DEFAULT_UP, [], [], Granted(10, "TooManyReplicas")),
        (100, 1000, (100, 150), DEFAULT_UP, [], [], Granted(150, "TooManyReplicas")),
        (3, 1000, (1, 2000), rules(percent=(1, 60)), [], [], Granted(4, "ScaleUpLimit")),
        (10, 50, (1, 1000), DEFAULT_UP, [], [], Granted(20, "ScaleUpLimit")),
        (10, 500, (1, 1000), rules(pods=(100, 60), percent=(100, 60)), [], [], Granted(110, "ScaleUpLimit")),
        (10, 500, (1, 1000), rules(pods=(2, 60), percent=(100, 60)), [], [], Granted(20, "ScaleUpLimit")),
        (10, 50, (1, 1000), rules(pods=(100, 60)), [], [], Granted(50, "DesiredWithinRange")),
        (10, 50, (1, 1000), rules(pods=(30, 60)), [], [], Granted(40, "ScaleUpLimit")),
        (10, 50, (1, 1000), rules(percent=(200, 60)), [], [], Granted(30, "ScaleUpLimit")),
        (100, 500, (1, 200), rules(pods=(300, 60)), [1, 5, 9], [], Granted(200, "TooManyReplicas")),
        (100, 500, (1, 1000), rules(pods=(5, 120)), [1, 5, 9], [], Granted(100, "ScaleUpLimit")),
        (100, 500, (1, 1000), rules(pods=(150, 120)), [1, 5, 9], [], Granted(235, "ScaleUpLimit")),
        (100, 500, (1, 1000), rules(percent=(200, 120)), [1, 5, 9], [], Granted(255, "ScaleUpLimit")),
        (6, 24, (1, 1000), rules(percent=(300, 300)), [4], [2], Granted(16, "ScaleUpLimit")),
        (
            100,
            200,
            (1, 1000),
            rules(pods=(1000, 30), percent=(100, 60)),
            [8, 12, 9, 11],
            [],
            Granted(200, "DesiredWithinRange"),
        ),
    ],
)
def test_policies_of_scaling_out(
    current: int,
    wanted: int,
    bounds: tuple[int, int],
    up: Rules,
    added: list[int],
    removed: list[int],
    expected: Granted,
) -> None:
    history = History(added=spread(added, 120) if added else (), removed=spread(removed, 120) if removed else ())
    assert limited(wanted, current, bounds, Behavior(up=up), history, NOW_S) == expected


@pytest.mark.parametrize(
    ("current", "wanted", "bounds", "down", "added", "removed", "expected"),
    [
        (3, 1, (2, 8), DEFAULT_DOWN, [], [], Granted(2, "TooFewReplicas")),
        (1, 0, (0, 10), DEFAULT_DOWN, [], [], Granted(0, "DesiredWithinRange")),
        (1000, 3, (3, 2000), rules(pods=(20, 60)), [], [], Granted(980, "ScaleDownLimit")),
        (100, 2, (1, 1000), rules(pods=(20, 60), percent=(1, 60)), [], [], Granted(80, "ScaleDownLimit")),
        (100, 2, (1, 1000), rules(pods=(2, 60), percent=(1, 60)), [], [], Granted(98, "ScaleDownLimit")),
        (10, 0, (1, 1000), rules(pods=(100, 60)), [], [], Granted(1, "TooFewReplicas")),
        (10, 2, (5, 1000), rules(percent=(100, 60)), [], [], Granted(5, "TooFewReplicas")),
        (10, 2, (1, 1000), rules(pods=(5, 60)), [], [], Granted(5, "ScaleDownLimit")),
        (10, 5, (1, 1000), rules(percent=(50, 60)), [], [], Granted(5, "DesiredWithinRange")),
        (10, 5, (1, 1000), DEFAULT_DOWN, [], [1, 5, 9], Granted(5, "DesiredWithinRange")),
        (100, 0, (1, 1000), rules(pods=(115, 120)), [], [1, 5, 9], Granted(1, "TooFewReplicas")),
        (100, 0, (5, 1000), rules(pods=(130, 120)), [], [1, 5, 9], Granted(5, "TooFewReplicas")),
        (100, 2, (1, 1000), rules(pods=(5, 120)), [], [1, 5, 9], Granted(100, "ScaleDownLimit")),
        (100, 0, (1, 1000), rules(percent=(50, 120)), [], [2, 4, 6], Granted(56, "ScaleDownLimit")),
        (10, 1, (1, 1000), rules(percent=(50, 180)), [2], [4], Granted(6, "ScaleDownLimit")),
        (100, 0, (1, 1000), rules(percent=(10, 120)), [], [10, 10, 10], Granted(100, "ScaleDownLimit")),
        (10, 5, (1, 1000), rules(percent=(1000, 120)), [], [10, 10, 10], Granted(5, "DesiredWithinRange")),
    ],
)
def test_policies_of_scaling_in(
    current: int,
    wanted: int,
    bounds: tuple[int, int],
    down: Rules,
    added: list[int],
    removed: list[int],
    expected: Granted,
) -> None:
    history = History(added=spread(added, 120) if added else (), removed=spread(removed, 120) if removed else ())
    assert limited(wanted, current, bounds, Behavior(down=down), history, NOW_S) == expected


def test_the_smaller_change_of_two_policies_can_be_chosen_and_a_direction_forbidden() -> None:
    both = (Policy(PolicyKind.PODS, 2, 60), Policy(PolicyKind.PERCENT, 50, 60))
    least = Behavior(up=Rules(policies=both, select=Select.MIN), down=Rules(policies=both, select=Select.MIN))
    never = Behavior(up=Rules(policies=both, select=Select.DISABLED), down=Rules(policies=both, select=Select.DISABLED))
    assert limited(9, 1, (1, 10), least, History(), NOW_S).replicas == 2
    assert limited(1, 5, (1, 10), least, History(), NOW_S).replicas == 3
    assert limited(9, 1, (1, 10), never, History(), NOW_S) == Granted(1, "ScaleUpLimit")
    assert limited(1, 5, (1, 10), never, History(), NOW_S) == Granted(5, "ScaleDownLimit")


@pytest.mark.parametrize(
    ("history", "wanted", "expected"),
    [
        (seen(), 5, 5),
        (seen((4, 2), (5, 1)), 3, 5),
        (seen((1, 2), (2, 1)), 3, 3),
        (seen((10, 10), (9, 9)), 3, 3),
        (seen((10, 10), (4, 1), (5, 2), (9, 9)), 3, 5),
    ],
)
def test_stabilization_without_a_behavior(history: History, wanted: int, expected: int) -> None:
    assert stabilized_by_default(wanted, 300.0, history, NOW_S) == expected


@pytest.mark.parametrize(
    ("history", "current", "wanted", "up_s", "down_s", "expected"),
    [
        (seen(), 100, 5, 0, 0, 5),
        (seen((4, 2), (5, 1)), 100, 3, 0, 180, 5),
        (seen((4, 2), (5, 1)), 1, 7, 300, 0, 4),
        (seen((1, 2), (2, 1)), 100, 3, 300, 0, 3),
        (seen((4, 2), (5, 1)), 1, 3, 0, 300, 3),
        (seen((10, 10), (9, 9)), 100, 3, 0, 0, 3),
        (seen((10, 10), (9, 9)), 1, 100, 0, 0, 100),
        (seen((10, 10), (4, 1), (5, 2), (9, 9)), 100, 3, 0, 180, 5),
        (seen((10, 100), (6, 1), (5, 2), (9, 3)), 1, 100, 300, 0, 5),
        (seen((2, 100), (3, 3)), 2, 1, 300, 300, 2),
        (seen((2, 100), (1, 3)), 2, 3, 300, 300, 2),
    ],
)
def test_stabilization_with_windows(
    history: History, current: int, wanted: int, up_s: int, down_s: int, expected: int
) -> None:
    behavior = Behavior(
        up=Rules(policies=DEFAULT_UP.policies, window_s=up_s),
        down=Rules(policies=DEFAULT_DOWN.policies, window_s=down_s),
    )
    assert stabilized(wanted, current, behavior, 300.0, history, NOW_S) == expected


def test_a_change_is_remembered_as_long_as_the_longest_policy() -> None:
    behavior = Behavior(up=rules(pods=(10, 60), percent=(100, 30)))
    history = History(added=(Stamped(7, NOW_S - 61), Stamped(6, NOW_S - 59), Stamped(8, NOW_S - 29)))
    assert [change.replicas for change in scaled(history, 10, 15, behavior, NOW_S).added] == [6, 8, 5]


@pytest.mark.parametrize(
    ("current", "minimum", "maximum", "proposals", "expected", "reason"),
    [
        (0, 1, 5, (9,), 0, "ScalingDisabled"),  # ZeroReplicas
        (2, 3, 5, (None,), 3, "OutsideOfBounds"),  # TooFewReplicas
        (10, 3, 5, (None,), 5, "OutsideOfBounds"),  # TooManyReplicas
        (0, 0, 5, (1,), 1, "DesiredWithinRange"),  # ScaleUpFromZero
        (4, 1, 5, (None,), 4, "FailedGetMetrics"),  # MissingReports
        (3, 1, 200, (100,), 6, "ScaleUpLimit"),  # UpscaleCap
    ],
)
def test_one_sync(
    current: int, minimum: int, maximum: int, proposals: tuple[int | None, ...], expected: int, reason: str
) -> None:
    settings = HpaSettings(targets=(TARGET,), min_replicas=minimum, max_replicas=maximum)
    decided = sync(settings, History(), current=current, proposals=proposals, now_s=NOW_S)
    assert (decided.replicas, decided.reason) == (expected, reason)


def test_the_size_at_the_first_sync_counts_as_a_recommendation() -> None:
    settings = HpaSettings(targets=(TARGET,), max_replicas=10)
    first = sync(settings, History(), current=5, proposals=(1,), now_s=0.0)
    at_last = sync(settings, first.history, current=5, proposals=(1,), now_s=301.0)
    assert (first.replicas, first.reason) == (5, "ScaleDownStabilized")
    assert at_last.replicas == 1


@pytest.mark.parametrize(
    "refused",
    [
        lambda: Policy(PolicyKind.PODS, 0, 60),
        lambda: Policy(PolicyKind.PODS, 1, 1801),
        lambda: Rules(policies=()),
        lambda: Rules(policies=DEFAULT_UP.policies, window_s=3601),
        lambda: HpaSettings(targets=(TARGET,), min_replicas=3, max_replicas=2),
        lambda: HpaSettings(targets=(), max_replicas=2),
        lambda: Target(Gauge.WAITING, 0),
        lambda: Target(Gauge.WAITING, float("nan")),
    ],
)
def test_what_the_api_server_refuses_is_refused(refused: object) -> None:
    assert callable(refused)
    with pytest.raises(UsageError):
        refused()


POLICIES = st.builds(Policy, st.sampled_from(PolicyKind), st.integers(1, 200), st.integers(1, 1800))
RULES = st.builds(
    Rules,
    policies=st.lists(POLICIES, min_size=1, max_size=3).map(tuple),
    window_s=st.integers(0, 600),
    select=st.sampled_from(Select),
)
BEHAVIORS = st.one_of(st.none(), st.builds(Behavior, up=RULES, down=RULES))
WISHES = st.lists(st.one_of(st.none(), st.integers(0, 60)), min_size=1, max_size=40)


def play(settings: HpaSettings, wishes: list[int | None], start: int) -> list[int]:
    """The scale after each sync."""
    history, current, curve = History(), start, []
    for turn, wish in enumerate(wishes):
        decided = sync(settings, history, current=current, proposals=(wish,), now_s=turn * settings.sync_period_s)
        history, current = decided.history, decided.replicas
        curve.append(current)
    return curve


@given(
    behavior=BEHAVIORS, wishes=WISHES, minimum=st.integers(1, 10), width=st.integers(0, 40), start=st.integers(1, 60)
)
def test_replicas_stay_between_minimum_and_maximum(
    behavior: Behavior | None, wishes: list[int | None], minimum: int, width: int, start: int
) -> None:
    settings = HpaSettings(targets=(TARGET,), min_replicas=minimum, max_replicas=minimum + width, behavior=behavior)
    assert all(minimum <= replicas <= minimum + width for replicas in play(settings, wishes, start))


@given(wishes=st.lists(st.integers(1, 60), min_size=2, max_size=40), window_s=st.integers(0, 600))
def test_no_replica_goes_while_the_window_remembers_that_it_was_wanted(wishes: list[int], window_s: int) -> None:
    behavior = Behavior(down=Rules(policies=DEFAULT_DOWN.policies, window_s=window_s))
    settings = HpaSettings(targets=(TARGET,), max_replicas=60, behavior=behavior)
    curve = play(settings, list(wishes), wishes[0])
    for turn in range(1, len(curve)):
        if curve[turn] < curve[turn - 1]:
            remembered = [
                wish
                for past, wish in enumerate(wishes[: turn + 1])
                if past == turn or (turn - past) * settings.sync_period_s < window_s
            ]
            assert curve[turn] >= max(remembered)


@given(behavior=BEHAVIORS, wish=st.integers(0, 60), start=st.integers(1, 40))
def test_a_constant_wish_is_approached_in_one_direction(behavior: Behavior | None, wish: int, start: int) -> None:
    settings = HpaSettings(targets=(TARGET,), max_replicas=40, behavior=behavior)
    curve = [start, *play(settings, [wish] * 60, start)]
    assert curve in (sorted(curve), sorted(curve, reverse=True))
