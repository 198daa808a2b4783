"""The autoscaler goes blind: Prometheus, KEDA's metrics server and KEDA's operator are taken away in turn, under load.

Not to know the queue is no reason to believe that it is empty. Replicas must stay, and the loop must close again by
itself when its parts are back.
"""

import pytest

from shakedown.chaos import Count, Target
from shakedown.chaos.faults import Scale
from shakedown.judge.expectations import link_outage, lost_requests, lowest
from shakedown.judge.loop import DESIRED, READY
from shakedown.judge.windows import Phase
from shakedown.load import ClosedLoop, TrafficClass, Workload
from shakedown.serving.configuration import Serving
from shakedown.serving.scaling import Autoscaling
from shakedown.waiting import wait_until

USERS = ClosedLoop(users=60)
"""16 run on each of three replicas, so that always more wait than the threshold allows to one."""
TALK = TrafficClass(prompt_tokens=64, max_tokens=64)
ENGINE = Serving(replicas=1, device="L4", engine_args=(("--max-num-seqs", "16"),))
BY_THE_QUEUE = Autoscaling(threshold=3, minimum=1, maximum=2)
SCALED_WITHIN_S = 120.0
CLOSED_AGAIN_WITHIN_S = 60.0
AWAY_S = 15.0
"""Three rounds of the HPA, and three of KEDA's polling at the time scale of a run."""

PARTS = {
    "Prometheus": Target(namespace="llm-monitoring", selector="app=prometheus", how_many=Count(1)),
    "KEDA's metrics server": Target(namespace="keda", selector="app=keda-metrics-apiserver", how_many=Count(1)),
    "KEDA's operator": Target(namespace="keda", selector="app=keda-operator", how_many=Count(1)),
}


@pytest.mark.serving(ENGINE)
async def test_a_blind_autoscaler_keeps_its_replicas_and_sees_again(vllm, autoscale, open_loop, chaos, scenario):
    """Each source of the number is taken away in turn under load: replicas stay, and every link answers again."""
    scaled = await autoscale(vllm, BY_THE_QUEUE)

    async with open_loop(vllm, USERS, Workload((TALK,), seed=scenario.seed), duration_s=600) as load:
        await wait_until("two Ready replicas", vllm.ready_pods, lambda pods: len(pods) == 2, within_s=SCALED_WITHIN_S)
        for part in PARTS.values():
            await chaos(Scale(target=part, replicas=0, duration_s=AWAY_S), spares_nobody=True)
        await wait_until(
            "an HPA that computes again",
            scaled.hpa,
            lambda seen: seen is not None and seen.active,
            within_s=CLOSED_AGAIN_WITHIN_S,
        )
        load.stop()

    scenario.expect(link_outage("Prometheus"), at_least=AWAY_S / 2)
    scenario.expect(link_outage("the metrics API"), at_least=AWAY_S)
    scenario.expect(lowest(DESIRED, during=Phase.DURING), at_least=2)
    scenario.expect(lowest(READY, during=Phase.DURING), at_least=2)
    scenario.expect(lost_requests(), at_most=0)
