"""What users felt and what it cost: figures of a simulation."""

import itertools
import math
from bisect import bisect_left
from dataclasses import dataclass

from shakedown.judge.percentiles import percentile
from shakedown.serving.autoscaling.replica import ReplicaModel
from shakedown.serving.autoscaling.simulator import Change, Simulation

DEMAND_WINDOW_S = 60.0
"""Over which the arrival rate is taken for the replicas that a load needs: shorter bursts may wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Seconds unless the name says otherwise."""

    requests: int
    ttft_p50_s: float | None
    ttft_p95_s: float | None
    ttft_p99_s: float | None
    slo_ttft_s: float
    attainment: float | None
    """Share of the requests, of which it is known, whose first token came within the SLO; lost ones missed it."""
    lost: int
    unserved: int
    """Requests that still waited at the end; their wait so far counts in the percentiles."""
    gpu_hours: float
    peak_wanted: int
    peak_ready: int
    needed: int
    """Replicas that the highest arrival rate of a minute needs when all their slots are taken."""
    overshoot: int
    """Replicas wanted at the peak beyond those needed."""
    changes: int
    flapping: int
    """Changes of direction: up after down, or down after up."""
    longest_unmet_s: float
    """The longest time that fewer replicas were ready than wanted."""


def figures(simulation: Simulation, replica: ReplicaModel, slo_ttft_s: float) -> Figures:
    """Judge a simulation against a bound of the time to the first token."""
    waits = _ttfts(simulation)
    met, missed = _met_and_missed(simulation, slo_ttft_s)
    peak = max(change.wanted for change in simulation.changes)
    floor = min(change.wanted for change in simulation.changes)
    needed = max(needed_replicas(simulation, replica), floor)
    return Figures(
        requests=len(simulation.arrivals_s),
        ttft_p50_s=percentile(waits, 50),
        ttft_p95_s=percentile(waits, 95),
        ttft_p99_s=percentile(waits, 99),
        slo_ttft_s=slo_ttft_s,
        attainment=met / (met + missed) if met + missed else None,
        lost=len(simulation.lost),
        unserved=sum(start is None for start in simulation.started_s) - _lost_before_start(simulation),
        gpu_hours=simulation.gpu_hours,
        peak_wanted=peak,
        peak_ready=max(sample.ready for sample in simulation.samples),
        needed=needed,
        overshoot=max(peak - needed, 0),
        changes=len(simulation.changes) - 1,
        flapping=direction_changes(simulation.changes),
        longest_unmet_s=_longest_unmet_s(simulation),
    )


def direction_changes(changes: tuple[Change, ...]) -> int:
    steps = [later.wanted > earlier.wanted for earlier, later in itertools.pairwise(changes)]
    return sum(later != earlier for earlier, later in itertools.pairwise(steps))


def needed_replicas(simulation: Simulation, replica: ReplicaModel) -> int:
    """⌈highest arrival rate over a minute ÷ service rate⌉."""
    times = simulation.arrivals_s
    window_s = min(DEMAND_WINDOW_S, simulation.duration_s)
    most = max((index - bisect_left(times, end_s - window_s) + 1 for index, end_s in enumerate(times)), default=0)
    return math.ceil(round(most / window_s / replica.rate_per_s, 6))


def _ttfts(simulation: Simulation) -> list[float]:
    """Of each request the time to its first token; infinite if it was refused or lost, the wait so far if it waits."""
    return [
        math.inf
        if request in simulation.lost
        else simulation.duration_s - arrived_s
        if started_s is None
        else started_s - arrived_s + simulation.prefill_s
        for request, (arrived_s, started_s) in enumerate(zip(simulation.arrivals_s, simulation.started_s, strict=True))
    ]


def _met_and_missed(simulation: Simulation, slo_ttft_s: float) -> tuple[int, int]:
    met = missed = 0
    for wait_s, started_s in zip(_ttfts(simulation), simulation.started_s, strict=True):
        if wait_s > slo_ttft_s:
            missed += 1
        elif started_s is not None:
            met += 1
    return met, missed


def _lost_before_start(simulation: Simulation) -> int:
    return sum(simulation.started_s[request] is None for request in simulation.lost)


def _longest_unmet_s(simulation: Simulation) -> float:
    longest_s, since_s = 0.0, None
    for sample in simulation.samples:
        if sample.ready >= sample.wanted:
            since_s = None
            continue
        since_s = sample.t_s if since_s is None else since_s
        longest_s = max(longest_s, sample.t_s - since_s)
    return longest_s
