"""Errors of the harness.

HarnessError                 we failed to find out; the verdict is unknown
├── SetupError               the world could not be built; no verdict is possible
│   ├── MissingPrerequisite  the machine lacks something; the message has the command that adds it
│   ├── ManifestRejected     Kubernetes refused an object
│   └── ClusterUnreachable   the API server does not answer
├── NotAllowed               we may not look there; nothing is known of it
├── CommandFailed            a child process ended with a non-zero status, or not in time
├── WaitTimeout              a condition did not come true in time
├── FaultDidNotLand          the fault was ordered but had no effect
├── ClientSaturated          our own load generator was the bottleneck
└── RollbackFailed           the world could not be put back; later scenarios are suspect

UsageError                   what the user asked for makes no sense; exit code 4
"""

from collections.abc import Sequence


class HarnessError(Exception):
    """We failed to find out."""


class SetupError(HarnessError):
    """The world could not be built."""


class MissingPrerequisite(SetupError):
    """The machine lacks something; the message says what and which command adds it."""


class ManifestRejected(SetupError):
    """Kubernetes refused an object."""


class ClusterUnreachable(SetupError):
    """The API server does not answer."""


class NotAllowed(HarnessError):
    """Somebody who could tell refuses to tell us."""


class CommandFailed(HarnessError):
    """A child process ended with a non-zero status, or was killed at its time limit."""

    def __init__(self, argv: Sequence[str], outcome: str, output_tail: str) -> None:
        super().__init__(f"`{' '.join(argv)}` {outcome}\n{output_tail}".rstrip())
        self.argv, self.outcome, self.output_tail = tuple(argv), outcome, output_tail


class WaitTimeout(HarnessError):
    """A condition did not come true before its deadline."""

    def __init__(self, what: str, after_s: float, last_seen: object) -> None:
        super().__init__(f"{what} did not hold within {after_s:g} s; last seen: {last_seen}")
        self.what, self.after_s, self.last_seen = what, after_s, last_seen


class FaultDidNotLand(HarnessError):
    """The fault was ordered but had no effect."""


class ClientSaturated(HarnessError):
    """Our own load generator was the bottleneck."""


class RollbackFailed(HarnessError):
    """The world could not be put back."""


class UsageError(Exception):
    """What the user asked for makes no sense."""

    EXIT_CODE = 4
