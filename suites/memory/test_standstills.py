"""Users see no text, and the engine's process lives: three things can be the matter, and each wants another remedy.

A thrashing engine sets the same answers back again and again and needs fewer sequences at once; a hung one makes no
token and needs a restart; a dead one is restarting already. They are told apart by what the engine itself exports.
"""

import pytest

from shakedown.chaos import Count, Target
from shakedown.chaos.faults import EngineDeviceError, EngineHang
from shakedown.judge.expectations import time_in
from shakedown.judge.progress import Progress
from shakedown.load import Burst, Poisson, TrafficClass, Workload
from shakedown.serving.configuration import Serving

TALK = TrafficClass(prompt_tokens=64, max_tokens=96)
LONG_ANSWERS = TrafficClass(prompt_tokens=64, max_tokens=600)
TOO_MANY = 48
"""48 × 664 tokens are 31,900, eight times what 256 blocks of 16 hold."""
CRAMPED = Serving(
    replicas=1,
    engine_args=(("--num-gpu-blocks-override", "256"), ("--max-num-seqs", "48"), ("--max-model-len", "1024")),
)
ROOMY = Serving(replicas=1)

pytestmark = [pytest.mark.certify, pytest.mark.harms_its_engine]


@pytest.mark.serving(CRAMPED)
async def test_an_engine_that_sets_answers_back_again_and_again_is_thrashing(vllm, open_loop, scenario):
    """Eight times more answers than the cache holds: tokens flow, and it is called thrashing, not hung or dead."""
    async with open_loop(vllm, Burst(TOO_MANY), Workload((LONG_ANSWERS,), seed=scenario.seed), duration_s=1) as load:
        await load.done()

    scenario.expect(time_in(Progress.THRASHING), at_least=5)
    scenario.expect(time_in(Progress.HUNG), at_most=0)
    scenario.expect(time_in(Progress.DEAD), at_most=0)


@pytest.mark.serving(ROOMY)
async def test_an_engine_that_makes_no_token_is_hung(vllm, open_loop, chaos, scenario):
    """A device that never returns: requests run, no token comes, and it is called hung, not thrashing or dead."""
    await struck(vllm, open_loop, chaos, scenario, EngineHang(target=engine_of(vllm), duration_s=5))

    scenario.expect(time_in(Progress.HUNG), at_least=3)
    scenario.expect(time_in(Progress.THRASHING), at_most=0)
    scenario.expect(time_in(Progress.DEAD), at_most=0)


@pytest.mark.serving(ROOMY)
async def test_an_engine_that_came_back_with_new_counters_was_dead(vllm, open_loop, chaos, scenario):
    """A device error ends the engine: it is called dead for as long as it was away, not hung or thrashing."""
    await struck(vllm, open_loop, chaos, scenario, EngineDeviceError(target=engine_of(vllm)))

    scenario.expect(time_in(Progress.DEAD), at_least=3)
    scenario.expect(time_in(Progress.THRASHING), at_most=0)
    scenario.expect(time_in(Progress.HUNG), at_most=0)


async def struck(vllm, open_loop, chaos, scenario, fault) -> None:
    arrivals = Poisson(rate=4, seed=scenario.seed)
    async with open_loop(vllm, arrivals, Workload((TALK,), seed=scenario.seed), duration_s=20) as load:
        await load.until(completed=8)
        await chaos(fault, spares_nobody=True)
        await load.done()


def engine_of(vllm) -> Target:
    return Target(namespace=vllm.namespace, selector=vllm.selector, how_many=Count(1))
