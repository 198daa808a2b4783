"""The loop in simulated time: what its parts do alone, and known failures of autoscaling as they happen in it."""

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shakedown.errors import UsageError
from shakedown.serving.autoscaling.behavior import DEFAULT_UP, Behavior, Policy, PolicyKind, Rules
from shakedown.serving.autoscaling.demand import Demand
from shakedown.serving.autoscaling.figures import direction_changes, figures, needed_replicas
from shakedown.serving.autoscaling.hpa import Gauge, HpaSettings, Target, TargetKind
from shakedown.serving.autoscaling.keda import Fallback, KedaSettings
from shakedown.serving.autoscaling.metric_path import Broken, MetricPath, Outage
from shakedown.serving.autoscaling.reach import out_of_reach
from shakedown.serving.autoscaling.replica import ReplicaModel
from shakedown.serving.autoscaling.simulator import Autoscaler, Change, Simulation, simulate
from shakedown.serving.autoscaling.workload import ClusterModel, Routing

REPLICA = ReplicaModel.of_rate(4.0, 32)
"""A request is 8 s in the engine."""
QUICK = ClusterModel(load_s=30.0, routing=Routing.LEAST_LOADED)
SLOW = ClusterModel(load_s=300.0, routing=Routing.LEAST_LOADED)
SLO_S = 2.0
IN_FLIGHT = Target(Gauge.IN_FLIGHT, 24)


def even(rate: float, duration_s: float, begin_s: float = 0.0) -> tuple[float, ...]:
    """Arrivals at equal distances."""
    return tuple(begin_s + index / rate for index in range(math.floor(rate * duration_s)))


def scaler(target: Target = IN_FLIGHT, keda: KedaSettings | None = None, **changes: object) -> Autoscaler:
    base = HpaSettings(targets=(target,), max_replicas=16, behavior=Behavior())
    return Autoscaler(replace(base, **changes), keda)  # type: ignore[arg-type]


def wanted_at(simulation: Simulation, t_s: float) -> int:
    return [change.wanted for change in simulation.changes if change.t_s <= t_s][-1]


# The parts alone.


def test_a_request_waits_for_nothing_while_there_are_slots_and_then_for_the_first_that_ends() -> None:
    two_slots = ReplicaModel(max_num_seqs=2, full_service_s=10.0, prefill_s=0.5)
    found = simulate(scaler(max_replicas=1), (0.0, 1.0, 2.0, 3.0), two_slots, duration_s=60.0)
    assert found.started_s == pytest.approx((0.0, 1.0, 10.0, 11.0))
    seen = figures(found, two_slots, SLO_S)
    assert seen.ttft_p50_s == pytest.approx((0.5 + 8.5) / 2)
    assert seen.attainment == 0.5


def test_a_larger_batch_slows_all_that_run() -> None:
    """Alone 10 s, two together 20 s: the first has half its work done at 5 s, and shares the engine from there."""
    sharing = ReplicaModel(max_num_seqs=2, full_service_s=20.0, alone_service_s=10.0)
    found = simulate(scaler(max_replicas=1), (0.0, 5.0, 6.0), sharing, duration_s=60.0)
    assert found.started_s == pytest.approx((0.0, 5.0, 15.0))


def test_throughput_and_littles_law_agree() -> None:
    model = ReplicaModel(max_num_seqs=32, full_service_s=8.0, alone_service_s=2.0)
    assert model.rate_per_s == 4.0
    assert model.in_flight_at(4.0) == pytest.approx(32.0)
    assert model.in_flight_at(2.0) / model.service_s(model.in_flight_at(2.0)) == pytest.approx(2.0)


def test_a_new_replica_serves_after_it_was_scheduled_has_loaded_and_is_ready() -> None:
    cluster = replace(QUICK, schedule_s=2.0, ready_lag_s=5.0)
    found = simulate(scaler(), even(6.0, 400.0), REPLICA, cluster=cluster, sample_every_s=1.0)
    asked_s = next(change.t_s for change in found.changes if change.wanted > 1)
    helped_s = next(sample.t_s for sample in found.samples if sample.ready > 1)
    assert helped_s - asked_s == pytest.approx(37.0, abs=1.0)


