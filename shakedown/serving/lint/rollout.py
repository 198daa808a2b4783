"""Rules about replacing and removing replicas: rollouts, drains, disruption budgets, shared volumes."""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from shakedown.serving.lint.findings import Assumptions, Fault, error, warning
from shakedown.serving.lint.tree import at, mapping, mappings, number, text, texts
from shakedown.serving.lint.world import Item, Placed, World, selects

SLEEP = re.compile(r"\bsleep[\s\",]+(\d+)")


@warning(
    "grace-shorter-than-drain",
    effect="scale-in, rollouts and drains cut streams: the kubelet kills the engine while it still answers",
    fix="raise terminationGracePeriodSeconds above the longest answer plus a preStop sleep of a few seconds",
    reference="graceful shutdown under load",
)
def grace_shorter_than_drain(world: World, assumptions: Assumptions) -> Iterator[Fault]:
    for placed in world.engines():
        grace = placed.workload.grace_s
        hook = mapping(at(placed.engine.container, "lifecycle", "preStop"))
        asleep = _sleep_s(hook)
        if not hook and grace < assumptions.drain_s:
            yield Fault(
                placed.place,
                f"the grace period is {grace:g} s without a preStop hook, and an answer may take "
                f"{assumptions.drain_s:g} s",
            )
        elif asleep is not None and asleep >= grace:
            yield Fault(
                placed.place, f"the preStop sleep of {asleep:g} s uses up the whole grace period of {grace:g} s"
            )


def _sleep_s(hook: Mapping[Any, Any]) -> float | None:
    built_in = number(at(hook, "sleep", "seconds"))
    script = SLEEP.search(" ".join(texts(at(hook, "exec", "command"))))
    return built_in if built_in is not None else float(script[1]) if script else None


@warning(
    "surge-needs-gpu",
    effect="the new pod waits for a GPU that the old one holds: the rollout stands still while all GPUs are taken",
    fix="keep spare GPUs, or set maxSurge: 0 and maxUnavailable: 1",
    reference="rolling updates on GPU nodes",
)
def surge_needs_gpu(world: World, assumptions: Assumptions) -> Iterator[Fault]:
    for item, workload in world.workloads():
        strategy = mapping(workload.spec.get("strategy"))
        if item.kind != "Deployment" or not workload.gpus or strategy.get("type") == "Recreate":
            continue
        rolling = mapping(strategy.get("rollingUpdate"))
        replicas = workload.replicas
        surge = _share(rolling.get("maxSurge", "25%"), replicas, round_up=True)
        unavailable = _share(rolling.get("maxUnavailable", "25%"), replicas, round_up=False)
        if surge and not unavailable:
            yield Fault(
                item.place,
                f"maxSurge resolves to {surge} and maxUnavailable to 0 of {replicas} replicas, each with "
                f"{workload.gpus} GPU(s)",
            )


@error(
    "disruption-budget-deadlock",
    effect="no pod may ever be evicted: node drains and cluster upgrades hang",
    fix="allow at least one disruption: minAvailable below the number of replicas, or maxUnavailable: 1",
    reference="PDB deadlock",
)
def disruption_budget_deadlock(world: World, assumptions: Assumptions) -> Iterator[Fault]:
    for budget in world.of("PodDisruptionBudget"):
        low, high = (at(budget.body, "spec", name) for name in ("minAvailable", "maxUnavailable"))
        replicas = _replicas_under(world, budget)
        if text(high) in ("0", "0%"):
            yield Fault(budget.place, f"maxUnavailable is {text(high)}")
        elif text(low) == "100%":
            yield Fault(budget.place, "minAvailable is 100%")
        elif low is not None and replicas is not None and _share(low, replicas, round_up=True) >= replicas:
            yield Fault(budget.place, f"minAvailable is {text(low)} and the pods that it selects are {replicas}")


def _replicas_under(world: World, budget: Item) -> int | None:
    """The fewest replicas that the selected workloads run; None if the files have none of them."""
    selector = at(budget.body, "spec", "selector")
    counts = []
    for item, workload in world.workloads():
        if budget.beside(item) and selects(selector, workload.labels):
            floor = world.autoscaled_floor(item)
            counts.append(workload.replicas if floor is None else floor)
    # A workload that is scaled to nothing has nothing to evict.
    return sum(counts) or None


@error(
    "cache-single-writer",
    effect="the second replica cannot attach the volume on another node and never starts (Multi-Attach)",
    fix="use ReadWriteMany or ReadOnlyMany, or a StatefulSet with volumeClaimTemplates, or a cache on the node",
    reference="RWO cache",
)
def cache_single_writer(world: World, assumptions: Assumptions) -> Iterator[Fault]:
    for placed in world.engines():
        replicas = world.most_replicas(placed.item, placed.workload)
        for claim in _single_writer_claims(world, placed):
            if replicas > 1:
                yield Fault(placed.item.place, f"up to {replicas} replicas share the ReadWriteOnce claim {claim}")


def _single_writer_claims(world: World, placed: Placed) -> Iterator[str]:
    mounted = {
        text(at(volume, "persistentVolumeClaim", "claimName"))
        for volume in mappings(placed.workload.pod.get("volumes"))
    }
    for claim in world.of("PersistentVolumeClaim"):
        modes = set(texts(at(claim.body, "spec", "accessModes")))
        single = bool(modes) and modes <= {"ReadWriteOnce", "ReadWriteOncePod"}
        if single and claim.name in mounted and claim.beside(placed.item):
            yield claim.name


def _share(value: Any, total: int, *, round_up: bool) -> int:
    """A count, or a percentage of `total` rounded as Kubernetes does."""
    written = text(value)
    if written.endswith("%"):
        exact = (number(written[:-1], 0.0) or 0.0) * total / 100
        return math.ceil(exact) if round_up else math.floor(exact)
    return int(number(written, 0.0) or 0)


RULES = (grace_shorter_than_drain, surge_needs_gpu, disruption_budget_deadlock, cache_single_writer)
