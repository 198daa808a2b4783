"""JUnit XML: what CI systems read. Held passes, deviated fails, unknown is an error, not exercised is skipped."""

import re
from collections.abc import Sequence
from xml.etree import ElementTree

from shakedown.judge.verdict import ScenarioResult, Verdict

ELEMENT = {Verdict.DEVIATED: "failure", Verdict.UNKNOWN: "error", Verdict.NOT_EXERCISED: "skipped"}
NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(results: Sequence[ScenarioResult], run_id: str) -> str:
    """The document, one suite a family."""
    root = ElementTree.Element("testsuites", {"name": "shakedown", **_totals(results)})
    for family in dict.fromkeys(result.family for result in results):
        members = [result for result in results if result.family == family]
        suite = ElementTree.SubElement(
            root, "testsuite", {"name": _clean(family), "id": _clean(run_id), **_totals(members)}
        )
        for result in members:
            _add_case(suite, result)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _add_case(suite: ElementTree.Element, result: ScenarioResult) -> None:
    path, _, test = result.id.partition("::")
    seconds = max(0.0, result.ended_at - result.started_at)
    case = ElementTree.SubElement(
        suite, "testcase", name=_clean(test or result.title), classname=_clean(path), time=f"{seconds:.3f}"
    )
    findings = "\n".join(
        f"{finding.verdict.value}: {finding.name}: {finding.measured} (bargain: {finding.bargain})"
        for finding in result.findings
    )
    if result.verdict in ELEMENT:
        message = ElementTree.SubElement(case, ELEMENT[result.verdict], message=_clean(result.reason))
        message.text = _clean(findings) or None
    elif findings:
        ElementTree.SubElement(case, "system-out").text = _clean(findings)


def _totals(results: Sequence[ScenarioResult]) -> dict[str, str]:
    verdicts = [result.verdict for result in results]
    return {
        "tests": str(len(verdicts)),
        "failures": str(verdicts.count(Verdict.DEVIATED)),
        "errors": str(verdicts.count(Verdict.UNKNOWN)),
        "skipped": str(verdicts.count(Verdict.NOT_EXERCISED)),
        "time": f"{sum(max(0.0, result.ended_at - result.started_at) for result in results):.3f}",
    }


def _clean(text: str) -> str:
    """Without the characters that XML 1.0 cannot hold, such as colour codes in a log line."""
    return NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)
