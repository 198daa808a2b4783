"""Requests are sent when they are due, with or without the kernel's own alarm clock."""

import time

import pytest

from shakedown.load import alarm
from shakedown.load.alarm import Alarm


@pytest.mark.parametrize("has_timerfd", [alarm.HAS_TIMERFD, False])
async def test_an_alarm_rings_at_its_time_and_at_once_when_that_is_over(
    has_timerfd: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alarm, "HAS_TIMERFD", has_timerfd)
    with Alarm() as clock:
        due = time.monotonic() + 0.05
        while time.monotonic() < due:
            await clock.at(due)
        assert time.monotonic() >= due
        await clock.at(due - 1)
        await clock.at(time.monotonic() + 0.001)
