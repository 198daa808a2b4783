"""`shakedown loop`: why a live autoscaler does nothing, link by link."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import click
from rich.box import HORIZONTALS
from rich.console import Console
from rich.table import Table
from rich.text import Text

from shakedown.cli.access import access_of, cluster_options, inside_embedded
from shakedown.load.client import base_url
from shakedown.serving.lint.findings import Finding, Severity
from shakedown.serving.live_loop import LiveLoop, find_loop
from shakedown.serving.loop_diagnosis import Link, trace_loop
from shakedown.settings import as_plain


@click.command()
@click.argument("scaler", metavar="[NAME]", required=False)
@click.option("--namespace", "-n", required=True, help="Namespace of the autoscaler.")
@click.option("--prometheus", metavar="URL", help="How we reach Prometheus.  [default: through the API server]")
@cluster_options
def loop(scaler: str | None, namespace: str, prometheus: str | None, as_json: bool, **options: Any) -> int:
    """Ask each link of a live autoscaling loop, and name the first that is broken. Changes nothing.

    NAME is a ScaledObject, a HorizontalPodAutoscaler, or what it scales; left out, the only one of the namespace.
    Exit 0 if every link is sound, 1 if one is broken or a setting is wrong, 2 if we may not look, 4 for bad usage.

    \b
    Examples:
      shakedown loop -n llm-serving
      shakedown loop vllm-llama3 -n llm-serving --context production --json
      shakedown loop -n llm-serving --prometheus http://localhost:9090
    """
    url = base_url(prometheus) if prometheus else None
    if options["cluster"] == "embedded":
        return asyncio.run(inside_embedded(options["name"]))
    return asyncio.run(_trace(scaler, namespace, url, options, as_json=as_json))


commands: tuple[click.Command, ...] = (loop,)


async def _trace(
    name: str | None, namespace: str, prometheus: str | None, options: dict[str, Any], *, as_json: bool
) -> int:
    async with await access_of(options).connect() as cluster:
        found = await find_loop(cluster, namespace, name, prometheus)
        links = await trace_loop(found)
    findings = found.findings()
    sound = not links[-1].broken and not any(each.severity is Severity.ERROR for each in findings)
    if as_json:
        told = {"autoscaler": str(found), "sound": sound, "links": as_plain(links)}
        click.echo(json.dumps({**told, "findings": as_plain(findings)}))
    else:
        _print(found, links, findings)
    return 0 if sound else 1


def _print(found: LiveLoop, links: Sequence[Link], findings: Sequence[Finding]) -> None:
    console = Console(highlight=False)
    table = Table(box=HORIZONTALS, title=str(found), title_justify="left")
    table.add_column("link")
    table.add_column("")
    table.add_column("what it says", overflow="fold")
    for link in links:
        table.add_row(link.name, _mark(link), _story(link))
    console.print(table)
    for finding in findings:
        console.print(
            Text.assemble((f"{finding.severity} {finding.rule}: ", "bold"), f"{finding.object}: {finding.wrong}")
        )
        console.print(f"  {finding.effect}\n  change: {finding.fix}", markup=False)
    last = links[-1]
    console.print(f"broken: {last.name}" if last.broken else "every link answers", markup=False)


def _mark(link: Link) -> Text:
    return Text("broken", "bold red") if link.broken else Text("sound", "green")


def _story(link: Link) -> Text:
    return Text.assemble(link.seen, "\n", ("change: ", "green"), link.fix) if link.broken else Text(link.seen)