def test_a_load_is_seen_as_late_as_the_scrape_its_lag_and_the_sync_make_it() -> None:
    step = even(0.5, 100.0) + even(20.0, 200.0, 100.0)
    path = MetricPath(scrape_interval_s=30.0, scrape_lag_s=20.0)
    early, late = (simulate(scaler(), step, REPLICA, path=each, cluster=QUICK) for each in (None, path))
    assert early.changes[1].t_s == 120.0  # the sync beside the scrape at 105 s does not see it yet
    assert late.changes[1].t_s == 150.0  # the scrape at 120 s is found from 140 s on


def test_pods_beyond_the_gpus_stay_unscheduled_until_a_gpu_is_free() -> None:
    found = simulate(scaler(), even(30.0, 300.0), REPLICA, cluster=replace(QUICK, gpus=4, gpus_per_replica=2))
    assert max(sample.wanted for sample in found.samples) > 2
    assert max(sample.scheduled for sample in found.samples) == max(sample.ready for sample in found.samples) == 2


def test_gpu_hours_count_loading_and_draining_but_not_waiting_for_a_gpu() -> None:
    found = simulate(scaler(), even(30.0, 3600.0), REPLICA, cluster=replace(QUICK, gpus=1), duration_s=3600.0)
    assert found.gpu_hours == pytest.approx(1.0)


def test_a_replica_drains_for_its_grace_and_then_loses_what_it_has() -> None:
    """Forty requests on two replicas, eight seconds each; at the first sync one replica has to go."""
    burst, down = tuple([14.0] * 40), Behavior(down=Rules(policies=(Policy(PolicyKind.PODS, 1, 15),)))
    patient, hasty = (
        simulate(
            scaler(Target(Gauge.WAITING, 5), behavior=down, max_replicas=2),
            burst,
            REPLICA,
            cluster=replace(QUICK, drain_s=drain_s),
            duration_s=120.0,
            initial_replicas=2,
        )
        for drain_s in (60.0, 1.0)
    )
    assert [change.wanted for change in patient.changes] == [2, 1]
    assert (len(patient.lost), len(hasty.lost)) == (0, 20)


def test_without_a_ready_replica_requests_are_refused() -> None:
    found = simulate(scaler(), (1.0, 2.0), REPLICA, cluster=QUICK, initial_replicas=0, duration_s=60.0)
    assert found.lost == {0, 1}
    assert figures(found, REPLICA, SLO_S).attainment == 0.0


def test_a_shared_queue_is_worked_off_by_a_new_replica_and_a_queue_of_one_replica_is_not() -> None:
    burst = tuple([0.0] * 300)
    begin_s: dict[Routing, float] = {}
    for routing in (Routing.SHARED_QUEUE, Routing.ROUND_ROBIN):
        found = simulate(scaler(), burst, REPLICA, cluster=replace(QUICK, routing=routing), duration_s=300.0)
        begin_s[routing] = max(start for start in found.started_s if start is not None)
    assert begin_s[Routing.SHARED_QUEUE] < begin_s[Routing.ROUND_ROBIN] == pytest.approx(72.0)


@pytest.mark.parametrize("routing", list(Routing))
def test_every_request_is_accounted_for(routing: Routing) -> None:
    arrivals = Demand(((0.0, 2.0), (300.0, 12.0), (600.0, 1.0))).arrivals(seed=3)
    found = simulate(scaler(), arrivals, REPLICA, cluster=replace(QUICK, routing=routing), duration_s=900.0)
    assert not found.lost
    assert all(start is not None and start >= due for start, due in zip(found.started_s, arrivals, strict=True))


def test_figures_count_directions_and_needed_replicas() -> None:
    curve = tuple(Change(float(t), wanted, "") for t, wanted in enumerate((1, 3, 5, 4, 2, 6)))
    assert direction_changes(curve) == 2
    found = simulate(scaler(), even(10.0, 120.0), REPLICA, cluster=QUICK)
    assert needed_replicas(found, REPLICA) == 3


def test_a_load_curve_has_as_many_arrivals_as_its_integral_and_follows_it() -> None:
    curve = Demand(((0.0, 0.0), (1000.0, 20.0), (1000.0, 5.0), (2000.0, 5.0)))
    arrivals = curve.arrivals(seed=1)
    assert list(arrivals) == sorted(arrivals)
    assert curve.requests == 15_000
    assert len(arrivals) == pytest.approx(15_000, rel=0.03)
    assert sum(t < 500.0 for t in arrivals) == pytest.approx(2500, rel=0.06)
    assert sum(t >= 1000.0 for t in arrivals) == pytest.approx(5000, rel=0.06)


