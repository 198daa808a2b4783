"""When users were badly served, and when that was over for good."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from shakedown.judge.objectives import SLO, is_good
from shakedown.judge.records import RequestRecord
from shakedown.judge.windows import Window

NOISE_S = 1.5
HALF_S = 0.5
"""Seconds are whole but their starts are not exact, so they are compared half a second off."""


@dataclass(frozen=True, slots=True)
class ServedSecond:
    """One second of due times."""

    start: float
    sent: int
    good: int

    def is_bad(self, good_share: float) -> bool:
        """True if fewer than that share of what was due in it was served well. A second without requests is not bad."""
        return self.sent > 0 and self.good < good_share * self.sent


@dataclass(frozen=True, slots=True)
class Recovery:
    """How a fault ended for users."""

    time_to_recovery_s: float
    """From the fault to the first second of a lasting good run; infinity if the load ended in a bad way."""
    settled: bool
    """False if the load ended before the last good run was long enough to be called lasting."""


def served_seconds(records: Sequence[RequestRecord], slo: SLO, since: float) -> tuple[ServedSecond, ...]:
    """Every second from `since` to the last due time, those without requests too."""
    sent: dict[int, int] = {}
    good: dict[int, int] = {}
    for record in records:
        second = math.floor(record.due_at - since)
        if second >= 0:
            sent[second] = sent.get(second, 0) + 1
            good[second] = good.get(second, 0) + is_good(record, slo)
    return tuple(
        ServedSecond(since + second, sent.get(second, 0), good.get(second, 0))
        for second in range(max(sent, default=-1) + 1)
    )


def outages(seconds: Sequence[ServedSecond], *, good_share: float = 0.9, lasting_s: int = 5) -> tuple[Window, ...]:
    """Stretches from a first bad second to a last one, joined where no lasting good run lies between them."""
    found: list[Window] = []
    for second in seconds:
        if not second.is_bad(good_share):
            continue
        if found and second.start - found[-1].end < lasting_s:
            found[-1] = Window(found[-1].start, second.start + 1)
        else:
            found.append(Window(second.start, second.start + 1))
    return tuple(found)


def recovery(seconds: Sequence[ServedSecond], *, good_share: float = 0.9, lasting_s: int = 5) -> Recovery:
    """Time from the first of these seconds to the first second of the good run that lasts.

    A run lasts when no relapse follows it. A single bad second long after the fault is noise and no relapse; two bad
    seconds within `lasting_s` of each other are one.
    """
    if not seconds:
        return Recovery(math.inf, True)
    since, over = seconds[0].start, seconds[-1].start + 1
    bad = [
        window
        for window in outages(seconds, good_share=good_share, lasting_s=lasting_s)
        if window.length_s > NOISE_S or window.start < since + lasting_s
    ]
    if not bad:
        return Recovery(0.0, over - since >= lasting_s)
    if bad[-1].end > over - HALF_S:
        return Recovery(math.inf, True)
    good_from = next(second.start for second in seconds if second.sent and second.start > bad[-1].end - HALF_S)
    return Recovery(good_from - since, over - good_from > lasting_s - HALF_S)
