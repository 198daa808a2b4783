"""The autoscaler wants more than there are GPUs for. Wanted is not Ready, and the difference must be said."""

import pytest

from shakedown.judge.expectations import fact, lost_requests, peak
from shakedown.judge.loop import DESIRED
from shakedown.load import ClosedLoop, TrafficClass, Workload
from shakedown.serving.boot import BootState
from shakedown.serving.configuration import Serving
from shakedown.serving.occupied import occupied_gpus
from shakedown.serving.scaling import Autoscaling
from shakedown.waiting import wait_until

USERS = ClosedLoop(users=60)
TALK = TrafficClass(prompt_tokens=64, max_tokens=64)
ENGINE = Serving(replicas=1, device="L4", engine_args=(("--max-num-seqs", "16"),))
WANTS_TWO = Autoscaling(threshold=3, minimum=1, maximum=2)
PENDING_WITHIN_S = 60.0
READY_WITHIN_S = 120.0


@pytest.mark.serving(ENGINE)
async def test_a_replica_without_a_gpu_is_pending_and_said_to_be(vllm, gpus, autoscale, open_loop, scenario):
    """With every GPU taken the new replica stays Pending and is named so; when one is free again it gets Ready."""
    await autoscale(vllm, WANTS_TWO)

    async with open_loop(vllm, USERS, Workload((TALK,), seed=scenario.seed), duration_s=600) as load:
        async with occupied_gpus(vllm, gpus, leave=0):
            boots = await wait_until(
                "a Pending replica",
                vllm.boot,
                lambda boots: any(boot.state is BootState.PENDING for boot in boots),
                within_s=PENDING_WITHIN_S,
            )
            waiting = next(boot for boot in boots if boot.state is BootState.PENDING)
            scenario.fact("why it waits", waiting.sentence)
            scenario.fact("a GPU is what it lacks", "gpu" in waiting.sentence.lower())
            scenario.fact("replicas Ready meanwhile", len(await vllm.ready_pods()))
        pods = await wait_until(
            "two Ready replicas", vllm.ready_pods, lambda pods: len(pods) == 2, within_s=READY_WITHIN_S
        )
        scenario.fact("replicas Ready when a GPU was free", len(pods))
        load.stop()

    scenario.expect(fact("a GPU is what it lacks"), equals=True)
    scenario.expect(fact("replicas Ready meanwhile"), equals=1)
    scenario.expect(peak(DESIRED), equals=2)
    scenario.expect(fact("replicas Ready when a GPU was free"), equals=2)
    scenario.expect(lost_requests(), at_most=0)