def test_input_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(UsageError):
        simulate(scaler(), (2.0, 1.0), REPLICA)
    with pytest.raises(UsageError):
        simulate(scaler(), (), REPLICA)
    with pytest.raises(UsageError):
        ClusterModel(gpus=1, gpus_per_replica=2)
    with pytest.raises(UsageError):
        Demand(((0.0, 1.0), (10.0, math.nan)))
    with pytest.raises(UsageError):
        ReplicaModel(max_num_seqs=4, full_service_s=1.0, alone_service_s=2.0)
    with pytest.raises(UsageError, match="one by one"):
        ReplicaModel(max_num_seqs=4, full_service_s=1.0, alone_service_s=0.2)


# Known failures.


def test_d06_a_target_on_running_requests_at_the_slots_is_never_exceeded_and_this_is_said() -> None:
    hpa = scaler(Target(Gauge.RUNNING, 32))
    found = simulate(hpa, even(20.0, 900.0), REPLICA, cluster=QUICK)
    assert len(found.changes) == 1
    assert (figures(found, REPLICA, SLO_S).attainment or 0.0) < 0.01
    (sentence,) = out_of_reach(hpa.hpa, REPLICA)
    assert "never be exceeded" in sentence
    assert "below 29" in sentence


@pytest.mark.parametrize(
    ("target", "stuck"),
    [
        (Target(Gauge.RUNNING, 29.5), True),
        (Target(Gauge.RUNNING, 29), False),
        (Target(Gauge.IN_FLIGHT, 32), False),
        (Target(Gauge.WAITING, 1000), False),
        (Target(Gauge.RUNNING, 60, TargetKind.VALUE), True),
        (Target(Gauge.RUNNING, 30, TargetKind.PODS), True),
    ],
)
def test_d06_reach_is_what_the_simulator_shows(target: Target, stuck: bool) -> None:
    hpa = scaler(target)
    found = simulate(hpa, even(40.0, 1200.0), REPLICA, cluster=QUICK)
    assert bool(out_of_reach(hpa.hpa, REPLICA)) is stuck
    assert (len(found.changes) == 1) is stuck


D07_STEP = even(3.0, 600.0) + even(14.0, 3000.0, 600.0)
"""At 600 s the load rises to what four replicas serve."""


def test_d07_default_policies_cascade_while_the_weights_load() -> None:
    found = simulate(scaler(Target(Gauge.WAITING, 5), max_replicas=64), D07_STEP, REPLICA, cluster=SLOW)
    assert figures(found, REPLICA, SLO_S).needed == 4
    assert wanted_at(found, 600.0 + 90.0) == 64


def test_d07_a_policy_as_long_as_the_load_time_bounds_the_overshoot() -> None:
    """Later periods may add more, as long as there is a backlog; never three times what is needed."""
    bounded = Behavior(up=Rules(policies=(Policy(PolicyKind.PODS, 3, 345),)))
    found = simulate(scaler(behavior=bounded, max_replicas=64), D07_STEP, REPLICA, cluster=SLOW)
    for begin, change in enumerate(found.changes):
        within = [later.wanted for later in found.changes[begin:] if later.t_s < change.t_s + 345.0]
        assert max(within) <= change.wanted + 3
    assert figures(found, REPLICA, SLO_S).overshoot <= 9


def test_d07_pods_that_are_loading_do_not_multiply_the_wish() -> None:
    """A Value target is a ratio of the pods that are ready: two are ready, and sixteen are never asked for."""
    ratio = scaler(Target(Gauge.IN_FLIGHT, 48, TargetKind.VALUE), min_replicas=2, behavior=None)
    found = simulate(ratio, even(10.0, 240.0), REPLICA, cluster=SLOW)
    in_flight = max(sample.waiting + sample.running for sample in found.samples)
    assert max(change.wanted for change in found.changes) <= math.ceil(in_flight / 48 * 2)


OUTAGE_S = (900.0, 1800.0)


def in_outage(broken: Broken, keda: KedaSettings) -> Simulation:
    hpa = scaler(keda=keda, min_replicas=max(keda.min_replicas, 1))
    path = MetricPath(outages=(Outage(broken, *OUTAGE_S),))
    return simulate(hpa, even(10.0, 2700.0), REPLICA, path=path, cluster=QUICK, initial_replicas=4)


