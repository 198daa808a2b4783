"""A new version is rolled out while an autoscaler owns the number of replicas.

A manifest that counts replicas is a second owner: applying it takes away what the autoscaler has added. Without a count
the rollout replaces pods one by one, and the number stays the autoscaler's.
"""

from contextlib import asynccontextmanager

import pytest

from shakedown.chaos import Count, Percent, Target
from shakedown.chaos.faults import RolloutRestart, Scale
from shakedown.judge.expectations import changes_of_mind, lost_requests, lowest
from shakedown.judge.loop import DESIRED, READY
from shakedown.judge.windows import Phase
from shakedown.load import Constant, TrafficClass, Workload
from shakedown.serving.configuration import Serving
from shakedown.serving.scaling import Autoscaling, HpaView, requests_in_flight
from shakedown.waiting import wait_until

STEADY = Constant(rate=5.0)
"""An L4 with 16 sequences gives 3.5 of these answers a second: two carry it."""
TALK = TrafficClass(prompt_tokens=64, max_tokens=64)
ENGINE = Serving(replicas=1, device="L4", engine_args=(("--max-num-seqs", "16"),), drain_s=30)
IN_FLIGHT_EACH = 12
"""Of 16 sequences: the load has 22 in flight, which two replicas share, and no queue once there are two."""
IN_THE_MANIFEST = 1
READY_WITHIN_S, ROLLED_OUT_WITHIN_S, WANTED_WITHIN_S = 120.0, 240.0, 60.0

pytestmark = [
    pytest.mark.certify,
    pytest.mark.harms_its_engine,
    pytest.mark.serving(ENGINE),
    pytest.mark.compared("A rollout with and without a count of replicas"),
]


async def test_a_manifest_that_counts_replicas_takes_away_what_was_added(vllm, autoscale, open_loop, chaos, scenario):
    """The failure is real: applying `replicas: 1` halves a deployment that the autoscaler has doubled."""
    applied = Target(namespace=vllm.namespace, selector=vllm.selector, how_many=Count(1))
    async with on_two_replicas(vllm, autoscale, open_loop, scenario) as scaled:
        await chaos(Scale(target=applied, replicas=IN_THE_MANIFEST, duration_s=0))
        await wait_until("two wanted again", scaled.hpa, wants_two, within_s=WANTED_WITHIN_S)

    scenario.expect(lowest(READY, during=Phase.DURING), at_most=IN_THE_MANIFEST)


async def test_without_a_count_a_rollout_keeps_the_autoscalers_number(vllm, autoscale, open_loop, chaos, scenario):
    """Every pod is replaced under load: two are always Ready, the autoscaler does not waver, and nobody is cut off."""
    everybody = Target(namespace=vllm.namespace, selector=vllm.selector, how_many=Percent(100))
    async with on_two_replicas(vllm, autoscale, open_loop, scenario):
        await chaos(RolloutRestart(target=everybody, within_s=ROLLED_OUT_WITHIN_S))

    scenario.expect(lowest(READY, during=Phase.DURING), at_least=2)
    scenario.expect(lowest(DESIRED, during=Phase.DURING), at_least=2)
    scenario.expect(changes_of_mind(), at_most=0)
    scenario.expect(lost_requests(), at_most=0)


@asynccontextmanager
async def on_two_replicas(vllm, autoscale, open_loop, scenario):
    """A load that has made the autoscaler add a replica, and goes on while the block runs."""
    scaled = await autoscale(vllm, Autoscaling(threshold=IN_FLIGHT_EACH, maximum=2, query=requests_in_flight(vllm)))
    async with open_loop(vllm, STEADY, Workload((TALK,), seed=scenario.seed), duration_s=900) as load:
        await wait_until("two Ready replicas", vllm.ready_pods, lambda pods: len(pods) == 2, within_s=READY_WITHIN_S)
        yield scaled
        load.stop()


def wants_two(seen: HpaView | None) -> bool:
    return seen is not None and seen.desired == 2
