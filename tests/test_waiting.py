"""A wait ends when its condition holds, at its deadline with what it last saw, or at once on a real error."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from shakedown.errors import WaitTimeout
from shakedown.waiting import wait_until


class TickingClock:
    """Time passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.seconds = 1000.0
        self.sleeps: list[float] = []

    def now(self) -> float:
        return self.seconds

    def elapsed(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.seconds += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> TickingClock:
    ticking = TickingClock()
    monkeypatch.setattr(asyncio, "sleep", ticking.sleep)
    return ticking


def sightings(*values: int | Exception) -> Callable[[], Awaitable[int]]:
    """One value a look, the last one ever after; an exception is raised."""
    left = list(values)

    async def observe() -> int:
        value = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(value, Exception):
            raise value
        return value

    return observe


async def test_what_holds_at_once_is_returned_without_a_wait(clock: TickingClock) -> None:
    assert await wait_until("three", sightings(3), lambda n: n == 3, within_s=10, clock=clock) == 3
    assert clock.sleeps == []


async def test_the_sighting_that_holds_is_returned(clock: TickingClock) -> None:
    seen = await wait_until("three", sightings(1, 2, 3), lambda n: n >= 3, within_s=10, every_s=0.5, clock=clock)
    assert seen == 3
    assert clock.sleeps == [0.5, 0.5]


async def test_a_deadline_says_what_was_awaited_how_long_and_what_was_last_seen(clock: TickingClock) -> None:
    with pytest.raises(WaitTimeout) as timeout:
        await wait_until("two Ready pods", sightings(0, 1), lambda n: n == 2, within_s=5, every_s=1, clock=clock)
    assert (timeout.value.what, timeout.value.after_s, timeout.value.last_seen) == ("two Ready pods", 5, 1)
    assert str(timeout.value) == "two Ready pods did not hold within 5 s; last seen: 1"
    assert clock.seconds == 1005


async def test_a_condition_that_comes_true_at_the_deadline_still_counts(clock: TickingClock) -> None:
    assert await wait_until("two", sightings(0, 1, 2), lambda n: n == 2, within_s=2, every_s=1, clock=clock) == 2


async def test_without_time_one_look_is_taken_all_the_same(clock: TickingClock) -> None:
    assert await wait_until("one", sightings(1), bool, within_s=0, clock=clock) == 1
    with pytest.raises(WaitTimeout, match="last seen: 0"):
        await wait_until("one", sightings(0), bool, within_s=0, clock=clock)


async def test_a_tolerated_error_is_not_yet_and_is_what_was_last_seen(clock: TickingClock) -> None:
    observe = sightings(ConnectionError("refused"), 1)
    assert await wait_until("an answer", observe, bool, within_s=5, tolerate=(OSError,), clock=clock) == 1
    with pytest.raises(WaitTimeout, match="last seen: ConnectionError: refused"):
        await wait_until(
            "an answer", sightings(ConnectionError("refused")), bool, within_s=1, tolerate=(OSError,), clock=clock
        )


async def test_any_other_error_surfaces_at_once(clock: TickingClock) -> None:
    with pytest.raises(PermissionError, match="forbidden"):
        await wait_until(
            "an answer",
            sightings(PermissionError("forbidden")),
            bool,
            within_s=60,
            tolerate=(ConnectionError,),
            clock=clock,
        )
    assert clock.sleeps == []


async def test_an_error_of_the_condition_itself_surfaces(clock: TickingClock) -> None:
    with pytest.raises(ZeroDivisionError):
        await wait_until("x", sightings(0), lambda n: bool(1 // n), within_s=60, clock=clock)
    assert clock.sleeps == []
