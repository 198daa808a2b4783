"""Weights load for minutes, and the autoscaler looks every few seconds: while it waits it still sees the old queue.

Asked again and again it wants ever more replicas for one need, and they all arrive when the queue is gone. A scale-up
policy as long as the load time adds one step, waits for its effect, and looks again.
"""

import pytest

from shakedown.judge.expectations import changes_of_mind, outcome_share, peak
from shakedown.judge.loop import DESIRED, READY
from shakedown.judge.records import Outcome
from shakedown.load import Constant, TrafficClass, Workload
from shakedown.serving.configuration import Serving
from shakedown.serving.scaling import Autoscaling
from shakedown.waiting import wait_until

STEADY = Constant(rate=4.5)
"""An L4 with 16 sequences gives 3.5 of these answers a second: two replicas are enough."""
TALK = TrafficClass(prompt_tokens=64, max_tokens=64)
ENOUGH, GPUS_OFFERED = 2, 5
LOADS_S = 200.0
"""At time scale 1; at 0.2 forty seconds, eight rounds of the HPA."""
SLOW = Serving(replicas=1, device="L4", engine_args=(("--max-num-seqs", "16"),), weights_load_s=LOADS_S)
READY_WITHIN_S = 150.0
HASTY = Autoscaling(threshold=5, maximum=GPUS_OFFERED, scale_up_pods=4, scale_up_period_s=15)
"""What Kubernetes does when nobody says otherwise: up to four pods each 15 s."""
PATIENT = Autoscaling(threshold=5, maximum=GPUS_OFFERED, scale_up_pods=1, scale_up_period_s=300)

pytestmark = [
    pytest.mark.certify,
    pytest.mark.serving(SLOW),
    pytest.mark.compared("Slow pods under two scale-up policies"),
]


async def test_a_hasty_policy_wants_every_gpu_for_a_need_of_one(vllm, autoscale, open_loop, scenario):
    """The failure is real: with Kubernetes' default policy the autoscaler runs away to its maximum."""
    await until_the_second_is_ready(vllm, autoscale, open_loop, scenario, HASTY)

    scenario.expect(peak(DESIRED), equals=GPUS_OFFERED)


async def test_a_policy_as_long_as_the_load_time_wants_what_is_needed(vllm, autoscale, open_loop, scenario):
    """One replica for each load time: never more than one beyond the need is wanted, and nothing is lost."""
    await until_the_second_is_ready(vllm, autoscale, open_loop, scenario, PATIENT)

    scenario.expect(peak(DESIRED), at_most=ENOUGH + 1)
    scenario.expect(peak(READY), at_least=ENOUGH)
    scenario.expect(changes_of_mind(), at_most=0)
    scenario.expect(outcome_share(Outcome.COMPLETED, Outcome.ABANDONED), at_least=1.0)


async def until_the_second_is_ready(vllm, autoscale, open_loop, scenario, policy) -> None:
    """A steady load that one replica cannot carry, until the next one has been serving for a while."""
    await vllm.await_rolled_out()
    await autoscale(vllm, policy)
    async with open_loop(vllm, STEADY, Workload((TALK,), seed=scenario.seed), duration_s=600) as load:
        await wait_until(
            "a second Ready replica", vllm.ready_pods, lambda pods: len(pods) >= ENOUGH, within_s=READY_WITHIN_S
        )
        await load.until(completed=load.progress.completed + 100, within_s=READY_WITHIN_S)
        load.stop()
