"""One of two replicas is killed while users are reading their answers.

The users of the dead replica lose what was in flight, and nobody else may notice: new requests go to the survivor at
once, and the lost replica is back within its startup budget.
"""

import pytest

from shakedown.chaos import Count, Target
from shakedown.chaos.faults import PodKill
from shakedown.judge.expectations import fact, goodput, lost_beyond_in_flight, time_to_recovery
from shakedown.judge.objectives import SLO
from shakedown.load import Poisson, TrafficClass, Workload

WHAT_USERS_EXPECT = SLO(ttft_s=1.5, tpot_s=0.1)
GOODPUT_WE_MAY_LOSE = 0.15
USERS_RECOVER_WITHIN_S = 15.0

pytestmark = [pytest.mark.smoke, pytest.mark.harms_its_engine]


async def test_users_keep_their_goodput_when_a_replica_is_killed(vllm, open_loop, chaos, scenario):
    """Killing one of two replicas costs users their answers in flight and nothing else."""
    talk = Workload((TrafficClass(prompt_tokens=96, max_tokens=96),), seed=scenario.seed)

    one_of_two = Target(namespace=vllm.namespace, selector=vllm.selector, how_many=Count(1))

    async with open_loop(vllm, Poisson(rate=6, seed=scenario.seed), talk, duration_s=40) as load:
        await load.until(completed=30)
        journal = await chaos(PodKill(target=one_of_two))
        await load.done()

    scenario.fact("the lost replica came back", journal.steady_state_recovered)
    scenario.expect(fact("the lost replica came back"), equals=True)
    scenario.expect(goodput(WHAT_USERS_EXPECT), at_least=1 - GOODPUT_WE_MAY_LOSE)
    scenario.expect(lost_beyond_in_flight(), at_most=0)
    scenario.expect(time_to_recovery(WHAT_USERS_EXPECT), at_most=USERS_RECOVER_WITHIN_S)