def test_d10_series_that_are_gone_look_like_an_idle_engine_unless_null_values_count() -> None:
    blind = in_outage(Broken.SCRAPES, KedaSettings(min_replicas=1))
    seeing = in_outage(Broken.SCRAPES, KedaSettings(min_replicas=1, ignore_null_values=False))
    assert (blind.syncs_without_metric, wanted_at(blind, OUTAGE_S[1])) == (0, 1)
    assert (seeing.syncs_without_metric, wanted_at(seeing, OUTAGE_S[1])) == (60, wanted_at(seeing, OUTAGE_S[0]))


def test_d11_an_outage_takes_a_workload_to_zero_and_it_never_comes_back() -> None:
    """No engine, no series; no series, no reason to start one."""
    found = in_outage(Broken.SCRAPES, KedaSettings(min_replicas=0))
    assert wanted_at(found, OUTAGE_S[1]) == 0
    assert found.changes[-1].wanted == 0
    assert len(found.lost) > 0.4 * len(found.arrivals_s)


def test_d11_a_failing_query_changes_nothing_and_a_fallback_answers_after_its_failures() -> None:
    holding = in_outage(Broken.QUERIES, KedaSettings(min_replicas=1))
    falling_back = in_outage(
        Broken.QUERIES, KedaSettings(min_replicas=1, fallback=Fallback(replicas=8, failure_threshold=3))
    )
    before = wanted_at(holding, OUTAGE_S[0])
    assert wanted_at(holding, OUTAGE_S[1] - 1) == before
    assert wanted_at(falling_back, OUTAGE_S[0] + 3 * 15.0 - 1) == before
    assert wanted_at(falling_back, OUTAGE_S[0] + 3 * 15.0) == 8
    assert falling_back.syncs_without_metric == 3


def test_d15_gauges_that_are_exported_twice_ask_for_twice_the_replicas() -> None:
    once, twice = (
        simulate(scaler(), even(9.0, 900.0), REPLICA, path=MetricPath(gauge_copies=copies), cluster=QUICK)
        for copies in (1, 2)
    )
    assert (once.changes[-1].wanted, twice.changes[-1].wanted) == (3, 6)


def test_d17_success_is_ready_and_not_wanted() -> None:
    starved = simulate(scaler(), even(10.0, 1200.0), REPLICA, cluster=replace(QUICK, gpus=1))
    seen = figures(starved, REPLICA, SLO_S)
    assert seen.peak_wanted == 16
    assert seen.peak_ready == 1
    assert seen.longest_unmet_s > 1000.0
    assert seen.attainment is not None
    assert seen.attainment < 0.5


def test_d20_an_idle_engine_scales_in_and_an_absent_series_does_not() -> None:
    keda = KedaSettings(min_replicas=1, ignore_null_values=False)
    absent = MetricPath(outages=(Outage(Broken.SCRAPES, 0.0, 900.0),))
    idle, blind = (
        simulate(scaler(keda=keda), (1.0,), REPLICA, path=path, cluster=QUICK, duration_s=900.0, initial_replicas=4)
        for path in (MetricPath(), absent)
    )
    assert idle.changes[-1].wanted == 1
    assert len(blind.changes) == 1


def test_waiting_requests_alone_make_an_autoscaler_flap_and_requests_in_flight_do_not() -> None:
    """With enough replicas nothing waits, so that the replicas are taken away again."""
    steady = even(10.0, 7200.0)
    waiting = simulate(scaler(Target(Gauge.WAITING, 5)), steady, REPLICA, cluster=SLOW)
    in_flight = simulate(scaler(), steady, REPLICA, cluster=SLOW)
    assert direction_changes(waiting.changes) >= 6
    assert direction_changes(in_flight.changes) <= 1


def test_cached_metrics_are_as_old_as_the_last_poll() -> None:
    step = even(0.5, 100.0) + even(20.0, 200.0, 100.0)
    keda = KedaSettings(min_replicas=1, use_cached_metrics=True, polling_interval_s=75.0)
    found = simulate(scaler(keda=keda), step, REPLICA, cluster=QUICK)
    assert found.changes[1].t_s == 150.0


