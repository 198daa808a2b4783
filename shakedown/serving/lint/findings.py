"""What a rule is, and what it says about a place in a file."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from shakedown.serving.lint.world import Place, World


class Severity(StrEnum):
    """An error breaks serving sooner or later; a warning does under load or bad luck."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumptions:
    """What files cannot tell."""

    load_s: float = 360.0
    """From process start until the weights are served. The default is the slow end of an 8B model from a registry."""
    drain_s: float = 60.0
    """The longest answer that a replica may have begun when it is told to stop."""
    client_timeout_s: float = 600.0
    """How long clients wait; the default is that of the OpenAI client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One rule broken at one place."""

    rule: str
    severity: Severity
    file: str
    object: str
    wrong: str
    effect: str
    fix: str
    reference: str


@dataclass(frozen=True, slots=True)
class Fault:
    """A place and what is wrong there; the rule says the rest unless it is told otherwise here."""

    place: Place
    wrong: str
    fix: str | None = None
    severity: Severity | None = None


Check = Callable[[World, Assumptions], Iterator[Fault]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A known misconfiguration."""

    id: str
    severity: Severity
    effect: str
    fix: str
    reference: str
    check: Check

    def findings(self, world: World, assumptions: Assumptions) -> Iterator[Finding]:
        for fault in self.check(world, assumptions):
            yield Finding(
                rule=self.id,
                severity=fault.severity or self.severity,
                file=fault.place.file,
                object=fault.place.object,
                wrong=fault.wrong,
                effect=self.effect,
                fix=fault.fix or self.fix,
                reference=self.reference,
            )


def error(id: str, *, effect: str, fix: str, reference: str) -> Callable[[Check], Rule]:
    """Turns a check into a rule that reports errors."""
    return lambda check: Rule(id=id, severity=Severity.ERROR, effect=effect, fix=fix, reference=reference, check=check)


def warning(id: str, *, effect: str, fix: str, reference: str) -> Callable[[Check], Rule]:
    """Turns a check into a rule that reports warnings."""
    return lambda check: Rule(
        id=id, severity=Severity.WARNING, effect=effect, fix=fix, reference=reference, check=check
    )
