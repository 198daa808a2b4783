"""What Chaos Toolkit wrote about a run, read without trusting its one-word status.

A method action that fails leaves the status "completed"; so a fault has landed only if every activity of the
method succeeded and the proof carries evidence.
"""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from shakedown.errors import HarnessError


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """One activity as it ran; times in seconds since the Unix epoch."""

    name: str
    function: str
    succeeded: bool
    started_at: float
    ended_at: float
    output: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """The result of one experiment."""

    status: str
    """completed, failed, aborted or interrupted; says nothing about whether the fault landed."""
    deviated: bool
    """The hypothesis held before the method and not after it."""
    steady_before: bool | None
    """None without a hypothesis, or when it was never asked."""
    steady_after: bool | None
    method: tuple[Activity, ...]
    rollbacks: tuple[Activity, ...]

    @property
    def evidence(self) -> str:
        """The proof that the fault landed; empty without one."""
        return next((a.output for a in self.method if a.function == "landed" and a.succeeded), "")

    @property
    def fault_landed(self) -> bool:
        return bool(self.method) and all(a.succeeded for a in self.method) and bool(self.evidence)

    @property
    def lasted(self) -> tuple[float, float]:
        """From the proof that it landed until it began to be taken back. Raises HarnessError if it never landed."""
        ends = [activity.ended_at for activity in self.method if activity.function == "landed" and activity.succeeded]
        undone = [activity.started_at for activity in self.method if activity.function == "undo"]
        if not ends or not undone:
            raise HarnessError("the fault never landed, or was never taken back; so it did not last for any time")
        return ends[0], undone[0]

    @property
    def steady_state_recovered(self) -> bool:
        return self.steady_after is True

    @property
    def rolled_back(self) -> bool:
        return bool(self.rollbacks) and all(activity.succeeded for activity in self.rollbacks)

    @property
    def failed_activities(self) -> tuple[str, ...]:
        ran = (*self.method, *self.rollbacks)
        return tuple(f"{activity.name}: {activity.error}" for activity in ran if not activity.succeeded)


def read_journal(path: Path) -> Journal:
    """Parse journal.json. Raises HarnessError for a file that is missing or is not one."""
    try:
        return parse_journal(msgspec.json.decode(path.read_bytes()))
    except (OSError, msgspec.DecodeError, LookupError, TypeError, ValueError) as error:
        raise HarnessError(f"{path} is no Chaos Toolkit journal: {error!r}") from error


def parse_journal(raw: dict[str, Any]) -> Journal:
    """From Chaos Toolkit's words to ours."""
    states = raw["steady_states"]
    return Journal(
        status=raw["status"],
        deviated=raw["deviated"],
        steady_before=_met(states["before"]),
        steady_after=_met(states["after"]),
        method=tuple(_activity(run) for run in raw.get("run") or ()),
        rollbacks=tuple(_activity(run) for run in raw.get("rollbacks") or ()),
    )


def _met(state: dict[str, Any] | None) -> bool | None:
    return None if state is None else bool(state.get("steady_state_met"))


def _activity(run: dict[str, Any]) -> Activity:
    output = run.get("output")
    return Activity(
        name=run["activity"]["name"],
        function=run["activity"]["provider"]["func"],
        succeeded=run.get("status") == "succeeded",
        started_at=_epoch(run["start"]),
        ended_at=_epoch(run.get("end", run["start"])),
        output="" if output is None else str(output),
        error=_error(run),
    )


def _error(run: dict[str, Any]) -> str:
    if run.get("status") == "succeeded":
        return ""
    lines = [line.strip() for line in run.get("exception") or () if line.strip()]
    return lines[-1].removeprefix("chaoslib.exceptions.ActivityFailed: ") if lines else "it was interrupted"


def _epoch(stamp: str) -> float:
    return datetime.fromisoformat(stamp).timestamp()
