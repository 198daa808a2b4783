"""When the rush is over a replica goes, and some of its readers are in the middle of an answer.

As vLLM comes, SIGTERM drops what is in flight. With a preStop hook that waits until the Service has forgotten the pod
and the engine has nothing left to do, and a grace period that lets it, the same scale-in cuts nobody off.
"""

import pytest

from shakedown.judge.expectations import lost_requests
from shakedown.load import Steps, TrafficClass, Workload
from shakedown.serving.configuration import Serving
from shakedown.serving.scaling import Autoscaling
from shakedown.waiting import wait_until

RUSH_S = 15.0
RUSH = Steps(((4.0, RUSH_S), (1.0, 600.0)))
"""Answers a second: an L4 with 16 sequences gives 1.8 of 128 tokens."""
LONG_ANSWERS = TrafficClass(prompt_tokens=64, max_tokens=128)
BY_THE_QUEUE = Autoscaling(threshold=5, minimum=1, maximum=2, scale_down_window_s=50)
GROWN_WITHIN_S, SHRUNK_WITHIN_S = 90.0, 180.0
ABRUPT = Serving(replicas=1, device="L4", engine_args=(("--max-num-seqs", "16"),))
GRACEFUL = Serving(replicas=1, device="L4", engine_args=(("--max-num-seqs", "16"),), drain_s=30)

pytestmark = [pytest.mark.certify, pytest.mark.compared("A replica goes, with and without time to finish")]


@pytest.mark.serving(ABRUPT)
async def test_as_vllm_comes_a_scale_in_cuts_answers_off(vllm, autoscale, open_loop, scenario):
    """The failure is real: the replica that goes drops the answers that it has begun."""
    await a_rush(vllm, autoscale, open_loop, scenario)

    scenario.expect(lost_requests(), at_least=1)


@pytest.mark.serving(GRACEFUL)
async def test_with_time_to_finish_a_scale_in_cuts_nobody_off(vllm, autoscale, open_loop, scenario):
    """With a preStop hook that waits for an idle engine, and the grace for it, the same scale-in loses no answer."""
    await a_rush(vllm, autoscale, open_loop, scenario)

    scenario.expect(lost_requests(), at_most=0)


async def a_rush(vllm, autoscale, open_loop, scenario) -> None:
    """From one replica to two and back, while somebody is always reading."""
    await autoscale(vllm, BY_THE_QUEUE)
    async with open_loop(vllm, RUSH, Workload((LONG_ANSWERS,), seed=scenario.seed), duration_s=600) as load:
        await wait_until(
            "a second Ready replica", vllm.ready_pods, lambda pods: len(pods) == 2, within_s=GROWN_WITHIN_S
        )
        await wait_until("one pod alone", vllm.pods, lambda pods: len(pods) == 1, within_s=SHRUNK_WITHIN_S)
        load.stop()
