"""The verdicts as Markdown, for a GitHub step summary or a chat message; and the sentence that opens every report."""

import re
from collections.abc import Sequence

from shakedown.evidence.bundle import RunFacts
from shakedown.judge.verdict import Finding, ScenarioResult, Verdict

SYMBOL = {Verdict.HELD: "✅", Verdict.DEVIATED: "❌", Verdict.UNKNOWN: "❓", Verdict.NOT_EXERCISED: "⏭️"}
SPECIAL = re.compile(r"([\\`*_{}\[\]<>|~#])")


def headline(results: Sequence[ScenarioResult]) -> str:
    """The run in one sentence."""
    counts = {verdict: sum(result.verdict is verdict for result in results) for verdict in Verdict}
    tested = len(results) - counts[Verdict.NOT_EXERCISED]
    if not tested:
        return "Nothing was exercised, so nothing is known."
    claims = "claim" if tested == 1 else "claims"
    skipped = f" {counts[Verdict.NOT_EXERCISED]} could not be exercised here." if counts[Verdict.NOT_EXERCISED] else ""
    if counts[Verdict.DEVIATED]:
        also = f", and {counts[Verdict.UNKNOWN]} could not be told" if counts[Verdict.UNKNOWN] else ""
        return f"{counts[Verdict.DEVIATED]} of {tested} {claims} did not hold{also}.{skipped}"
    if counts[Verdict.UNKNOWN]:
        return f"{counts[Verdict.UNKNOWN]} of {tested} {claims} could not be told; the others held.{skipped}"
    return f"{'All ' if tested > 1 else 'The '}{f'{tested} ' if tested > 1 else ''}{claims} held.{skipped}"


def deciding_finding(result: ScenarioResult) -> Finding | None:
    """What decides: the first finding with the verdict of the whole, a number rather than a yes.

    None where the verdict rests on something else, such as a client that was saturated.
    """
    candidates = [finding for finding in result.findings if finding.verdict is result.verdict]
    numbers = [finding for finding in candidates if finding.measured not in ("yes", "no", "none")]
    return next(iter(numbers or candidates), None)


def summary(results: Sequence[ScenarioResult], facts: RunFacts) -> str:
    """The document."""
    worst = Verdict.worst(result.verdict for result in results)
    lines = [f"# {SYMBOL[worst]} Shakedown: {worst.value}", "", headline(results), ""]
    if facts.system_under_test:
        lines += [f"Tested: {_escaped(facts.system_under_test)}.", ""]
    where = ", ".join(f"{key} {value}" for key, value in facts.cluster.items())
    told = [f"engine {facts.engine} {facts.engine_version}".strip(), where, f"time scale {facts.time_scale:g}"]
    lines += [_escaped(" · ".join(part for part in told if part)), ""]
    lines += ["| family | scenario | verdict | what decides | measured | bargain |", "|---|---|---|---|---|---|"]
    lines += [_row(result) for result in results]
    for result in results:
        if result.verdict is not Verdict.HELD:
            lines += ["", f"**{_escaped(result.title)}** · {result.verdict.value}: {_escaped(result.reason)}"]
    return "\n".join(lines) + "\n"


def _row(result: ScenarioResult) -> str:
    finding = deciding_finding(result)
    decides = (finding.name, finding.measured, finding.bargain) if finding else (result.reason, "", "")
    cells = (result.family, result.title, f"{SYMBOL[result.verdict]} {result.verdict.value}", *decides)
    return "| " + " | ".join(_escaped(cell) for cell in cells) + " |"


def _escaped(text: str) -> str:
    return SPECIAL.sub(r"\\\1", " ".join(text.split()))
