"""All rules on one world."""

from shakedown.serving.lint import autoscaling, metric_names, nginx, pods, probes, rollout, scraping
from shakedown.serving.lint.findings import Assumptions, Finding, Rule, Severity
from shakedown.serving.lint.world import World

RULES: tuple[Rule, ...] = (
    *probes.RULES,
    *pods.RULES,
    *rollout.RULES,
    *metric_names.RULES,
    *autoscaling.RULES,
    *scraping.RULES,
    *nginx.RULES,
)


def check(world: World, assumptions: Assumptions) -> tuple[Finding, ...]:
    """Every finding once, errors first, then by file."""
    found = dict.fromkeys(finding for rule in RULES for finding in rule.findings(world, assumptions))
    return tuple(sorted(found, key=lambda finding: (finding.severity is not Severity.ERROR, finding.file)))
