"""Engines that exist only while somebody needs them: a GPU costs as much idle as busy.

With no replica there is no engine and no queue, so that nothing the engine exports can ever wake it. What wakes it has
to be there without it: here the pods of the batch job that will ask.
"""

import pytest

from shakedown.judge.expectations import fact, outcome_share
from shakedown.judge.records import Outcome
from shakedown.load import Burst, TrafficClass, Workload
from shakedown.serving.configuration import Serving
from shakedown.serving.placeholders import placeholders
from shakedown.serving.reach import await_answer
from shakedown.serving.scaling import Autoscaling, waiting_requests
from shakedown.waiting import wait_until

JOB = 16
TALK = TrafficClass(prompt_tokens=64, max_tokens=32)
ENGINE = Serving(replicas=1, device="L4", engine_args=(("--max-num-seqs", "16"),))
COOLDOWN_S = 75
ZERO_WITHIN_S, AWAKE_WITHIN_S = 90.0, 120.0
BATCH_JOB = "batch-job"


@pytest.mark.certify
@pytest.mark.serving(ENGINE)
async def test_an_idle_engine_goes_and_comes_back_for_a_job(vllm, autoscale, open_loop, scenario):
    """Nobody asks: the last replica goes. A batch job starts: one comes, answers all of it, and goes with it."""
    absent_is_nobody = f"{waiting_requests(vllm)} or vector(0)"
    wakes = Autoscaling(
        threshold=5, minimum=0, maximum=2, cooldown_s=COOLDOWN_S, wakes_for=f"app={BATCH_JOB}", query=absent_is_nobody
    )
    await autoscale(vllm, wakes)
    await wait_until("no replica", vllm.pods, lambda pods: not pods, within_s=ZERO_WITHIN_S)

    async with placeholders(vllm, BATCH_JOB, 1):
        await await_answer(f"{vllm.url}/health", within_s=AWAKE_WITHIN_S)
        async with open_loop(vllm, Burst(JOB), Workload((TALK,), seed=scenario.seed), duration_s=1) as load:
            await load.done()
        scenario.fact("replicas while the job ran", len(await vllm.ready_pods()))
    gone = await wait_until("no replica again", vllm.pods, lambda pods: not pods, within_s=ZERO_WITHIN_S)
    scenario.fact("replicas after the job", len(gone))

    scenario.expect(fact("replicas while the job ran"), equals=1)
    scenario.expect(fact("replicas after the job"), equals=0)
    scenario.expect(outcome_share(Outcome.COMPLETED), at_least=1.0)
