"""What an engine does with its queue, told from scrapes alone: it flows, or one of four ways in which it does not.

From outside they look alike, since users see no text. They call for different remedies: a thrashing engine needs fewer
sequences at once, a hung or stuck one a restart, and a dead one is being restarted already.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from shakedown.judge.records import MetricSample

RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
PREEMPTIONS = "vllm:num_preemptions_total"
GENERATED = "vllm:generation_tokens_total"

STANDSTILL_S = 3.0
"""A step takes 10 to 200 ms and the prefill of a long prompt up to a second; three silent ones are no coincidence."""
THRASH_WINDOW_S = 5.0
THRASH_SHARE = 0.25
"""Within the window a quarter of what runs was set back: answers cost more than they bring."""
THRASH_AT_LEAST = 3
"""Fewer preemptions than this in the window are the ordinary cost of a full cache."""


class Progress(StrEnum):
    """What an engine does."""

    IDLE = "idle"
    FLOWING = "flowing"
    THRASHING = "thrashing"
    """Tokens are made, and running answers are set back again and again."""
    HUNG = "hung"
    """Requests run and no token is made; the process answers."""
    STUCK = "stuck"
    """Requests wait, none runs, and no token is made."""
    DEAD = "dead"
    """It did not answer, and came back with new counters."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """What one pod's engine did between two wall times."""

    pod: str
    progress: Progress
    start: float
    end: float

    @property
    def length_s(self) -> float:
        return self.end - self.start


def stretches(samples: Sequence[MetricSample]) -> tuple[Stretch, ...]:
    """What each pod's engine did, in order of time, equal neighbours joined.

    A standstill shorter than STANDSTILL_S counts as flowing.
    """
    pods: dict[str, list[MetricSample]] = {}
    for sample in sorted(samples, key=lambda sample: sample.at):
        if GENERATED in sample.values:
            pods.setdefault(sample.pod, []).append(sample)
    return tuple(stretch for pod, scrapes in pods.items() for stretch in _of_pod(pod, scrapes))


def _of_pod(pod: str, scrapes: Sequence[MetricSample]) -> list[Stretch]:
    joined: list[Stretch] = []
    for index, (earlier, later) in enumerate(pairwise(scrapes)):
        seen = _between(earlier, later, scrapes, index + 1)
        if joined and joined[-1].progress is seen:
            joined[-1] = Stretch(pod, seen, joined[-1].start, later.at)
        else:
            joined.append(Stretch(pod, seen, earlier.at, later.at))
    return [_unless_short(stretch) for stretch in joined]


def _unless_short(stretch: Stretch) -> Stretch:
    brief = stretch.progress in (Progress.HUNG, Progress.STUCK) and stretch.length_s < STANDSTILL_S
    return Stretch(stretch.pod, Progress.FLOWING, stretch.start, stretch.end) if brief else stretch


def _between(earlier: MetricSample, later: MetricSample, scrapes: Sequence[MetricSample], index: int) -> Progress:
    made = later.values[GENERATED] - earlier.values[GENERATED]
    if made < 0:
        return Progress.DEAD
    running, waiting = later.values.get(RUNNING, 0.0), later.values.get(WAITING, 0.0)
    if made == 0:
        if running:
            return Progress.HUNG
        return Progress.STUCK if waiting else Progress.IDLE
    return Progress.THRASHING if _is_thrashing(scrapes, index) else Progress.FLOWING


def _is_thrashing(scrapes: Sequence[MetricSample], index: int) -> bool:
    now = scrapes[index]
    window = [each for each in scrapes[: index + 1] if each.at >= now.at - THRASH_WINDOW_S]
    set_back = sum(
        max(0.0, later.values.get(PREEMPTIONS, 0.0) - earlier.values.get(PREEMPTIONS, 0.0))
        for earlier, later in pairwise(window)
    )
    return set_back >= max(THRASH_AT_LEAST, THRASH_SHARE * now.values.get(RUNNING, 0.0))
