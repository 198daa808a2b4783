"""What each pod was, from when to when, read from the marks that the events collector left."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from shakedown.evidence.events_collector import (
    BEING_DELETED,
    CREATED,
    DELETED,
    FIRST_SEEN,
    NOT_READY,
    READY,
    RESTARTED,
    WARNING,
)
from shakedown.judge.records import Mark, MarkKind


class PodPhase(StrEnum):
    """As seen by traffic, not Kubernetes' phase: a Running pod that is not ready serves nobody."""

    STARTING = "starting"
    READY = "ready"
    NOT_READY = "not ready"
    LEAVING = "being deleted"


PHASE_AFTER: tuple[tuple[str, PodPhase | None], ...] = (
    (CREATED, PodPhase.STARTING),
    (FIRST_SEEN, PodPhase.STARTING),
    (RESTARTED, PodPhase.STARTING),
    (BEING_DELETED, PodPhase.LEAVING),
    (DELETED, None),
    (NOT_READY, PodPhase.NOT_READY),
    (READY, PodPhase.READY),
)


@dataclass(frozen=True, slots=True)
class Stretch:
    """A pod in one phase."""

    start: float
    end: float
    phase: PodPhase


@dataclass(frozen=True, slots=True)
class PodRow:
    """One pod's row of the picture. Times in seconds from the timeline's zero."""

    pod: str
    stretches: tuple[Stretch, ...]
    restarts: tuple[float, ...]
    warnings: tuple[float, ...]


def pod_rows(marks: Sequence[Mark], zero: float, end: float) -> tuple[PodRow, ...]:
    """A row for each pod whose transitions were seen, in the order in which they appeared."""
    told: dict[str, list[Mark]] = {}
    for mark in sorted(marks, key=lambda mark: mark.at):
        if mark.kind is MarkKind.KUBERNETES and mark.subject:
            told.setdefault(mark.subject, []).append(mark)
    rows = (_row(pod, mine, zero, end) for pod, mine in told.items())
    return tuple(row for row in rows if row.stretches)


def _row(pod: str, marks: Sequence[Mark], zero: float, end: float) -> PodRow:
    stretches: list[Stretch] = []
    phase: PodPhase | None = None
    since = 0.0
    for mark in marks:
        known, after = _phase_after(mark.text)
        if not known or (after is phase and not mark.text.startswith(RESTARTED)):
            continue
        if phase is not None:
            stretches.append(Stretch(since, mark.at - zero, phase))
        phase, since = after, mark.at - zero
    if phase is not None:
        stretches.append(Stretch(since, end, phase))
    return PodRow(
        pod,
        tuple(stretches),
        tuple(mark.at - zero for mark in marks if mark.text.startswith(RESTARTED)),
        tuple(mark.at - zero for mark in marks if mark.text.startswith(WARNING)),
    )


def _phase_after(text: str) -> tuple[bool, PodPhase | None]:
    for words, phase in PHASE_AFTER:
        if text.startswith(words):
            return True, phase
    return False, None
