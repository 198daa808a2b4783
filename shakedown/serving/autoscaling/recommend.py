"""Settings of an autoscaler from how long a replica loads, what it serves, what was promised and how the load grows.

The formulas are derived in docs/autoscaling.md. Each setting carries its reason in words.
"""

import math
from dataclasses import dataclass, field

from shakedown.errors import UsageError
from shakedown.serving.autoscaling.behavior import (
    DEFAULT_DOWN_WINDOW_S,
    LONGEST_PERIOD_S,
    LONGEST_WINDOW_S,
    Behavior,
    Policy,
    PolicyKind,
    Rules,
)
from shakedown.serving.autoscaling.calculator import DEFAULT_TOLERANCE
from shakedown.serving.autoscaling.demand import Demand, hill
from shakedown.serving.autoscaling.hpa import DEFAULT_SYNC_PERIOD_S, Gauge, HpaSettings, Target
from shakedown.serving.autoscaling.keda import Fallback, FallbackBehavior, KedaSettings
from shakedown.serving.autoscaling.metric_path import MetricPath
from shakedown.serving.autoscaling.replica import ReplicaModel
from shakedown.serving.autoscaling.simulator import Autoscaler
from shakedown.serving.autoscaling.workload import ClusterModel

FULLEST = 0.8
"""Share of a replica's throughput that is planned with even when the load hardly grows: random routing fills one
replica while another has free slots, and the HPA lets 10 % more pass."""
EMPTIEST = 0.5
"""Below this share, more replicas at the minimum are cheaper than emptier ones everywhere."""
CLIMB_LIMIT_S = 1800.0
HOLD_S = 1200.0
MINUTE_S = 60.0
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What is known of the service, and what is wanted of it."""

    replica: ReplicaModel
    slo_ttft_s: float
    growth_per_min: float
    """Requests a second that the load gains in a minute, at its steepest."""
    rate_per_s: float | None = None
    """The load of an ordinary hour; None: what the fewest replicas serve at the planned share."""
    min_replicas: int = 1
    max_replicas: int = 10
    sync_period_s: float = DEFAULT_SYNC_PERIOD_S
    path: MetricPath = field(default_factory=MetricPath)
    cluster: ClusterModel = field(default_factory=ClusterModel)

    def __post_init__(self) -> None:
        if not self.slo_ttft_s > self.replica.prefill_s:
            raise UsageError(
                f"the SLO of {self.slo_ttft_s:g} s for the first token leaves nothing for the queue: the prefill alone "
                f"takes {self.replica.prefill_s:g} s"
            )
        if not self.growth_per_min >= 0 or (self.rate_per_s is not None and not self.rate_per_s > 0):
            raise UsageError("the growth is 0 or more and the rate positive, in requests a second")
        if not 1 <= self.min_replicas <= self.max_replicas:
            raise UsageError(
                f"at least one replica stays, and no fewer than the minimum are the most; got {self.min_replicas} and "
                f"{self.max_replicas}"
            )
        if self.max_replicas > self.cluster.places:
            raise UsageError(f"{self.cluster.gpus} GPUs hold {self.cluster.places} replicas, not {self.max_replicas}")
        if self.rate_per_s is not None and self.rate_per_s > self.max_replicas * self.replica.rate_per_s:
            least = math.ceil(self.rate_per_s / self.replica.rate_per_s)
            raise UsageError(
                f"{self.rate_per_s:g} requests/s need {least} replicas at least, and {self.max_replicas} are the most"
            )

    @property
    def reaction_s(self) -> float:
        """From a load that is too high to a replica more that serves, at worst."""
        path, cluster = self.path, self.cluster
        seen_s = self.replica.full_service_s / 2 + path.scrape_interval_s + path.scrape_lag_s + self.sync_period_s
        return seen_s + cluster.schedule_s + cluster.load_s + cluster.ready_lag_s

    @property
    def growth_per_s(self) -> float:
        return self.growth_per_min / MINUTE_S

    @property
    def queue_s(self) -> float:
        """How long a request may wait for a slot."""
        return self.slo_ttft_s - self.replica.prefill_s


@dataclass(frozen=True, slots=True)
class Setting:
    """One recommended setting and why it has this value."""

    name: str
    value: str
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """Settings, their reasons, and what they can follow."""

    autoscaler: Autoscaler
    share: float
    """Of a replica's throughput, at which a replica is called full."""
    followed_growth_per_min: float
    """The steepest growth, in requests a second per minute, that the fewest replicas survive within the SLO."""
    follows: bool
    settings: tuple[Setting, ...]
    assumptions: tuple[str, ...]

    @property
    def target(self) -> Target:
        return self.autoscaler.hpa.targets[0]


