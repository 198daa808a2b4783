"""Tries settings on a load in the simulator and keeps those that meet the SLO with the least GPU time."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from shakedown.serving.autoscaling.behavior import (
    LONGEST_PERIOD_S,
    LONGEST_WINDOW_S,
    Behavior,
    Policy,
    PolicyKind,
    Rules,
)
from shakedown.serving.autoscaling.figures import Figures, figures
from shakedown.serving.autoscaling.metric_path import MetricPath
from shakedown.serving.autoscaling.replica import ReplicaModel
from shakedown.serving.autoscaling.simulator import Autoscaler, simulate
from shakedown.serving.autoscaling.workload import ClusterModel

REQUESTS_A_TRY = 20_000
"""About 0.2 s of simulation."""
FEWEST_SLOTS = 16
"""A replica of fewer slots fills and empties more jerkily than the one it stands for."""
THRESHOLDS = (0.5, 0.65, 0.8, 0.9, 1.1, 1.25, 1.4)
"""Factors on the threshold that the search starts from."""
DOWN_WINDOWS_S = (0, 120, 300, 600, 1200)
UP_PODS = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A load and what serves it."""

    arrivals_s: Sequence[float]
    duration_s: float
    replica: ReplicaModel
    slo_ttft_s: float
    goal: float = 0.95
    """Share of the requests that must meet the SLO."""
    path: MetricPath = field(default_factory=MetricPath)
    cluster: ClusterModel = field(default_factory=ClusterModel)


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


def search(problem: Problem, start: Autoscaler) -> tuple[Candidate, ...]:
    """Vary threshold, then the scale-down window, then the scale-up policy, each from the best so far; best first."""
    coarse, factor = _coarsened(problem)
    tried = [_tried(coarse, factor, start)]
    for variants in (_thresholds, _down_windows, _up_policies):
        best = min(tried, key=lambda candidate: candidate.rank).autoscaler
        known = {candidate.autoscaler for candidate in tried}
        tried += [_tried(coarse, factor, variant) for variant in variants(best) if variant not in known]
    return tuple(sorted(tried, key=lambda candidate: candidate.rank))


def rehearsed(problem: Problem, autoscaler: Autoscaler) -> Candidate:
    """One try with every request."""
    return _tried(problem, 1, autoscaler)


def _tried(problem: Problem, factor: int, autoscaler: Autoscaler) -> Candidate:
    """Requests in bundles of `factor` meet thresholds that are as much smaller."""
    simulation = simulate(
        _bundled(autoscaler, factor),
        problem.arrivals_s,
        problem.replica,
        path=problem.path,
        cluster=problem.cluster,
        duration_s=problem.duration_s,
    )
    found = figures(simulation, problem.replica, problem.slo_ttft_s)
    return Candidate(autoscaler, found, (found.attainment or 0.0) >= problem.goal)


def _coarsened(problem: Problem) -> tuple[Problem, int]:
    """The same load with every k-th request, each as heavy as k: a replica has a k-th of the slots, as fast."""
    replica = problem.replica
    wished = math.ceil(len(problem.arrivals_s) / REQUESTS_A_TRY)
    factor = max(min(wished, replica.max_num_seqs // FEWEST_SLOTS), 1)
    thinner = replace(replica, max_num_seqs=round(replica.max_num_seqs / factor))
    return replace(problem, arrivals_s=problem.arrivals_s[::factor], replica=thinner), factor


def _bundled(autoscaler: Autoscaler, factor: int) -> Autoscaler:
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
