"""report.html: one file that opens anywhere, asks nothing of the network, and explains itself."""

import time
from collections.abc import Sequence
from importlib.resources import files
from urllib.parse import quote

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from shakedown.evidence.bundle import RunBundle, RunFacts
from shakedown.evidence.chapter import chapter
from shakedown.evidence.comparison import Compared, Comparison, comparison
from shakedown.evidence.summary import deciding_finding, headline
from shakedown.evidence.timeline import timeline
from shakedown.judge.verdict import ScenarioResult, Verdict

SIGN = {Verdict.HELD: "✓", Verdict.DEVIATED: "✕", Verdict.UNKNOWN: "?", Verdict.NOT_EXERCISED: "–"}


def report(bundle: RunBundle, results: Sequence[ScenarioResult]) -> str:
    """The document. All text from outside is escaped; only our own SVG and JSON are not."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["slug"] = lambda verdict: str(verdict).replace(" ", "-")
    assets = files("shakedown.evidence")
    template = environment.from_string((assets / "report.html.jinja").read_text())
    facts = bundle.facts()
    folders = {scenario.description().id: scenario for scenario in bundle.scenarios()}
    return template.render(
        style=Markup((assets / "report.css").read_text()),
        script=Markup((assets / "report.js").read_text()),
        facts=facts,
        details=details(facts),
        results=results,
        worst=Verdict.worst(result.verdict for result in results),
        headline=headline(results),
        deciding={result.id: deciding_finding(result) for result in results},
        anchors={result.id: quote(folders[result.id].root.name) for result in results},
        chapters=[chapter(folders[result.id], result) for result in results],
        comparisons=comparisons(bundle, results),
        sign=SIGN,
        safe=Markup,
    )


def comparisons(bundle: RunBundle, results: Sequence[ScenarioResult]) -> list[Comparison]:
    """One for each title that at least two scenarios with records share, in the order of the run."""
    by_id = {scenario.description().id: scenario for scenario in bundle.scenarios()}
    groups: dict[str, list[Compared]] = {}
    for result in results:
        title = by_id[result.id].description().compared_in
        if title is None:
            continue
        recorded = by_id[result.id].read().recorded
        seen = timeline(recorded, None, result.started_at, result.ended_at or result.started_at)
        if not seen.empty:
            anchor = quote(by_id[result.id].root.name)
            groups.setdefault(title, []).append(Compared(result, anchor, recorded, seen))
    return [comparison(title, group) for title, group in groups.items() if len(group) > 1]


def details(facts: RunFacts) -> list[tuple[str, str]]:
    """What was tested where, as label and value."""
    lasted = facts.ended_at - facts.started_at if facts.ended_at is not None else None
    scale = f"× {facts.time_scale:g}" + (" (load and probe times are shortened alike)" if facts.time_scale != 1 else "")
    missing = [name for name, present in facts.capabilities.items() if not present]
    told: list[tuple[str, str]] = [
        ("Engine", f"{facts.engine} {facts.engine_version}".strip()),
        ("Cluster", ", ".join(f"{key} {value}" for key, value in facts.cluster.items())),
        ("Not available here", ", ".join(missing)),
        ("Profile", facts.profile),
        ("Time scale", scale),
        ("Started", _when(facts.started_at)),
        ("Took", f"{lasted / 60:.1f} minutes" if lasted is not None else "never ended: the run was killed"),
        ("Seed", str(facts.seed) if facts.seed is not None else ""),
        ("Revision", (facts.git_revision or "")[:12]),
        ("Versions", ", ".join(f"{key} {value}" for key, value in facts.versions.items())),
        ("Command", " ".join(facts.command)),
    ]
    return [(label, value) for label, value in told if value]


def _when(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(at)) if at else ""
