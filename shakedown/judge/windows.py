"""Which part of a scenario a claim speaks about."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from shakedown.judge.records import Mark, MarkKind, MetricSample, Recorded, RequestRecord


class Phase(StrEnum):
    """A part of a scenario, told by its fault."""

    WHOLE = "whole"
    BEFORE = "before"
    DURING = "during"
    AFTER = "after"

    @property
    def in_words(self) -> str:
        return "" if self is Phase.WHOLE else f"{self.value} the fault"


@dataclass(frozen=True, slots=True)
class Window:
    """A half-open stretch of wall time, in seconds since the epoch."""

    start: float
    end: float

    def __contains__(self, at: float) -> bool:
        return self.start <= at < self.end

    @property
    def length_s(self) -> float:
        return self.end - self.start


EVERYTHING = Window(-math.inf, math.inf)


def fault_window(marks: Sequence[Mark]) -> Window | None:
    """From the start of the first fault until recovery; None if there was no fault.

    It ends where recovery was seen; without that, where the last fault ended; without that, never.
    """
    started = _first(marks, MarkKind.FAULT_STARTED) or _first(marks, MarkKind.FAULT_LANDED)
    if started is None:
        return None
    ends = [
        mark.at for mark in marks if mark.kind in (MarkKind.FAULT_ENDED, MarkKind.RECOVERED) and mark.at >= started.at
    ]
    return Window(started.at, max(ends, default=math.inf))


def strike_window(marks: Sequence[Mark]) -> Window | None:
    """From ordering the first fault until it was proven to have landed: it struck at some instant in between."""
    started = _first(marks, MarkKind.FAULT_STARTED) or _first(marks, MarkKind.FAULT_LANDED)
    if started is None:
        return None
    landed = [mark.at for mark in marks if mark.kind is MarkKind.FAULT_LANDED and mark.at >= started.at]
    return Window(started.at, min(landed, default=started.at))


def phase_window(marks: Sequence[Mark], phase: Phase) -> Window | None:
    """The stretch of a phase; None if it needs a fault and there was none."""
    if phase is Phase.WHOLE:
        return EVERYTHING
    fault = fault_window(marks)
    if fault is None:
        return None
    return {
        Phase.BEFORE: Window(-math.inf, fault.start),
        Phase.DURING: fault,
        Phase.AFTER: Window(fault.end, math.inf),
    }[phase]


def due_within(records: Sequence[RequestRecord], window: Window) -> tuple[RequestRecord, ...]:
    """The requests that were due in the window: when users asked, not when they were answered."""
    return tuple(record for record in records if record.due_at in window)


def sampled_within(samples: Sequence[MetricSample], window: Window) -> tuple[MetricSample, ...]:
    return tuple(sample for sample in samples if sample.at in window)


def origin(recorded: Recorded) -> tuple[float, str]:
    """The instant that "+12 s" counts from, and its name: the fault, else the load's start, else the first record."""
    landmarks = (
        (MarkKind.FAULT_STARTED, "after the fault began"),
        (MarkKind.FAULT_LANDED, "after the fault landed"),
        (MarkKind.LOAD_STARTED, "into the load"),
    )
    for kind, name in landmarks:
        mark = _first(recorded.marks, kind)
        if mark is not None:
            return mark.at, name
    times = [record.due_at for record in recorded.requests]
    times += [sample.at for sample in recorded.samples] + [mark.at for mark in recorded.marks]
    return min(times, default=0.0), "into the scenario"


def _first(marks: Sequence[Mark], kind: MarkKind) -> Mark | None:
    return min((mark for mark in marks if mark.kind is kind), key=lambda mark: mark.at, default=None)
