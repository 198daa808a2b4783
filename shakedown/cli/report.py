"""`shakedown judge` and `shakedown report`: what the files of a run say, as often as one asks."""

import json
from pathlib import Path

import click

from shakedown.evidence.bundle import RunBundle
from shakedown.evidence.publish import publish
from shakedown.judge.verdict import ScenarioResult, Verdict
from shakedown.settings import as_plain

RUN_DIR = click.argument("run_dir", type=click.Path(path_type=Path), metavar="RUN_DIR")


@click.command()
@RUN_DIR
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def judge(run_dir: Path, as_json: bool) -> int:
    """Judge the records of a run again; changes nothing.

    \b
    Example:
      shakedown judge reports/20260101-120000
    """
    bundles = RunBundle.open(run_dir).scenarios()
    results = tuple(bundle.judge() for bundle in bundles)
    worst = Verdict.worst(result.verdict for result in results)
    if as_json:
        click.echo(json.dumps({"verdict": worst.value, "scenarios": as_plain(results)}))
    else:
        for bundle, result in zip(bundles, results, strict=True):
            before = bundle.verdict()
            changed = before is not None and before.verdict is not result.verdict
            click.echo(_line(result) + (f"  (verdict.json says {before.verdict.value})" if before and changed else ""))
        click.echo(f"Verdict: {worst.value}")
    return worst.exit_code


@click.command()
@RUN_DIR
def report(run_dir: Path) -> int:
    """Write report.html, junit.xml and summary.md of a run again.

    \b
    Example:
      shakedown report reports/20260101-120000
    """
    bundle = RunBundle.open(run_dir)
    publish(bundle.root)
    click.echo(f"{bundle.root / 'report.html'}")
    return 0


commands: tuple[click.Command, ...] = (judge, report)


def _line(result: ScenarioResult) -> str:
    reason = "" if result.verdict is Verdict.HELD else f"\n    {result.reason}"
    return f"{result.verdict.value:<14} {result.family}: {result.title}{reason}"
