"""An autoscaler is always late by the time that a replica loads; how steep a growth that allows can be computed.

`shakedown plan --autoscale` says which requests in flight a replica may have so that the SLO holds until the next one
serves, and up to which growth. Here the advice is taken: the growth that it promises to follow, and a multiple of it.
"""

import pytest

from shakedown.judge.expectations import outcome_share, peak, percentile_ttft
from shakedown.judge.loop import READY
from shakedown.judge.records import Outcome
from shakedown.load import Steps, TrafficClass, Workload
from shakedown.serving.autoscaling.metric_path import MetricPath
from shakedown.serving.autoscaling.recommend import Needs, Recommendation, recommend
from shakedown.serving.autoscaling.replica import ReplicaModel
from shakedown.serving.autoscaling.workload import ClusterModel
from shakedown.serving.configuration import Serving
from shakedown.serving.scaling import Autoscaling, requests_in_flight

SLOTS = 16
ENGINE = Serving(replicas=1, device="L4", engine_args=(("--max-num-seqs", str(SLOTS)),), drain_s=30)
TALK = TrafficClass(prompt_tokens=64, max_tokens=64)
FIRST_WORD_WITHIN_S = 3.0
LOADS_S = 25.0
"""An engine boots in 12 s alone, and in twice that beside others on two cores."""
WHAT_IS_KNOWN = Needs(
    replica=ReplicaModel(max_num_seqs=SLOTS, alone_service_s=4.3, full_service_s=4.6, prefill_s=0.1),
    slo_ttft_s=FIRST_WORD_WITHIN_S,
    growth_per_min=4.0,
    max_replicas=3,
    sync_period_s=5.0,
    path=MetricPath(scrape_interval_s=2.0),
    cluster=ClusterModel(load_s=LOADS_S, schedule_s=0.5, ready_lag_s=0.5, drain_s=6.0),
)
START_RATE, END_RATE, STAYS_S, STAIRS = 1.5, 6.0, 20.0, 30
"""Answers a second: from less than half of what one replica gives (3.5) to what three are advised to carry."""
TOO_STEEP = 8

pytestmark = [
    pytest.mark.certify,
    pytest.mark.serving(ENGINE),
    pytest.mark.compared("Growth that an autoscaler can follow, and growth that it cannot"),
]


async def test_growth_that_the_advice_can_follow_keeps_the_slo(vllm, autoscale, open_loop, scenario):
    """As steep as the advice promises: replicas come before the queue does, and people's first word stays in time."""
    await grown(vllm, autoscale, open_loop, scenario, times=1.0)

    scenario.expect(percentile_ttft(95), at_most=FIRST_WORD_WITHIN_S)
    scenario.expect(peak(READY), at_least=2)
    scenario.expect(outcome_share(Outcome.COMPLETED), at_least=1.0)


async def test_growth_of_many_times_that_breaks_it(vllm, autoscale, open_loop, scenario):
    """The failure is real: the same advice under a growth that it does not promise to follow misses the SLO."""
    await grown(vllm, autoscale, open_loop, scenario, times=TOO_STEEP)

    scenario.expect(percentile_ttft(95), at_least=FIRST_WORD_WITHIN_S)


async def grown(vllm, autoscale, open_loop, scenario, *, times: float) -> None:
    """The load climbs as many times as steeply as the advice can follow."""
    advice = recommend(WHAT_IS_KNOWN)
    scenario.fact("growth that the advice can follow (requests a second per minute)", advice.followed_growth_per_min)
    scenario.guard("the advice promises to follow the growth that it was asked for", advice.follows)
    await autoscale(vllm, as_advised(vllm, advice))
    lasts_s = (END_RATE - START_RATE) / (WHAT_IS_KNOWN.growth_per_s * times)
    rise = (END_RATE - START_RATE) / STAIRS
    climb = Steps(tuple((START_RATE + rise * stair, lasts_s / STAIRS) for stair in range(STAIRS)), seed=scenario.seed)
    talk = Workload((TALK,), seed=scenario.seed)
    async with open_loop(vllm, climb, talk, duration_s=lasts_s + STAYS_S) as load:
        await load.done()


def as_advised(vllm, advice: Recommendation) -> Autoscaling:
    """The advice is in the seconds of the run, and an Autoscaling in those of time scale 1."""
    behavior = advice.autoscaler.hpa.behavior
    assert behavior is not None
    up = behavior.up.policies[0]
    return Autoscaling(
        threshold=advice.target.threshold,
        minimum=advice.autoscaler.hpa.min_replicas,
        maximum=WHAT_IS_KNOWN.max_replicas,
        query=requests_in_flight(vllm),
        scale_up_pods=round(up.value),
        scale_up_period_s=round(up.period_s / vllm.settings.time_scale),
        scale_down_window_s=round(behavior.down.window_s / vllm.settings.time_scale),
    )
