"""Expectations held against records. Pure: the same files give the same verdict, today and in a year."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from shakedown.judge.accounting import account
from shakedown.judge.expectations import REQUESTS_FILE, Comparison, Expectation, Unit, printed
from shakedown.judge.ordering import contradictions
from shakedown.judge.quantities import Measured, Unanswerable, measure
from shakedown.judge.records import Recorded
from shakedown.judge.verdict import Finding, Verdict


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict, what it rests on, and why in one paragraph."""

    verdict: Verdict
    findings: tuple[Finding, ...]
    reason: str


def evaluate(expectation: Expectation, recorded: Recorded) -> Finding:
    """Hold one clause against the records; UNKNOWN with the reason when they cannot answer."""
    return _examine(expectation, recorded)[0]


def judge(expectations: Sequence[Expectation], recorded: Recorded, unknown_reasons: Sequence[str] = ()) -> Judgement:
    """The verdict on a scenario.

    `unknown_reasons` are sentences on why the harness itself failed to find out. Records that contradict themselves
    add to them. A number that deviated is reported even then: deviated outranks unknown.
    """
    reasons = [*unknown_reasons, *_flaws(recorded)]
    examined = [_examine(expectation, recorded) for expectation in expectations]
    findings = tuple(finding for finding, _ in examined)
    verdicts = [finding.verdict for finding in findings] + [Verdict.UNKNOWN] * bool(reasons)
    verdict = Verdict.worst(verdicts)
    if not expectations and not reasons:
        reasons.append("the scenario ended before it expected anything")
    return Judgement(verdict, findings, _paragraph(verdict, examined, reasons))


def _flaws(recorded: Recorded) -> list[str]:
    books = account(recorded.requests)
    flaws = [f"the records contradict themselves: {sentence}" for sentence in contradictions(recorded.requests)]
    if books.repeated:
        flaws.append(f"the records contradict themselves: {len(books.repeated)} requests ended more than once")
    return flaws


def _examine(expectation: Expectation, recorded: Recorded) -> tuple[Finding, str]:
    """The finding, and a sentence about it for the paragraph."""
    evidence = _evidence(expectation, recorded)
    try:
        measured = measure(expectation.quantity, recorded)
    except Unanswerable as gap:
        return _finding(expectation, f"cannot be told: {gap}", Verdict.UNKNOWN, evidence), f"{expectation.name}: {gap}."
    shown = printed(measured.value, expectation.quantity.unit)
    met = expectation.is_met_by(measured.value)
    missed = Verdict.UNKNOWN if expectation.guard else Verdict.DEVIATED
    finding = _finding(expectation, shown, Verdict.HELD if met else missed, evidence)
    return finding, _sentence(expectation, measured, shown, evidence)


def _evidence(expectation: Expectation, recorded: Recorded) -> str:
    """The file that shows it; of a scenario with several loads, all of their files."""
    named = expectation.quantity.evidence
    return ", ".join(recorded.request_files) or named if named == REQUESTS_FILE else named


def _finding(expectation: Expectation, measured: str, verdict: Verdict, evidence: str) -> Finding:
    return Finding(
        name=expectation.name,
        measured=measured,
        bargain=expectation.bargain,
        verdict=verdict,
        evidence=evidence,
    )


def _sentence(expectation: Expectation, measured: Measured, shown: str, evidence: str) -> str:
    if expectation.comparison is Comparison.TRUE:
        clause = f"{expectation.name}: {shown}, and it had to be true"
    else:
        clause = f"{expectation.name}: {shown}, and the bargain is {expectation.bargain}{_gap(expectation, measured)}"
    detail = f"; {measured.detail}" if measured.detail else ""
    return f"{clause}{detail} (see {evidence})."


def _gap(expectation: Expectation, measured: Measured) -> str:
    """By how much a numeric limit was missed."""
    value, limit, unit = measured.value, expectation.limit, expectation.quantity.unit
    if not isinstance(value, int | float) or not isinstance(limit, int | float) or math.isinf(value):
        return ""
    if expectation.comparison is Comparison.BETWEEN and expectation.upper is not None and value > expectation.upper:
        limit = expectation.upper
    gap = abs(value - limit)
    amount = f"{gap * 100:.3g} points" if unit is Unit.SHARE else printed(gap, unit)
    return f", missed by {amount}"


def _paragraph(verdict: Verdict, examined: Sequence[tuple[Finding, str]], reasons: Sequence[str]) -> str:
    if verdict is Verdict.HELD:
        return f"All {len(examined)} expectations were met." if len(examined) > 1 else "The expectation was met."
    failed = [_capitalised(text) for finding, text in examined if finding.verdict is Verdict.DEVIATED]
    unsure = [_capitalised(text) for finding, text in examined if finding.verdict is Verdict.UNKNOWN]
    told = [f"{_capitalised(reason).rstrip('.')}." for reason in reasons]
    if verdict is Verdict.DEVIATED:
        also = ["What could not be told besides:", *told, *unsure] if told or unsure else []
        return " ".join([*failed, *also])
    return " ".join(["We failed to find out.", *told, *unsure])


def _capitalised(text: str) -> str:
    return text[:1].upper() + text[1:]
