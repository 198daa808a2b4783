"""report.html: one file that opens anywhere, asks nothing of the network, and explains itself."""

from collections.abc import Sequence

from shakedown.evidence.bundle import RunBundle
from shakedown.judge.verdict import ScenarioResult


def report(bundle: RunBundle, results: Sequence[ScenarioResult]) -> str:
    """The document."""
    return ""
