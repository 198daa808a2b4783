"""Which cluster a command is about: a kubeconfig's, or the embedded one from inside."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from shakedown.chaos import Access
from shakedown.cluster import embedded
from shakedown.errors import UsageError
from shakedown.process import attached

CLUSTERS = ("current", "embedded")


def cluster_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say which cluster."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print one JSON object."),
        click.option("--name", default=embedded.DEFAULT_NAME, show_default=True, help="Which embedded cluster."),
        click.option("--cluster", type=click.Choice(CLUSTERS), default="current", show_default=True),
        click.option("--context", help="Kubeconfig context.  [default: the current one]"),
        click.option("--kubeconfig", type=click.Path(path_type=Path), help="[default: your own]"),
    ):
        command = option(command)
    return command


def access_of(options: dict[str, Any]) -> Access:
    kubeconfig: Path | None = options["kubeconfig"]
    return Access(kubeconfig=kubeconfig.absolute() if kubeconfig else None, context=options["context"])


async def inside_embedded(name: str) -> int:
    """The same command again, in the network namespace of the embedded cluster, where its pods answer."""
    found = await embedded.find(name)
    if found is None:
        raise UsageError(f"the embedded cluster {name} is not up; bring it up with `shakedown up --name {name}`")
    again = [sys.executable, "-m", "shakedown.cli.main", *sys.argv[1:]]
    return await attached(found.enter([*again, "--cluster", "current", "--kubeconfig", str(found.kubeconfig)]))
