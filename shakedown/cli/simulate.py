"""`shakedown simulate`: the replica curve of an autoscaler under a load, before it is deployed."""

import csv
import itertools
import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from shakedown.cli.replica_curve import WIDTH, picture
from shakedown.cli.scaling_options import COUNT, POSITIVE, cluster_of, numbers, path_of, replica_of, scaling_options
from shakedown.errors import UsageError
from shakedown.load.arrivals import Arrivals, Poisson, Ramp, Sinusoid, Steps
from shakedown.serving.autoscaling.behavior import DEFAULT_DOWN, DEFAULT_UP, Behavior, Policy, PolicyKind, Rules
from shakedown.serving.autoscaling.declared import declared
from shakedown.serving.autoscaling.demand import Demand
from shakedown.serving.autoscaling.figures import Figures, figures
from shakedown.serving.autoscaling.hpa import Gauge, HpaSettings, Target, TargetKind
from shakedown.serving.autoscaling.keda import KedaSettings
from shakedown.serving.autoscaling.reach import out_of_reach
from shakedown.serving.autoscaling.simulator import Autoscaler, Simulation, simulate
from shakedown.settings import as_plain

DEFAULT_DURATION_S = 3600.0
LONGEST_S = 31 * 86400.0
MOST_REQUESTS = 2_000_000
"""About half a minute of simulation and 300 MB."""
LOADS = ("rate", "ramp", "sinusoid", "steps", "csv_file")
BESIDE, NARROWEST = 24, 20
"""Characters beside the curve, and the fewest that it gets."""
POLICY = re.compile(r"(\d+)(%?)/(\d+)")


@click.command("simulate")
@click.argument("files", nargs=-1)
@scaling_options
@click.option("--metric", type=click.Choice([gauge.value for gauge in Gauge]), default="in-flight", show_default=True)
@click.option("--threshold", type=POSITIVE, help="Target of the metric, without FILES.")
@click.option(
    "--target-type", type=click.Choice([kind.value for kind in TargetKind]), default="AverageValue", show_default=True
)
@click.option("--min-replicas", type=COUNT, default=1, show_default=True)
@click.option("--max-replicas", type=COUNT, default=10, show_default=True)
@click.option("--up", metavar="POLICIES", help="Such as 4/15,100%/15: pods or percent in seconds. [default: these]")
@click.option("--down", metavar="POLICIES", help="The same for scaling in. [default: 100%/15]")
@click.option("--up-window-s", type=click.IntRange(0), default=0, show_default=True, help="Stabilization.")
@click.option("--down-window-s", type=click.IntRange(0), default=300, show_default=True, help="Stabilization.")
@click.option("--rate", type=POSITIVE, help="Load: requests/s, Poisson.")
@click.option("--ramp", metavar="FROM:TO", help="Load: requests/s from the start to the end.")
@click.option("--sinusoid", metavar="MEAN:AMPLITUDE:PERIOD", help="Load: amplitude is a share of the mean.")
@click.option("--steps", metavar="RATE:SECONDS,…", help="Load: one after the other; the last goes on.")
@click.option("--csv", "csv_file", type=click.Path(path_type=Path), help="Load: a file with the columns time_s,rate.")
@click.option("--duration-s", type=POSITIVE, help=f"[default: that of the CSV, else {DEFAULT_DURATION_S:g}]")
@click.option("--initial-replicas", type=click.IntRange(0), help="Ready at the start. [default: the minimum]")
@click.option("--outage", multiple=True, metavar="KIND:FROM:TO", help="scrapes or queries fail between two seconds.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, with the curve.")
def simulate_command(files: tuple[str, ...], as_json: bool, **asked: Any) -> int:
    """Show how an autoscaler follows a load. Exit 0 if the SLO is met, 1 if not, 4 for bad usage.

    FILES are manifests with one ScaledObject or HorizontalPodAutoscaler; without them, --threshold and the options
    around it make one.

    \b
    Examples:
      shakedown simulate scaledobject.yaml --service-rate 4 --max-num-seqs 64 --load-time-s 300 --ramp 4:20
      shakedown simulate --threshold 5 --metric waiting --service-rate 4 --load-time-s 300 --steps 4:600,12:3000
      shakedown simulate hpa.yaml --service-rate 4 --load-time-s 120 --csv monday.csv --outage queries:600:1200
    """
    autoscaler = _autoscaler(files, asked)
    replica = replica_of(asked)
    arrivals_s, duration_s = _load(asked)
    simulation = simulate(
        autoscaler,
        arrivals_s,
        replica,
        path=path_of(asked),
        cluster=cluster_of(asked),
        duration_s=duration_s,
        initial_replicas=asked["initial_replicas"],
    )
    found = figures(simulation, replica, asked["slo_ttft_s"])
    notes = out_of_reach(autoscaler.hpa, replica)
    met = found.attainment is not None and found.attainment >= asked["goal"]
    if as_json:
        click.echo(json.dumps({"met": met, "figures": as_plain(found), "notes": notes, **_curve(simulation)}))
    else:
        click.echo(picture(simulation, _width()))
        click.echo("\n".join(["", *_lines(found, simulation), *(f"Note: {note}." for note in notes)]))
    return 0 if met else 1


commands: tuple[click.Command, ...] = (simulate_command,)


