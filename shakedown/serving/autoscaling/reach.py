"""Whether a target can be exceeded at all: one that cannot never adds a replica, whatever the load."""

from shakedown.serving.autoscaling.hpa import Gauge, HpaSettings, Target, TargetKind
from shakedown.serving.autoscaling.replica import ReplicaModel


def out_of_reach(settings: HpaSettings, replica: ReplicaModel) -> tuple[str, ...]:
    """A sentence for each target that the gauge of running requests cannot exceed by more than the tolerance."""
    return tuple(
        _sentence(target, settings, replica) for target in settings.targets if _stuck(target, settings, replica)
    )


def _stuck(target: Target, settings: HpaSettings, replica: ReplicaModel) -> bool:
    return target.gauge is Gauge.RUNNING and _most(target, settings, replica) <= target.threshold * (
        1 + settings.tolerances.up
    )


def _most(target: Target, settings: HpaSettings, replica: ReplicaModel) -> int:
    """The highest value that meets the target while the fewest replicas serve."""
    replicas = max(settings.min_replicas, 1) if target.kind is TargetKind.VALUE else 1
    return replicas * replica.max_num_seqs


def _sentence(target: Target, settings: HpaSettings, replica: ReplicaModel) -> str:
    most, tolerance = _most(target, settings, replica), settings.tolerances.up
    return (
        f"the target of {target.threshold:g} running requests can never be exceeded by more than the tolerance of "
        f"{tolerance:.0%}: a replica runs {replica.max_num_seqs} at most (max-num-seqs), so that the value stops at "
        f"{most}; no replica is ever added. Scale on waiting requests too, or set a target below "
        f"{most / (1 + tolerance):.0f}"
    )