def recommend(needs: Needs) -> Recommendation:
    """Threshold, bounds, windows, policies and fallback for a ScaledObject on requests in flight."""
    floor = _floor(needs)
    threshold = _threshold(needs, min(max(_share(needs, floor), EMPTIEST), FULLEST))
    share = threshold / needs.replica.service_s(threshold) / needs.replica.rate_per_s
    behavior = _behavior(needs, share)
    fallback = Fallback(
        replicas=_bounded(
            math.ceil(_ordinary_rate(needs, floor, share) / (share * needs.replica.rate_per_s)), floor, needs
        ),
        behavior=FallbackBehavior.CURRENT_IF_HIGHER,
    )
    hpa = HpaSettings(
        targets=(Target(Gauge.IN_FLIGHT, threshold),),
        min_replicas=floor,
        max_replicas=needs.max_replicas,
        behavior=behavior,
        sync_period_s=needs.sync_period_s,
    )
    keda = KedaSettings(min_replicas=floor, ignore_null_values=False, fallback=fallback)
    followed = _followed_growth_per_s(needs, floor, share) * MINUTE_S
    return Recommendation(
        autoscaler=Autoscaler(hpa, keda),
        share=share,
        followed_growth_per_min=followed,
        follows=followed >= needs.growth_per_min * (1 - ROUNDING),
        settings=_reasons(needs, hpa, keda, share),
        assumptions=_assumptions(needs),
    )


def rehearsal(needs: Needs, recommendation: Recommendation) -> Demand:
    """The load that a recommendation is tried on: an ordinary hour, the steepest growth, a peak, and the way back."""
    hpa, rate = recommendation.autoscaler.hpa, needs.replica.rate_per_s
    base = _ordinary_rate(needs, hpa.min_replicas, recommendation.share)
    most = hpa.max_replicas * recommendation.share * rate
    peak = max(min(base + needs.growth_per_s * CLIMB_LIMIT_S, most), base)
    return hill(base, peak, needs.growth_per_s, HOLD_S)


def _threshold(needs: Needs, share: float) -> int:
    """Whole requests in flight at a share of the throughput."""
    return max(math.floor(needs.replica.in_flight_at(share * needs.replica.rate_per_s)), 1)


def _floor(needs: Needs) -> int:
    """The fewest replicas whose headroom survives the growth; what was asked for if none does."""
    enough = (n for n in range(needs.min_replicas, needs.max_replicas + 1) if _share(needs, n) >= EMPTIEST)
    return next(enough, needs.max_replicas)


def _share(needs: Needs, replicas: int) -> float:
    """The fullest that replicas may be when the growth begins, so that the SLO holds until one more serves.

    Until then the load grows by growth × reaction. The queue takes the last part of it: a shortfall that grows for
    t seconds leaves growth × t² ÷ 2 requests waiting, which takes the SLO's time to serve at √(2 × queue time ×
    throughput ÷ growth).
    """
    throughput = replicas * needs.replica.rate_per_s
    if not needs.growth_per_s:
        return FULLEST
    queued_s = math.sqrt(2 * needs.queue_s * throughput / needs.growth_per_s)
    uncovered = needs.growth_per_s * max(needs.reaction_s - queued_s, 0.0)
    return (throughput - uncovered) / throughput / (1 + DEFAULT_TOLERANCE)


def _followed_growth_per_s(needs: Needs, replicas: int, share: float) -> float:
    """`_share` solved for the growth: headroom ÷ growth + √(2 × queue time × throughput ÷ growth) = reaction.

    Nothing where replicas of one or two slots are full before the HPA's tolerance is exceeded.
    """
    throughput = replicas * needs.replica.rate_per_s
    headroom = throughput * (1 - share * (1 + DEFAULT_TOLERANCE))
    if headroom <= 0:
        return 0.0
    queue = math.sqrt(2 * needs.queue_s * throughput)
    root = (math.sqrt(queue**2 + 4 * headroom * needs.reaction_s) - queue) / (2 * headroom)
    return 1 / root**2