def test_keda_takes_an_idle_workload_to_zero_after_its_cooldown() -> None:
    keda = KedaSettings(min_replicas=0, polling_interval_s=30.0, cooldown_s=60.0)
    found = simulate(scaler(keda=keda), (1.0, 2.0), REPLICA, cluster=QUICK, duration_s=600.0, initial_replicas=1)
    assert [(change.wanted, change.reason) for change in found.changes] == [(1, "start"), (0, "KEDA")]
    assert found.changes[1].t_s == pytest.approx(90.0, abs=30.0)


# Properties.

BEHAVIORS = st.builds(
    Behavior,
    up=st.builds(
        Rules,
        policies=st.tuples(st.builds(Policy, st.sampled_from(PolicyKind), st.integers(1, 100), st.integers(15, 600))),
        window_s=st.integers(0, 120),
    ),
    down=st.builds(
        Rules,
        policies=st.tuples(st.builds(Policy, st.sampled_from(PolicyKind), st.integers(1, 100), st.integers(15, 600))),
        window_s=st.integers(0, 300),
    ),
)
LOADS = st.lists(st.floats(0.0, 20.0), min_size=3, max_size=6).map(
    lambda rates: Demand(tuple((150.0 * index, rate) for index, rate in enumerate(rates)))
)


@given(
    behavior=BEHAVIORS,
    load=LOADS,
    gauge=st.sampled_from(Gauge),
    kind=st.sampled_from(TargetKind),
    minimum=st.integers(1, 3),
    gpus=st.one_of(st.none(), st.integers(1, 8)),
)
@settings(max_examples=60, deadline=None)
def test_replicas_stay_in_bounds_and_no_pod_has_a_gpu_that_is_not_there(
    behavior: Behavior, load: Demand, gauge: Gauge, kind: TargetKind, minimum: int, gpus: int | None
) -> None:
    hpa = scaler(Target(gauge, 8, kind), min_replicas=minimum, max_replicas=8, behavior=behavior)
    cluster = replace(QUICK, gpus=None if gpus is None else max(gpus, minimum))
    found = simulate(hpa, load.arrivals(), REPLICA, cluster=cluster, duration_s=load.duration_s)
    for sample in found.samples:
        assert minimum <= sample.wanted <= 8
        assert sample.ready <= sample.scheduled <= min(sample.wanted, cluster.places)


@given(rate=st.floats(0.5, 16.0), threshold=st.integers(8, 28), behavior=BEHAVIORS)
@settings(max_examples=40, deadline=None)
def test_a_constant_load_that_is_served_from_the_start_makes_nothing_flap(
    rate: float, threshold: int, behavior: Behavior
) -> None:
    """Requests in flight reach their plateau within the time in the engine, and stay there."""
    enough = max(math.ceil(rate * REPLICA.full_service_s / threshold), math.ceil(rate / REPLICA.rate_per_s) + 1)
    down = replace(behavior.down, window_s=300)
    hpa = scaler(Target(Gauge.IN_FLIGHT, threshold), max_replicas=60, behavior=replace(behavior, down=down))
    found = simulate(hpa, even(rate, 900.0), REPLICA, cluster=QUICK, duration_s=900.0, initial_replicas=enough)
    assert direction_changes(found.changes) == 0


@given(load=LOADS, window_s=st.integers(15, 600))
@settings(max_examples=40, deadline=None)
def test_no_replica_goes_within_the_window_after_one_came(load: Demand, window_s: int) -> None:
    """A replica that came was wanted at that sync, which the window remembers."""
    behavior = Behavior(up=DEFAULT_UP, down=Rules(policies=(Policy(PolicyKind.PERCENT, 100, 15),), window_s=window_s))
    found = simulate(scaler(behavior=behavior), load.arrivals(), REPLICA, cluster=QUICK, duration_s=load.duration_s)
    for before, after in itertools.pairwise(found.changes):
        if after.wanted < before.wanted:
            recent = [change for change in found.changes[1:] if after.t_s - window_s < change.t_s < after.t_s]
            came = [
                late.wanted
                for early, late in itertools.pairwise(found.changes)
                if late in recent and late.wanted > early.wanted
            ]
            assert after.wanted >= max(came, default=0)


def test_the_same_inputs_give_the_same_curve() -> None:
    arrivals = Demand(((0.0, 2.0), (600.0, 15.0))).arrivals(seed=5)
    runs = [simulate(scaler(), arrivals, REPLICA, cluster=replace(QUICK, routing=Routing.RANDOM)) for _ in range(2)]
    assert runs[0] == runs[1]
