"""Options that `plan --autoscale` and `simulate` share: the replica, the cluster, the way of the metric."""

import math
from typing import Any

import click

from shakedown.errors import UsageError
from shakedown.serving.autoscaling.metric_path import Broken, MetricPath, Outage
from shakedown.serving.autoscaling.replica import ReplicaModel
from shakedown.serving.autoscaling.workload import ClusterModel, Routing


class FiniteRange(click.FloatRange):
    """click lets nan and inf pass every range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return found


POSITIVE = FiniteRange(min=0, min_open=True)
AT_LEAST_0 = FiniteRange(min=0)
PERIOD = FiniteRange(min=0.1)
"""Below it, a simulation has more turns than requests."""
COUNT = click.IntRange(min=1)

OPTIONS = (
    click.option(
        "--service-rate", type=POSITIVE, required=True, help="Requests/s of one replica with all slots taken."
    ),
    click.option("--load-time-s", type=AT_LEAST_0, required=True, help="From a pod's start to its weights served."),
    click.option(
        "--max-num-seqs", type=COUNT, default=256, show_default=True, help="Requests that a replica runs at once."
    ),
    click.option(
        "--service-time-s", type=POSITIVE, help="Of a request alone in the engine. [default: as in a full batch]"
    ),
    click.option(
        "--prefill-s", type=AT_LEAST_0, default=0.0, show_default=True, help="From a slot to the first token."
    ),
    click.option("--slo-ttft-s", type=POSITIVE, default=2.0, show_default=True, help="Promised time to first token."),
    click.option("--goal", type=FiniteRange(0, 1), default=0.95, show_default=True, help="Share that must meet it."),
    click.option("--sync-period-s", type=PERIOD, default=15.0, show_default=True, help="Of the HPA controller."),
    click.option("--scrape-interval-s", type=PERIOD, default=15.0, show_default=True, help="Of Prometheus."),
    click.option(
        "--scrape-lag-s", type=AT_LEAST_0, default=0.0, show_default=True, help="Until queries find a sample."
    ),
    click.option("--gpus", type=COUNT, help="All there are for it; replicas beyond stay Pending. [default: no limit]"),
    click.option("--gpus-per-replica", type=COUNT, default=1, show_default=True),
    click.option("--drain-s", type=AT_LEAST_0, default=60.0, show_default=True, help="terminationGracePeriodSeconds."),
    click.option(
        "--routing", type=click.Choice([routing.value for routing in Routing]), default="random", show_default=True
    ),
    click.option("--seed", type=int, default=0, show_default=True),
)


def scaling_options(command: Any) -> Any:
    for option in reversed(OPTIONS):
        command = option(command)
    return command


def replica_of(asked: dict[str, Any]) -> ReplicaModel:
    return ReplicaModel.of_rate(
        asked["service_rate"],
        asked["max_num_seqs"],
        alone_service_s=asked["service_time_s"],
        prefill_s=asked["prefill_s"],
    )


def cluster_of(asked: dict[str, Any]) -> ClusterModel:
    return ClusterModel(
        load_s=asked["load_time_s"],
        drain_s=asked["drain_s"],
        gpus=asked["gpus"],
        gpus_per_replica=asked["gpus_per_replica"],
        routing=Routing(asked["routing"]),
        seed=asked["seed"],
    )


def path_of(asked: dict[str, Any]) -> MetricPath:
    return MetricPath(
        scrape_interval_s=asked["scrape_interval_s"],
        scrape_lag_s=asked["scrape_lag_s"],
        outages=tuple(_outage(written) for written in asked.get("outage", ())),
    )


def numbers(option: str, written: str, count: int, example: str) -> tuple[float, ...]:
    """Numbers between colons. Raises UsageError that shows how they are written."""
    try:
        found = tuple(float(part) for part in written.split(":"))
    except ValueError:
        found = ()
    if len(found) != count or not all(math.isfinite(number) for number in found):
        raise UsageError(f"{option} is written like {example}, not {written!r}")
    return found


def _outage(written: str) -> Outage:
    kind, _, times = written.partition(":")
    if kind not in {broken.value for broken in Broken}:
        raise UsageError(f"--outage is written like scrapes:600:900 or queries:600:900, not {written!r}")
    start_s, end_s = numbers("--outage", times, 2, f"{kind}:600:900")
    return Outage(Broken(kind), start_s, end_s)
