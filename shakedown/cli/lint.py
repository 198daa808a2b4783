"""`shakedown lint`: known misconfigurations, found in files before they hurt."""

import json
from collections.abc import Sequence

import click
from rich.box import HORIZONTALS
from rich.console import Console
from rich.table import Table
from rich.text import Text

from shakedown.errors import UsageError
from shakedown.serving.lint.check import check
from shakedown.serving.lint.findings import Assumptions, Finding, Severity
from shakedown.serving.lint.loading import load
from shakedown.settings import as_plain

RULE_COLUMN = 36
COLOURS = {Severity.ERROR: "bold red", Severity.WARNING: "yellow"}


@click.command()
@click.argument("files", nargs=-1, required=True)
@click.option(
    "--load-s", type=click.FloatRange(min=0), default=360.0, show_default=True, help="Time to load the weights."
)
@click.option("--drain-s", type=click.FloatRange(min=0), default=60.0, show_default=True, help="The longest answer.")
@click.option(
    "--client-timeout-s", type=click.FloatRange(min=0), default=600.0, show_default=True, help="How long clients wait."
)
@click.option("--strict", is_flag=True, help="Warnings count as errors.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def lint(
    files: tuple[str, ...], load_s: float, drain_s: float, client_timeout_s: float, strict: bool, as_json: bool
) -> int:
    """Find known misconfigurations in manifests and nginx files. Exit 0 if clean, 1 if not, 4 for bad usage.

    FILES are YAML files, nginx files, folders, or - for standard input. They are judged together: a Service may
    break a Deployment in another file.

    \b
    Examples:
      shakedown lint deploy/ --load-s 600
      kubectl kustomize overlays/gpu | shakedown lint - --strict
      helm template . | shakedown lint - --json
    """
    world = load(files)
    if not world.items and not world.nginx:
        raise UsageError(f"there is no Kubernetes object and no nginx configuration in {', '.join(files)}")
    found = check(world, Assumptions(load_s=load_s, drain_s=drain_s, client_timeout_s=client_timeout_s))
    errors = sum(finding.severity is Severity.ERROR for finding in found)
    clean = not (found if strict else errors)
    if as_json:
        click.echo(json.dumps({"clean": clean, "errors": errors, "findings": as_plain(found)}))
    else:
        _print(found)
        click.echo(f"{_count(errors, 'error')}, {_count(len(found) - errors, 'warning')}")
    return 0 if clean else 1


commands: tuple[click.Command, ...] = (lint,)


def _print(found: Sequence[Finding]) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        for finding in found:
            click.echo(
                f"{finding.file}: {finding.severity} {finding.rule}: {finding.object}: {finding.wrong}\n"
                f"  effect: {finding.effect}\n  change: {finding.fix}\n  see: {finding.reference}"
            )
        return
    for file in dict.fromkeys(finding.file for finding in found):
        console.print(_table(file, [finding for finding in found if finding.file == file]))


def _table(file: str, found: Sequence[Finding]) -> Table:
    table = Table("rule, object", "what is wrong, what happens, what to change", box=HORIZONTALS, expand=True)
    table.title, table.title_justify = Text(file, "bold"), "left"
    table.columns[0].width, table.columns[1].ratio = RULE_COLUMN, 1
    for finding in found:
        severity = (finding.severity.value, COLOURS[finding.severity])
        rule = Text.assemble(severity, f" {finding.rule}\n", (finding.object, "dim"))
        story = Text.assemble((finding.wrong, "bold"), f"\n{finding.effect}\n", ("change: ", "green"), finding.fix)
        table.add_row(rule, story.append(f"\nsee: {finding.reference}", "dim"), end_section=True)
    return table


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
