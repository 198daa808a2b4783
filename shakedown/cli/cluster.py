"""`shakedown up`, `status`, `down`, `kubectl`: the embedded cluster as a product of its own."""

import asyncio
import os
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import click
import msgspec

from shakedown.cli.progress import Progress
from shakedown.cluster import embedded
from shakedown.cluster.embedded import ClusterStatus, EmbeddedCluster
from shakedown.errors import SetupError

NOT_UP = 2
Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def _name_option(command: Decorated) -> Decorated:
    return click.option("--name", default=embedded.DEFAULT_NAME, show_default=True, help="Which embedded cluster.")(
        command
    )


def _json_option(command: Decorated) -> Decorated:
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")(command)


@click.command()
@_name_option
@click.option("--nodes", default=2, show_default=True, type=click.IntRange(1, 64))
@click.option("--gpus-per-node", default=4, show_default=True, type=click.IntRange(0, 64), help="Simulated GPUs.")
@click.option("--autoscaling", is_flag=True, help="With KEDA, and an image of Prometheus for manifests/monitoring.")
@_json_option
def up(name: str, nodes: int, gpus_per_node: int, autoscaling: bool, as_json: bool) -> None:
    """Bring the embedded cluster up, or find it up.

    Needs root. A damaged cluster is repaired or made anew. Progress goes to stderr.

    \b
    Examples:
      shakedown up
      shakedown up --name second --nodes 3 --json
    """
    cluster = asyncio.run(_up(name, nodes, gpus_per_node, autoscaling=autoscaling))
    if as_json:
        click.echo(msgspec.json.encode(_described(cluster)))
        return
    click.echo(f"kubeconfig {cluster.kubeconfig}  (answers inside network namespace {cluster.netns})")
    click.echo("try: " + " ".join(["shakedown kubectl", *_unless_default(name), "get nodes"]))


async def _up(name: str, nodes: int, gpus_per_node: int, *, autoscaling: bool) -> EmbeddedCluster:
    progress = Progress()
    cluster = await embedded.up(name, nodes=nodes, gpus_per_node=gpus_per_node, report=progress.line)
    if autoscaling:
        await cluster.install_autoscaling(progress.line)
    return cluster


@click.command()
@_name_option
@_json_option
def status(name: str, as_json: bool) -> int:
    """Show where the embedded cluster stands. Exit code 0 when it is up, 2 otherwise.

    \b
    Example:
      shakedown status --json
    """
    seen = asyncio.run(embedded.status(name))
    if as_json:
        click.echo(msgspec.json.encode({**msgspec.to_builtins(seen), "phases_s": dict(seen.phases_s)}))
    else:
        for line in _status_lines(seen):
            click.echo(line)
    return 0 if seen.state == "up" else NOT_UP


@click.command()
@_name_option
@_json_option
def down(name: str, as_json: bool) -> None:
    """Take the embedded cluster down and leave nothing of it.

    Works on a half-made or damaged cluster too, and is harmless when there is none.

    \b
    Example:
      shakedown down --name second
    """
    asyncio.run(embedded.down(name, (lambda _: None) if as_json else Progress().line))
    if as_json:
        click.echo(msgspec.json.encode({"name": name, "leftovers": embedded.leftovers(name)}))


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False, "help_option_names": []}
)
@_name_option
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def kubectl(name: str, args: tuple[str, ...]) -> NoReturn:
    """Run kubectl on the embedded cluster; everything after --name is kubectl's.

    \b
    Example:
      shakedown kubectl get pods -A -o wide
    """
    cluster = asyncio.run(embedded.find(name))
    if cluster is None:
        raise SetupError(f"the cluster {name!r} is not up; bring it up with: {_command('up', name)}")
    command = cluster.kubectl(args)
    os.execvp(command[0], command)


commands: tuple[click.Command, ...] = (up, status, down, kubectl)


def _command(verb: str, name: str) -> str:
    return " ".join(["shakedown", verb, *_unless_default(name)])


def _unless_default(name: str) -> list[str]:
    return [] if name == embedded.DEFAULT_NAME else ["--name", name]


def _described(cluster: EmbeddedCluster) -> dict[str, object]:
    return {
        "name": cluster.name,
        "kubernetes": cluster.kubernetes_version,
        "kubeconfig": str(cluster.kubeconfig),
        "netns": cluster.netns,
        "nodes": [{"name": node.name, "address": node.address, "gpus": list(node.gpus)} for node in cluster.nodes],
        "phases_s": cluster.phases_s,
    }


def _status_lines(seen: ClusterStatus) -> list[str]:
    lines = [f"{seen.name}: {seen.state}" + (f" (Kubernetes {seen.kubernetes})" if seen.kubernetes else "")]
    lines += [
        f"  {node.name}: {'Ready' if node.ready else 'NotReady'}, {node.version}, {node.gpus_allocatable} GPUs"
        for node in seen.nodes
    ]
    lines += [f"  not running: {name}" for name in seen.dead]
    if seen.dead or seen.state == "half-made":
        lines.append(f"  {_command('up', seen.name)} repairs or remakes it, {_command('down', seen.name)} removes it")
    return lines
