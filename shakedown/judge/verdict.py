"""Verdicts, and the findings they rest on."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """What we know about a claim after testing it."""

    HELD = "held"
    DEVIATED = "deviated"
    UNKNOWN = "unknown"
    NOT_EXERCISED = "not exercised"

    @classmethod
    def worst(cls, verdicts: Iterable["Verdict"]) -> "Verdict":
        """Deviated outranks unknown, unknown outranks held; claims not exercised do not count; nothing is unknown."""
        rank = (cls.DEVIATED, cls.UNKNOWN, cls.HELD)
        exercised = (verdict for verdict in verdicts if verdict is not cls.NOT_EXERCISED)
        return min(exercised, key=rank.index, default=cls.UNKNOWN)

    @property
    def exit_code(self) -> int:
        """Exit code of a run whose worst verdict this is."""
        return {Verdict.HELD: 0, Verdict.DEVIATED: 1}.get(self, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One number or fact held against the bargain."""

    name: str
    """In words: "goodput under TTFT 0.5 s"."""
    measured: str
    """As printed, with its unit."""
    bargain: str
    """As printed: "at least 95 %"."""
    verdict: Verdict
    """UNKNOWN when the records cannot answer."""
    evidence: str = ""
    """The file of the scenario's folder that shows it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioResult:
    """verdict.json of one scenario."""

    id: str
    """"<family>/<file stem>::<test name>"."""
    family: str
    title: str
    """The test's name as a sentence."""
    claim: str
    """The scenario's docstring."""
    verdict: Verdict
    reason: str
    """One paragraph for an on-call engineer: what broke, when, which evidence shows it.

    For a claim not exercised, the missing capability.
    """
    findings: tuple[Finding, ...] = ()
    started_at: float = 0.0
    ended_at: float = 0.0
    changed_by_overlay: tuple[str, ...] = ()
    """What the deployment under test differs in from manifests/vllm/base, one line each."""
