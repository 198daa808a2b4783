"""What a run hands over when it ends: the report for people, JUnit for CI, Markdown for its summary."""

from pathlib import Path

from shakedown.evidence.bundle import RunBundle
from shakedown.evidence.junit import junit
from shakedown.evidence.report import report
from shakedown.evidence.summary import summary
from shakedown.judge.verdict import ScenarioResult


def publish(root: Path) -> tuple[ScenarioResult, ...]:
    """Write report.html, junit.xml and summary.md from the files of a run; return its results.

    A scenario that the run was killed in has no verdict.json; it is judged here, and is unknown.
    """
    bundle = RunBundle(root)
    results, facts = bundle.results(), bundle.facts()
    (root / "junit.xml").write_text(junit(results, facts.run_id))
    (root / "summary.md").write_text(summary(results, facts))
    (root / "report.html").write_text(report(bundle, results))
    return results