def _autoscaler(files: tuple[str, ...], asked: dict[str, Any]) -> Autoscaler:
    if bool(files) == (asked["threshold"] is not None):
        raise UsageError("give FILES with an autoscaler, or --threshold; one of them")
    if not files:
        return _of_options(asked)
    found = declared(files)
    return replace(found, hpa=replace(found.hpa, sync_period_s=asked["sync_period_s"]))


def _of_options(asked: dict[str, Any]) -> Autoscaler:
    hpa = HpaSettings(
        targets=(Target(Gauge(asked["metric"]), asked["threshold"], TargetKind(asked["target_type"])),),
        min_replicas=asked["min_replicas"],
        max_replicas=asked["max_replicas"],
        sync_period_s=asked["sync_period_s"],
        behavior=Behavior(
            up=Rules(policies=_policies(asked["up"]) or DEFAULT_UP.policies, window_s=asked["up_window_s"]),
            down=Rules(policies=_policies(asked["down"]) or DEFAULT_DOWN.policies, window_s=asked["down_window_s"]),
        ),
    )
    if asked["target_type"] == TargetKind.PODS:
        return Autoscaler(hpa)
    return Autoscaler(hpa, KedaSettings(min_replicas=asked["min_replicas"], ignore_null_values=False))


def _policies(written: str | None) -> tuple[Policy, ...]:
    if written is None:
        return ()
    parts = [POLICY.fullmatch(part.strip()) for part in written.split(",")]
    if None in parts:
        raise UsageError(f"policies are written like 4/15,100%/15, not {written!r}")
    return tuple(
        Policy(PolicyKind.PERCENT if part[2] else PolicyKind.PODS, int(part[1]), int(part[3])) for part in parts if part
    )


def _load(asked: dict[str, Any]) -> tuple[tuple[float, ...], float]:
    given = [name for name in LOADS if asked[name] is not None]
    if len(given) != 1:
        raise UsageError(f"choose one of --rate, --ramp, --sinusoid, --steps and --csv; got {len(given)}")
    if asked["csv_file"] is not None:
        demand = _csv(asked["csv_file"])
        return _counted(demand.times(asked["seed"])), _duration_s(asked, demand.duration_s)
    duration_s = _duration_s(asked, DEFAULT_DURATION_S)
    return _counted(_arrivals(asked).due_times(duration_s)), duration_s


def _duration_s(asked: dict[str, Any], default_s: float) -> float:
    duration_s: float = asked["duration_s"] or default_s
    if duration_s > LONGEST_S:
        raise UsageError(f"a simulation lasts {LONGEST_S:g} s (a month) at most, not {duration_s:g} s")
    return duration_s


def _counted(times_s: Iterator[float]) -> tuple[float, ...]:
    arrivals_s = tuple(itertools.islice(times_s, MOST_REQUESTS + 1))
    if len(arrivals_s) > MOST_REQUESTS:
        raise UsageError(
            f"the load has more requests than the {MOST_REQUESTS:,} that can be simulated; divide its rates, "
            "--service-rate, --max-num-seqs and the threshold by the same number"
        )
    return arrivals_s


def _arrivals(asked: dict[str, Any]) -> Arrivals:
    seed: int = asked["seed"]
    if asked["ramp"] is not None:
        start, end = numbers("--ramp", asked["ramp"], 2, "4:20")
        return Ramp(start, end, seed)
    if asked["sinusoid"] is not None:
        mean, amplitude, period_s = numbers("--sinusoid", asked["sinusoid"], 3, "10:0.5:3600")
        return Sinusoid(mean, amplitude, period_s, seed)
    if asked["steps"] is not None:
        written = [numbers("--steps", part, 2, "4:600,12:3000") for part in asked["steps"].split(",")]
        return Steps(tuple((rate, seconds) for rate, seconds in written), seed)
    return Poisson(asked["rate"], seed)


def _csv(path: Path) -> Demand:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            points = [(float(row["time_s"]), float(row["rate"])) for row in csv.DictReader(file)]
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except (KeyError, TypeError, ValueError, csv.Error) as error:
        raise UsageError(f"{path} is not a CSV with numbers in the columns time_s and rate: {error}") from error
    return Demand(tuple(points))


def _curve(simulation: Simulation) -> dict[str, Any]:
    return {"changes": as_plain(simulation.changes), "samples": as_plain(simulation.samples)}


def _width() -> int:
    return min(max(shutil.get_terminal_size((WIDTH + BESIDE, 0)).columns - BESIDE, NARROWEST), WIDTH)


def _lines(found: Figures, simulation: Simulation) -> list[str]:
    attained = (
        "nothing arrived" if found.attainment is None else f"{found.attainment:.1%} within {found.slo_ttft_s:g} s"
    )
    return [
        f"first token    {attained} of {found.requests:,} requests; p50 {_s(found.ttft_p50_s)}, "
        f"p95 {_s(found.ttft_p95_s)}, p99 {_s(found.ttft_p99_s)}; {found.lost:,} lost, "
        f"{found.unserved:,} still waiting at the end",
        f"replicas       at most {found.peak_wanted} wanted and {found.peak_ready} ready; the load needs "
        f"{found.needed}: overshoot {found.overshoot}",
        f"changes        {found.changes}, of direction {found.flapping}; longest time below what was wanted "
        f"{found.longest_unmet_s:.0f} s",
        f"cost           {found.gpu_hours:.2f} GPU-hours",
        f"metric         missing at {simulation.syncs_without_metric} syncs",
    ]


def _s(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f} s"
