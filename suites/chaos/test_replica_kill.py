"""One of two replicas is killed while users are reading their answers.

The users of the dead replica lose what was in flight, and nobody else may notice: new requests go to the survivor at
once, and the lost replica is back within its startup budget.
"""

import pytest

from shakedown.chaos import Count, Target, kill_pods
from shakedown.judge.expectations import goodput, lost_beyond_in_flight, time_to_recovery
from shakedown.judge.objectives import SLO
from shakedown.load import Poisson, TrafficClass, Workload

WHAT_USERS_EXPECT = SLO(ttft_s=1.5, tpot_s=0.1)
GOODPUT_WE_MAY_LOSE = 0.15
USERS_RECOVER_WITHIN_S = 15.0
REPLICA_RETURNS_WITHIN_S = 90.0

pytestmark = [pytest.mark.smoke, pytest.mark.harms_its_engine]


async def test_users_keep_their_goodput_when_a_replica_is_killed(vllm, open_loop, chaos, scenario):
    """Killing one of two replicas costs users their answers in flight and nothing else."""
    talk = Workload((TrafficClass(prompt_tokens=96, max_tokens=96),), seed=scenario.seed)

    async with open_loop(vllm, Poisson(rate=6, seed=scenario.seed), talk, duration_s=25) as load:
        await load.until(completed=30)
        journal = await chaos(kill_pods(Target(vllm.namespace, vllm.selector, Count(1))))
        await load.done()
    await vllm.await_rolled_out(REPLICA_RETURNS_WITHIN_S)

    scenario.guard("the replica is gone by its uid", journal.fault_landed)
    scenario.expect(goodput(WHAT_USERS_EXPECT), at_least=1 - GOODPUT_WE_MAY_LOSE)
    scenario.expect(lost_beyond_in_flight(), at_most=0)
    scenario.expect(time_to_recovery(WHAT_USERS_EXPECT), at_most=USERS_RECOVER_WITHIN_S)
