"""What one metric asks for, held against the cases of kubernetes 1.34's replica_calculator_test.go."""

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shakedown.serving.autoscaling.calculator import (
    PodSample,
    PodState,
    Tolerances,
    average_value,
    combined,
    milli,
    pods_average,
    value,
)

ROUNDING = 1e-9
TIGHT = Tolerances(down=0.1, up=0.01)


def running(*usages_milli: int | None) -> list[PodSample]:
    return [PodSample(PodState.RUNNING, usage) for usage in usages_milli]


PENDING = PodSample(PodState.PENDING, None)
GONE = PodSample(PodState.GONE, 999_000)


@pytest.mark.parametrize(
    ("usage", "target", "replicas", "tolerances", "expected"),
    [
        (8600, 2150, 3, Tolerances(), 4),  # ScaleUpPerPodCMExternal
        (8600, 2867, 5, Tolerances(), 3),  # ScaleDownPerPodCMExternal
        (8600, 2900, 3, Tolerances(), 3),  # TolerancePerPodCMExternal
        (8600, 2800, 3, TIGHT, 4),  # ConfigurableTolerancePerPodCMExternal
        (20000, 5000, 3, Tolerances(), 4),  # ScaleUpCMPerPodObject
        (6000, 2000, 5, Tolerances(), 3),  # ScaleDownPerPodCMObject
        (20166, 5000, 4, Tolerances(), 4),  # TolerancePerPodCMObject
        (20208, 5000, 4, TIGHT, 5),  # ConfigurableTolerancePerPodCMObject
        (0, 5000, 0, Tolerances(), 0),
        (1, 5000, 0, Tolerances(), 1),
        (2**62, 1, 3, Tolerances(), 2**31 - 1),  # ExternalPerPodMetricReplicaOverflow
    ],
)
def test_a_sum_asks_for_one_replica_per_target(
    usage: int, target: int, replicas: int, tolerances: Tolerances, expected: int
) -> None:
    assert average_value(usage, target, replicas, tolerances) == expected


@pytest.mark.parametrize(
    ("usage", "target", "current", "ready", "tolerances", "expected"),
    [
        (8600, 4400, 1, 1, Tolerances(), 2),  # ScaleUpCMExternal
        (8600, 4400, 3, 1, Tolerances(), 2),  # ScaleUpCMExternalIgnoresUnreadyPods
        (50000, 10000, 3, 1, Tolerances(), 5),  # ScaleUpCMObjectIgnoresUnreadyPods
        (20000, 15000, 3, 3, Tolerances(), 4),  # ScaleUpCMObject
        (8600, 14334, 5, 5, Tolerances(), 3),  # ScaleDownCMExternal
        (12000, 20000, 5, 5, Tolerances(), 3),  # ScaleDownCMObject
        (8600, 8888, 3, 3, Tolerances(), 3),  # ToleranceCMExternal
        (8900, 8800, 3, 3, TIGHT, 4),  # ConfigurableToleranceCMExternal
        (1, 15000, 0, 0, Tolerances(), 1),  # from zero, tolerance and readiness do not count
    ],
)
def test_a_value_scales_the_ready_pods(
    usage: int, target: int, current: int, ready: int, tolerances: Tolerances, expected: int
) -> None:
    assert value(usage, target, current, ready, tolerances) == expected


@pytest.mark.parametrize(
    ("pods", "target", "current", "tolerances", "expected"),
    [
        (running(20000, 10000, 30000), 15000, 3, Tolerances(), 4),  # ScaleUpCM
        (running(50000, 10000, 30000), 15000, 3, Tolerances(), 6),  # readiness does not count for running pods
        (running(50000, 15000, 30000), 15000, 3, Tolerances(), 7),
        (running(12000, 12000, 12000, 12000, 12000), 20000, 5, Tolerances(), 3),  # ScaleDownCM
        (running(20000, 21000, 21000), 20000, 3, Tolerances(), 3),  # ToleranceCM
        (running(20000, 21000, 21000), 20000, 3, TIGHT, 4),  # ConfigurableToleranceCM
        (running(20000, 19000, 21000, None, None), 20000, 5, Tolerances(), 5),  # MissingMetricsNoChangeEq
        (running(10000, 10000, None), 17000, 2, Tolerances(), 2),  # DuringRollingUpdateWithMaxSurgeCM
        (running(None, None), 1000, 2, Tolerances(), None),  # EmptyMetrics
        ([], 1000, 2, Tolerances(), None),
        # Growth is spread over pods that are on their way: 2 serve 30 each, 2 load, target 15.
        ([*running(30000, 30000), PENDING, PENDING], 15000, 4, Tolerances(), 4),
        (running(30000, 30000, None, None), 15000, 4, Tolerances(), 4),
        # A pod that is being deleted, or has failed, does not count at all.
        ([*running(20000, 10000, 30000), GONE], 15000, 3, Tolerances(), 4),
        # A scale-down with pods that cannot be seen: they count as on target.
        (running(1000, 1000, None), 10000, 3, Tolerances(), 2),
    ],
)
def test_pods_are_averaged_and_the_unknown_only_slows(
    pods: Sequence[PodSample], target: int, current: int, tolerances: Tolerances, expected: int | None
) -> None:
    assert pods_average(pods, target, current, tolerances) == expected


@pytest.mark.parametrize(
    ("proposals", "current", "expected"),
    [
        ((3, 5), 2, 5),
        ((3, None), 2, 3),  # ScaleUpOneMetricInvalid
        ((3, None), 5, None),  # NoScaleDownOneMetricInvalid
        ((None, None), 5, None),  # ScaleUpBothMetricsEmpty
        ((), 5, None),
        ((0,), 1, 0),
    ],
)
def test_the_highest_wins_and_a_missing_metric_forbids_scaling_in(
    proposals: Sequence[int | None], current: int, expected: int | None
) -> None:
    assert combined(proposals, current) == expected


def test_quantities_round_up_to_thousandths() -> None:
    assert (milli(5), milli(0.0001), milli(2.5), milli(0.1 + 0.2)) == (5000, 1, 2500, 300)


@given(
    usages=st.lists(st.one_of(st.none(), st.integers(0, 10**6)), min_size=1, max_size=8),
    pending=st.integers(0, 8),
    target=st.integers(1, 10**6),
)
def test_pods_that_are_not_there_yet_never_raise_the_wish(usages: list[int | None], pending: int, target: int) -> None:
    current = len(usages) + pending
    known = [usage for usage in usages if usage is not None]
    found = pods_average([*running(*usages), *[PENDING] * pending], target, current, Tolerances())
    if found is None:
        assert not known
    elif found > current:
        assert found <= math.ceil(sum(known) / target * (1 + ROUNDING))
