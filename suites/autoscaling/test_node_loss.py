"""A node goes dark while the autoscaler is at work: nobody evicts its replica, and the Service asks it for a while.

The lost replica still counts as a pod, and its requests no longer count as waiting. The autoscaler must see the need
all the same, and find it a place on the node that is left. That takes a maximum that leaves room for what is lost: to
an HPA the pods of a dark node are replicas like others.
"""

import asyncio

import pytest

from shakedown.chaos import Count, Target
from shakedown.chaos.faults import NodeLoss
from shakedown.judge.expectations import changes_of_mind, fact, lowest, peak
from shakedown.judge.loop import DESIRED
from shakedown.judge.windows import Phase
from shakedown.load import Constant, Limits, TrafficClass, Workload
from shakedown.serving.configuration import Serving
from shakedown.serving.scaling import Autoscaling, requests_in_flight
from shakedown.waiting import wait_until

STEADY = Constant(rate=5.0)
"""An L4 with 16 sequences gives 3.5 of these answers a second: two carry it, and one does not."""
TALK = TrafficClass(prompt_tokens=64, max_tokens=64)
ENGINE = Serving(replicas=1, device="L4", engine_args=(("--max-num-seqs", "16"),))
IN_FLIGHT_EACH = 12
"""Of 16 sequences: the load has 22 in flight, which two replicas share."""
READY_WITHIN_S = 120.0
DARK_S = 90.0
"""After Kubernetes has noticed, which takes it 20 s; long enough for the next step up and for its replica to boot."""


@pytest.mark.certify
@pytest.mark.harms_its_engine
@pytest.mark.serving(ENGINE)
async def test_a_replica_lost_with_its_node_is_made_up_for(vllm, autoscale, open_loop, chaos, scenario):
    """Of two replicas one goes dark with its node: the autoscaler adds one on the other node, and forgets none."""
    in_flight = requests_in_flight(vllm)
    # One replica at a time, and the next when the last has helped.
    patient = Autoscaling(threshold=IN_FLIGHT_EACH, maximum=4, scale_up_pods=1, scale_up_period_s=300, query=in_flight)
    await autoscale(vllm, patient)
    talk = Workload((TALK,), seed=scenario.seed)
    async with open_loop(vllm, STEADY, talk, duration_s=900, limits=Limits(silence_s=20)) as load:
        pods = await wait_until(
            "two Ready replicas", vllm.ready_pods, lambda pods: len(pods) == 2, within_s=READY_WITHIN_S
        )
        scenario.guard("the replicas stand on two nodes", len({pod.node for pod in pods}) == 2)
        a_node = Target(namespace=vllm.namespace, selector=vllm.selector, how_many=Count(1))
        async with asyncio.TaskGroup() as meanwhile:
            meanwhile.create_task(chaos(NodeLoss(target=a_node, duration_s=DARK_S)))
            made_up_for = await wait_until(
                "two Ready replicas on one node",
                vllm.ready_pods,
                lambda pods: len(pods) == 2 and len({pod.node for pod in pods}) == 1,
                within_s=READY_WITHIN_S,
            )
            scenario.fact("replicas Ready while the node was dark", len(made_up_for))
        load.stop()

    scenario.expect(lowest(DESIRED, during=Phase.DURING), at_least=2)
    scenario.expect(peak(DESIRED), at_least=3)
    scenario.expect(fact("replicas Ready while the node was dark"), equals=2)
    scenario.expect(changes_of_mind(), at_most=0)