def _behavior(needs: Needs, share: float) -> Behavior:
    period_s = min(math.ceil(needs.reaction_s), LONGEST_PERIOD_S)
    pods = 1 + math.ceil(needs.growth_per_s * period_s / (share * needs.replica.rate_per_s))
    down_s = min(max(math.ceil(2 * needs.reaction_s), round(DEFAULT_DOWN_WINDOW_S)), LONGEST_WINDOW_S)
    down_period_s = min(max(round(MINUTE_S), math.ceil(needs.cluster.drain_s)), LONGEST_PERIOD_S)
    return Behavior(
        up=Rules(policies=(Policy(PolicyKind.PODS, pods, period_s),)),
        down=Rules(policies=(Policy(PolicyKind.PODS, 1, down_period_s),), window_s=down_s),
    )


def _ordinary_rate(needs: Needs, floor: int, share: float) -> float:
    return floor * share * needs.replica.rate_per_s if needs.rate_per_s is None else needs.rate_per_s


def _bounded(replicas: int, floor: int, needs: Needs) -> int:
    return min(max(replicas, floor), needs.max_replicas)


def _reasons(needs: Needs, hpa: HpaSettings, keda: KedaSettings, share: float) -> tuple[Setting, ...]:
    behavior, fallback = hpa.behavior, keda.fallback
    assert behavior is not None
    assert fallback is not None
    up, down = behavior.up.policies[0], behavior.down.policies[0]
    raised = f"; {needs.min_replicas} would have too little headroom" if hpa.min_replicas > needs.min_replicas else ""
    return (
        Setting(
            "metric",
            "waiting + running",
            "it grows with the load alone; waiting requests alone are 0 whenever there are enough replicas, so that "
            "the HPA takes them away again and flaps",
        ),
        Setting(
            "threshold",
            f"{hpa.targets[0].threshold:g} requests in flight a replica",
            f"that is {share:.0%} of a replica's throughput; the rest carries the growth until a new replica serves "
            f"({needs.reaction_s:.0f} s), and the 10 % that the HPA tolerates",
        ),
        Setting(
            "minReplicaCount",
            str(hpa.min_replicas),
            f"a growth of {needs.growth_per_min:g} requests/s a minute must fit the headroom of the fewest{raised}",
        ),
        Setting("maxReplicaCount", str(hpa.max_replicas), "as given: what the GPUs hold or the budget allows"),
        Setting(
            "scaleUp policy",
            f"{up.value} Pods in {up.period_s} s",
            f"a replica shows its effect after {needs.reaction_s:.0f} s; until then the HPA still sees the old queue "
            f"and asks for more at each sync: no more than {up.value} are added before the first of them has helped",
        ),
        Setting("scaleUp window", "0 s", "requests in flight move slowly by themselves; waiting only loses time"),
        Setting(
            "scaleDown window",
            f"{behavior.down.window_s} s",
            "twice the time that a replica takes to come back (300 s at least): one given up in a dip must load again",
        ),
        Setting(
            "scaleDown policy",
            f"{down.value} Pod in {down.period_s} s",
            "one replica at a time, and the next when the last has drained",
        ),
        Setting(
            "fallback",
            f"{fallback.replicas} replicas, {fallback.behavior}, after {fallback.failure_threshold} failures",
            "when the metric is lost the load is not: keep what runs, or what an ordinary hour needs if that is more",
        ),
        Setting("ignoreNullValues", "false", "no series is a failure of the metric, not an idle engine"),
    )


def _assumptions(needs: Needs) -> tuple[str, ...]:
    replica, cluster = needs.replica, needs.cluster
    return (
        f"a replica serves {replica.rate_per_s:g} requests/s with {replica.max_num_seqs} at once, so that a request is "
        f"{replica.full_service_s:.3g} s in the engine (Little's law)",
        f"a new replica serves {cluster.schedule_s + cluster.load_s + cluster.ready_lag_s:g} s after it was asked for "
        f"({cluster.schedule_s:g} s to start, {cluster.load_s:g} s to load, {cluster.ready_lag_s:g} s to be Ready), "
        "and a GPU is free for it",
        f"the load is seen {needs.reaction_s - cluster.schedule_s - cluster.load_s - cluster.ready_lag_s:.3g} s late "
        f"at worst: half a request's time, a scrape interval of {needs.path.scrape_interval_s:g} s, a sync period of "
        f"{needs.sync_period_s:g} s",
        f"the load gains {needs.growth_per_min:g} requests/s a minute at its steepest; bursts beyond that wait",
        "requests are alike: long prompts and long answers change the throughput, which should be measured with yours",
    )
