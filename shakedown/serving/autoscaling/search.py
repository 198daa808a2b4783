"""Tries settings on a load in the simulator and keeps those that meet the SLO with the least GPU time."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from shakedown.errors import UsageError
from shakedown.serving.autoscaling.behavior import (
    LONGEST_PERIOD_S,
    LONGEST_WINDOW_S,
    Behavior,
    Policy,
    PolicyKind,
    Rules,
)
from shakedown.serving.autoscaling.demand import Demand
from shakedown.serving.autoscaling.figures import Figures, figures
from shakedown.serving.autoscaling.metric_path import MetricPath
from shakedown.serving.autoscaling.replica import ReplicaModel
from shakedown.serving.autoscaling.simulator import Autoscaler, simulate
from shakedown.serving.autoscaling.workload import ClusterModel

BUNDLES_OF_A_SEARCH, BUNDLES_OF_A_REHEARSAL = 20_000, 100_000
"""About 0.2 s and 1 s of simulation."""
MOST_BUNDLES = 2_000_000
FEWEST_SLOTS = 16
"""A replica of fewer slots fills and empties more jerkily than the one it stands for."""
THRESHOLDS = (0.5, 0.65, 0.8, 0.9, 1.1, 1.25, 1.4)
"""Factors on the threshold that the search starts from."""
DOWN_WINDOWS_S = (0, 120, 300, 600, 1200)
UP_PODS = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A load and what serves it."""

    demand: Demand
    replica: ReplicaModel
    slo_ttft_s: float
    goal: float = 0.95
    """Share of the requests that must meet the SLO."""
    path: MetricPath = field(default_factory=MetricPath)
    cluster: ClusterModel = field(default_factory=ClusterModel)
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Candidate:
    """Settings and what came of them."""

    autoscaler: Autoscaler
    figures: Figures
    meets: bool

    @property
    def rank(self) -> tuple[bool, float, float]:
        """Lower is better: the SLO first, then GPU time; where none meets it, the one that comes closest."""
        attainment = self.figures.attainment or 0.0
        return not self.meets, 0.0 if self.meets else -attainment, self.figures.gpu_hours


@dataclass(frozen=True, slots=True)
class _Bundles:
    """A problem in bundles of `factor` requests: a replica has a factor-th of the slots, and is as fast.

    What bundles show is as right on average and noisier, as their numbers are smaller.
    """

    problem: Problem
    factor: int
    replica: ReplicaModel
    arrivals_s: tuple[float, ...]

    def tried(self, autoscaler: Autoscaler) -> Candidate:
        problem = self.problem
        simulation = simulate(
            _bundled(autoscaler, self.factor),
            self.arrivals_s,
            self.replica,
            path=problem.path,
            cluster=problem.cluster,
            duration_s=problem.demand.duration_s,
        )
        found = figures(simulation, self.replica, problem.slo_ttft_s)
        return Candidate(autoscaler, found, (found.attainment or 0.0) >= problem.goal)


def search(problem: Problem, start: Autoscaler) -> tuple[Candidate, ...]:
    """Vary threshold, then the scale-down window, then the scale-up policy, each from the best so far; best first."""
    bundles = _bundles(problem, BUNDLES_OF_A_SEARCH)
    tried = [bundles.tried(start)]
    for variants in (_thresholds, _down_windows, _up_policies):
        best = min(tried, key=lambda candidate: candidate.rank).autoscaler
        known = {candidate.autoscaler for candidate in tried}
        tried += [bundles.tried(variant) for variant in variants(best) if variant not in known]
    return tuple(sorted(tried, key=lambda candidate: candidate.rank))


def rehearsed(problem: Problem, autoscaler: Autoscaler) -> Candidate:
    """One careful try."""
    return _bundles(problem, BUNDLES_OF_A_REHEARSAL).tried(autoscaler)


def _bundles(problem: Problem, most: int) -> _Bundles:
    """As few requests a bundle as the number of bundles allows. Raises UsageError where that is too many for a try."""
    replica, requests = problem.replica, problem.demand.requests
    factor = max(min(math.ceil(requests / most), replica.max_num_seqs // FEWEST_SLOTS), 1)
    if requests / factor > MOST_BUNDLES:
        raise UsageError(
            f"the load to try has {requests:,.0f} requests, and replicas of {replica.max_num_seqs} slots are too small "
            f"for a simulation of so many; divide all rates by the same number"
        )
    thinner = replace(replica, max_num_seqs=round(replica.max_num_seqs / factor))
    return _Bundles(problem, factor, thinner, problem.demand.divided(factor).arrivals(problem.seed))


def _bundled(autoscaler: Autoscaler, factor: int) -> Autoscaler:
    """Gauges that count bundles meet thresholds that are as much smaller."""
    targets = tuple(replace(target, threshold=target.threshold / factor) for target in autoscaler.hpa.targets)
    return replace(autoscaler, hpa=replace(autoscaler.hpa, targets=targets))


def _thresholds(start: Autoscaler) -> Iterable[Autoscaler]:
    first, *others = start.hpa.targets
    for factor in THRESHOLDS:
        target = replace(first, threshold=max(round(first.threshold * factor), 1))
        yield replace(start, hpa=replace(start.hpa, targets=(target, *others)))


def _down_windows(start: Autoscaler) -> Iterable[Autoscaler]:
    behavior = start.hpa.behavior or Behavior()
    for window_s in DOWN_WINDOWS_S:
        yield _with(start, replace(behavior, down=replace(behavior.down, window_s=min(window_s, LONGEST_WINDOW_S))))


def _up_policies(start: Autoscaler) -> Iterable[Autoscaler]:
    behavior = start.hpa.behavior or Behavior()
    periods_s = sorted({60, min(max(policy.period_s for policy in behavior.up.policies), LONGEST_PERIOD_S)})
    for pods in UP_PODS:
        for period_s in periods_s:
            rules = Rules(
                policies=(Policy(PolicyKind.PODS, pods, period_s),),
                window_s=behavior.up.window_s,
                tolerance=behavior.up.tolerance,
            )
            yield _with(start, replace(behavior, up=rules))


def _with(autoscaler: Autoscaler, behavior: Behavior) -> Autoscaler:
    return replace(autoscaler, hpa=replace(autoscaler.hpa, behavior=behavior))
