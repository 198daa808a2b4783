"""`shakedown plan --autoscale`: settings of an autoscaler, why, what they can follow, and the ScaledObject."""

import json
from collections.abc import Sequence
from typing import Any

import click
import yaml
from rich.console import Console
from rich.table import Table

from shakedown.cli.scaling_options import AT_LEAST_0, COUNT, POSITIVE, cluster_of, path_of, replica_of, scaling_options
from shakedown.errors import UsageError
from shakedown.serving.autoscaling.behavior import Behavior
from shakedown.serving.autoscaling.demand import Demand
from shakedown.serving.autoscaling.figures import Figures
from shakedown.serving.autoscaling.hpa import HpaSettings
from shakedown.serving.autoscaling.recommend import Needs, Recommendation, recommend, rehearsal
from shakedown.serving.autoscaling.scaled_object import Place, scaled_object
from shakedown.serving.autoscaling.search import Candidate, Problem, rehearsed, search
from shakedown.settings import as_plain

FLAG = "--autoscale"
DEFAULT_MAX_REPLICAS = 10
DEFAULT_GROWTH = 0.1


class WithAutoscale(click.Command):
    """A command that hands over to `autoscale` when the flag is given: the two share no option."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if FLAG in args:
            args.remove(FLAG)
            return autoscale.make_context(f"{info_name} {FLAG}", args, parent, **extra)
        return super().make_context(info_name, args, parent, **extra)


@click.command("autoscale")
@scaling_options
@click.option(
    "--growth-per-min",
    type=AT_LEAST_0,
    help="Requests/s that the load gains in a minute, at its steepest. [default: a tenth of a replica]",
)
@click.option("--rate", type=POSITIVE, help="Requests/s of an ordinary hour. [default: what the minimum serves]")
@click.option("--min-replicas", type=COUNT, default=1, show_default=True)
@click.option("--max-replicas", type=COUNT, help=f"[default: what --gpus hold, or {DEFAULT_MAX_REPLICAS}]")
@click.option("--search", "searching", is_flag=True, help="Try variations in the simulator and take the cheapest.")
@click.option("--name", default="vllm", show_default=True, help="Of the Deployment.")
@click.option("--namespace", default="default", show_default=True)
@click.option("--model-name", help="Label of its series. [default: its pods are selected by name]")
@click.option("--prometheus-url", default="http://prometheus.monitoring:9090", show_default=True)
@click.option("--yaml", "only_yaml", is_flag=True, help="Print the ScaledObject alone.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def autoscale(
    searching: bool,
    name: str,
    namespace: str,
    model_name: str | None,
    prometheus_url: str,
    only_yaml: bool,
    as_json: bool,
    **asked: Any,
) -> int:
    """Say how to scale a deployment, and why. Exit 0 if the growth can be followed within the SLO, 1 if not.

    \b
    Examples:
      shakedown plan --autoscale --load-time-s 300 --service-rate 4 --max-num-seqs 64 --growth-per-min 0.5
      shakedown plan --autoscale --load-time-s 300 --service-rate 4 --gpus 8 --search --yaml > scaledobject.yaml
    """
    if only_yaml and as_json:
        raise UsageError("choose one of --yaml and --json; the JSON has the ScaledObject too")
    needs = _needs(asked)
    found = recommend(needs)
    load = rehearsal(needs, found)
    problem = Problem(
        demand=load,
        replica=needs.replica,
        slo_ttft_s=needs.slo_ttft_s,
        goal=asked["goal"],
        path=needs.path,
        cluster=needs.cluster,
        seed=asked["seed"],
    )
    best = search(problem, found.autoscaler)[0].autoscaler if searching else found.autoscaler
    tried = rehearsed(problem, best)
    place = Place(name=name, namespace=namespace, model_name=model_name, prometheus_url=prometheus_url)
    manifest = scaled_object(best, place)
    follows = tried.meets and (found.follows or searching)
    if only_yaml:
        click.echo(_yaml(manifest), nl=False)
    elif as_json:
        click.echo(json.dumps(_plain(found, load, tried, manifest, follows)))
    else:
        _print(needs, found, load, tried, manifest)
    return 0 if follows else 1


def _needs(asked: dict[str, Any]) -> Needs:
    replica, cluster = replica_of(asked), cluster_of(asked)
    growth = asked["growth_per_min"]
    most = DEFAULT_MAX_REPLICAS if cluster.gpus is None else int(cluster.places)
    return Needs(
        replica=replica,
        slo_ttft_s=asked["slo_ttft_s"],
        growth_per_min=DEFAULT_GROWTH * replica.rate_per_s if growth is None else growth,
        rate_per_s=asked["rate"],
        min_replicas=asked["min_replicas"],
        max_replicas=asked["max_replicas"] or max(most, asked["min_replicas"]),
        sync_period_s=asked["sync_period_s"],
        path=path_of(asked),
        cluster=cluster,
    )


def _plain(
    found: Recommendation, load: Demand, tried: Candidate, manifest: dict[str, Any], follows: bool
) -> dict[str, Any]:
    return {
        "follows": follows,
        "followed_growth_per_min": found.followed_growth_per_min,
        "share": found.share,
        "settings": as_plain(found.settings),
        "assumptions": as_plain(found.assumptions),
        "tried_on": as_plain(load.points),
        "tried": as_plain(tried),
        "scaled_object": manifest,
    }


def _print(needs: Needs, found: Recommendation, load: Demand, tried: Candidate, manifest: dict[str, Any]) -> None:
    console = Console(highlight=False)
    table = Table("setting", "value", "because", box=None, pad_edge=False)
    for setting in found.settings:
        table.add_row(setting.name, setting.value, setting.because)
    console.print(table)
    console.print("\n[bold]Assumed[/]")
    for assumption in found.assumptions:
        console.print(f"  {assumption}")
    console.print(f"\n[bold]{_followed(needs, found)}[/]")
    console.print("\n".join(_tried(load.points, tried.figures)))
    if not tried.meets:
        console.print("[bold]That misses the goal.[/]")
    if tried.autoscaler != found.autoscaler:
        console.print(f"Cheapest by search, and in the ScaledObject below: {_differing(tried.autoscaler.hpa)}.")
    click.echo(f"\n{_yaml(manifest)}", nl=False)


def _followed(needs: Needs, found: Recommendation) -> str:
    replicas = found.autoscaler.hpa.min_replicas
    growth = f"{found.followed_growth_per_min:.3g} requests/s a minute"
    if found.follows:
        return f"From {replicas} replicas on it follows a load that gains up to {growth}."
    return (
        f"With {replicas} replicas at least it follows only {growth}, and {needs.growth_per_min:g} were asked for: "
        "load faster, allow more replicas, or keep more of them."
    )


def _tried(points: Sequence[tuple[float, float]], found: Figures) -> tuple[str, ...]:
    rates = [rate for _, rate in points]
    return (
        f"Tried in the simulator on {min(rates):.3g} to {max(rates):.3g} requests/s and back: "
        f"{found.attainment or 0.0:.1%} of {found.requests:,} requests got their first token within "
        f"{found.slo_ttft_s:g} s (p99 {found.ttft_p99_s or 0.0:.2f} s).",
        f"At most {found.peak_wanted} replicas wanted ({found.needed} would serve the peak with every slot taken); "
        f"changes of direction: {found.flapping}; {found.gpu_hours:.1f} GPU-hours.",
    )


def _differing(hpa: HpaSettings) -> str:
    """What a search may have changed."""
    behavior = hpa.behavior or Behavior()
    up = ", ".join(f"{policy.value} {policy.kind} in {policy.period_s} s" for policy in behavior.up.policies)
    return f"threshold {hpa.targets[0].threshold:g}, scaleUp {up}, scaleDown window {behavior.down.window_s} s"


def _yaml(manifest: dict[str, Any]) -> str:
    return yaml.safe_dump(manifest, sort_keys=False, width=200)
