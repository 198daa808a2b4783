"""The simulator searches settings in seconds; that is worth something only if it does what the real loop does.

Three loads go to a real deployment under a real autoscaler. The same arrivals, with the load time and the service time
that were measured on the way, go through the simulator. Both curves are drawn; the largest difference is stated.
"""

from dataclasses import replace

import pytest
import yaml

from shakedown.judge.expectations import fact, outcome_share, peak
from shakedown.judge.loop import DESIRED, MORE_READY, SCALER, SIMULATED, scale_out
from shakedown.judge.percentiles import percentile
from shakedown.judge.records import MarkKind, MetricSample, Outcome, Recorded
from shakedown.load import Ramp, Sinusoid, Steps, TrafficClass, Workload
from shakedown.serving.autoscaling.declared import declared
from shakedown.serving.autoscaling.metric_path import MetricPath
from shakedown.serving.autoscaling.replica import ReplicaModel
from shakedown.serving.autoscaling.simulator import Sample, simulate
from shakedown.serving.autoscaling.workload import ClusterModel
from shakedown.serving.configuration import Serving
from shakedown.serving.scaling import Autoscaling, scaled_object

SLOTS = 16
ENGINE = Serving(replicas=1, device="L4", engine_args=(("--max-num-seqs", str(SLOTS)),), drain_s=30)
TALK = TrafficClass(prompt_tokens=64, max_tokens=64)
"""An L4 with 16 sequences gives 3.5 such answers a second."""
BY_THE_QUEUE = Autoscaling(threshold=5, minimum=1, maximum=3, scale_down_window_s=100)
LASTS_S = 75.0
LOADS = {
    "a step": Steps(((2.0, 10.0), (8.0, LASTS_S))),
    "a ramp": Ramp(start_rate=1.0, end_rate=10.0),
    "a wave": Sinusoid(mean_rate=4.5, amplitude=0.9, period_s=50.0),
}
HPA_SYNC_S, SCRAPE_S = 5.0, 2.0
"""As the embedded cluster has them."""
MEAN_DIFFERENCE = 0.5
"""Of a replica, over the whole load: the phase of the HPA's rounds alone shifts a step by up to a round in 75 s."""


@pytest.mark.certify
@pytest.mark.serving(ENGINE)
@pytest.mark.parametrize("arrivals", LOADS.values(), ids=LOADS.keys())
async def test_the_simulator_scales_as_the_real_loop_does(vllm, autoscale, open_loop, scenario, arrivals):
    """For the same arrivals the simulated autoscaler wants as many replicas as the real one, step by step."""
    scaled = await autoscale(vllm, BY_THE_QUEUE)
    async with open_loop(vllm, arrivals, Workload((TALK,), seed=scenario.seed), duration_s=LASTS_S) as load:
        await load.done()

    recorded = scenario.bundle.recorded()
    start = min(mark.at for mark in recorded.marks if mark.kind is MarkKind.LOAD_STARTED)
    path = scenario.bundle.manifest("scaledobject", yaml.safe_dump(scaled_object(scaled)))
    simulated = simulated_wishes(str(path), recorded, start)
    for sample in simulated:
        scenario.bundle.sample(
            MetricSample(at=start + sample.t_s, pod="simulator", values={SIMULATED: float(sample.wanted)})
        )
    differences = [abs(sample.wanted - real_wish(recorded, start + sample.t_s)) for sample in simulated]
    scenario.fact("largest difference in replicas wanted", max(differences))
    scenario.fact("mean difference in replicas wanted", sum(differences) / len(differences))
    scenario.fact("most replicas that the simulator wanted", max(sample.wanted for sample in simulated))
    scenario.expect(fact("mean difference in replicas wanted"), at_most=MEAN_DIFFERENCE)
    scenario.expect(fact("most replicas that the simulator wanted"), equals=3)
    scenario.expect(peak(DESIRED), equals=3)
    scenario.expect(outcome_share(Outcome.COMPLETED), at_least=1.0)


def simulated_wishes(scaled_object_file: str, recorded: Recorded, start: float) -> tuple[Sample, ...]:
    """The simulator's answer to the arrivals of a recorded load."""
    autoscaler = declared([scaled_object_file])
    autoscaler = replace(autoscaler, hpa=replace(autoscaler.hpa, sync_period_s=HPA_SYNC_S))
    return simulate(
        autoscaler,
        [record.due_at - start for record in recorded.requests],
        measured_replica(recorded),
        path=MetricPath(scrape_interval_s=SCRAPE_S),
        cluster=ClusterModel(load_s=measured_load_s(recorded), schedule_s=0.5, ready_lag_s=0.5),
        duration_s=LASTS_S,
        sample_every_s=0.5,
    ).samples


def measured_replica(recorded: Recorded) -> ReplicaModel:
    """Time in the engine alone and in a full batch, from the first word to the last."""
    talking = [record.finished_at - record.token_times[0] for record in recorded.requests if record.token_times]
    quick, full = percentile(talking, 5) or 1.0, percentile(talking, 90) or 1.0
    return ReplicaModel(max_num_seqs=SLOTS, alone_service_s=quick, full_service_s=full)


def measured_load_s(recorded: Recorded) -> float:
    """From the moment that a pod had a node until it was Ready."""
    links = scale_out(recorded.samples, recorded.marks, BY_THE_QUEUE.threshold)
    return next(link.latency_s for link in links if link.name == MORE_READY) or 0.0


def real_wish(recorded: Recorded, at: float) -> float:
    wishes = [s.values[DESIRED] for s in recorded.samples if s.pod == SCALER and s.at <= at and DESIRED in s.values]
    return wishes[-1] if wishes else 1.0
