"""KEDA's answers and its steps to and from zero, held against its own source of release 2.21."""

import pytest

from shakedown.errors import UsageError
from shakedown.serving.autoscaling.hpa import Gauge, Target, TargetKind
from shakedown.serving.autoscaling.keda import (
    EMPTY,
    UNREACHABLE,
    Fallback,
    FallbackBehavior,
    KedaSettings,
    Poll,
    Reading,
    Served,
    poll,
    serve,
)

TARGET = Target(Gauge.WAITING, 5)
STRICT = KedaSettings(min_replicas=1, ignore_null_values=False)


def answer(reading: Reading, settings: KedaSettings, target: Target = TARGET, *, failures: int = 0) -> Served:
    return serve(reading, settings, target, failures=failures, current=4, ready=2)


@pytest.mark.parametrize(
    ("reading", "settings", "expected"),
    [
        (Reading(7.0), STRICT, Served(7000, 0, active=True)),
        (Reading(0.0), STRICT, Served(0, 0, active=False)),  # D20: a series with 0 is an idle engine
        (EMPTY, STRICT, Served(None, 1, active=False)),  # D20: no series is a failure …
        (EMPTY, KedaSettings(), Served(0, 0, active=False)),  # D10: … unless ignoreNullValues has its default
        (UNREACHABLE, KedaSettings(), Served(None, 1, active=False)),
        (Reading(5.0), KedaSettings(activation_threshold=5), Served(5000, 0, active=False)),
        (Reading(5.5), KedaSettings(activation_threshold=5), Served(5500, 0, active=True)),
    ],
)
def test_what_an_answer_of_prometheus_becomes(reading: Reading, settings: KedaSettings, expected: Served) -> None:
    assert answer(reading, settings) == expected


def test_a_fallback_speaks_after_more_failures_than_its_threshold() -> None:
    settings = KedaSettings(min_replicas=1, fallback=Fallback(replicas=6, failure_threshold=3))
    failures, answers = 0, []
    for _ in range(5):
        served = answer(UNREACHABLE, settings, failures=failures)
        failures = served.failures
        answers.append(served.usage_milli)
    assert answers == [None, None, None, 30_000, 30_000]
    assert answer(Reading(1.0), settings, failures=failures).failures == 0


@pytest.mark.parametrize(
    ("behavior", "replicas", "expected"),
    [
        (FallbackBehavior.STATIC, 6, 6),
        (FallbackBehavior.CURRENT, 6, 4),
        (FallbackBehavior.CURRENT_IF_HIGHER, 6, 6),
        (FallbackBehavior.CURRENT_IF_HIGHER, 2, 4),
        (FallbackBehavior.CURRENT_IF_LOWER, 6, 4),
        (FallbackBehavior.CURRENT_IF_LOWER, 2, 2),
    ],
)
def test_a_fallback_may_look_at_what_runs(behavior: FallbackBehavior, replicas: int, expected: int) -> None:
    settings = KedaSettings(fallback=Fallback(replicas=replicas, failure_threshold=0, behavior=behavior))
    assert answer(UNREACHABLE, settings).usage_milli == expected * 5000


def test_a_fallback_of_a_value_is_divided_by_the_ready_pods() -> None:
    settings = KedaSettings(fallback=Fallback(replicas=6, failure_threshold=0))
    target = Target(Gauge.WAITING, 5, TargetKind.VALUE)
    assert answer(UNREACHABLE, settings, target).usage_milli == 15_000
    assert serve(UNREACHABLE, settings, target, failures=0, current=4, ready=0).usage_milli is None


@pytest.mark.parametrize(
    ("settings", "current", "active", "failed", "last_active_s", "expected"),
    [
        (KedaSettings(), 0, True, False, None, Poll(1, 1000.0)),
        (KedaSettings(min_replicas=3, idle_replicas=1), 1, True, False, None, Poll(3, 1000.0)),
        (KedaSettings(), 4, True, False, 10.0, Poll(4, 1000.0)),
        (KedaSettings(), 4, True, True, 10.0, Poll(4, 10.0)),
        (KedaSettings(), 4, False, False, 900.0, Poll(4, 900.0)),  # it cools down
        (KedaSettings(), 4, False, False, 600.0, Poll(0, 600.0)),
        (KedaSettings(), 4, False, False, None, Poll(0, None)),
        (KedaSettings(min_replicas=3, idle_replicas=1), 4, False, False, 600.0, Poll(1, 600.0)),
        (KedaSettings(min_replicas=3), 4, False, False, 600.0, Poll(4, 600.0)),
        (KedaSettings(min_replicas=3), 2, False, False, 600.0, Poll(3, 600.0)),
        (KedaSettings(), 4, False, True, 600.0, Poll(4, 600.0)),  # D11: a failure alone takes nothing to zero
        (KedaSettings(fallback=Fallback(replicas=2)), 4, False, True, 600.0, Poll(4, 600.0)),
        (KedaSettings(fallback=Fallback(replicas=0)), 4, False, True, 600.0, Poll(0, 600.0)),
    ],
)
def test_one_poll(
    settings: KedaSettings, current: int, active: bool, failed: bool, last_active_s: float | None, expected: Poll
) -> None:
    decided = poll(settings, current=current, active=active, failed=failed, last_active_s=last_active_s, now_s=1000.0)
    assert decided == expected


def test_polls_matter_only_below_the_range_of_the_hpa() -> None:
    assert KedaSettings().polls
    assert not STRICT.polls
    assert KedaSettings(min_replicas=2, idle_replicas=0).polls
    assert KedaSettings(min_replicas=2, use_cached_metrics=True).polls


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(UsageError):
        KedaSettings(min_replicas=1, idle_replicas=1)
    with pytest.raises(UsageError):
        KedaSettings(polling_interval_s=0)
    with pytest.raises(UsageError):
        Fallback(replicas=-1)
