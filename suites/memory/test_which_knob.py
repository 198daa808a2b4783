"""Utilisation and width of the queue are turned together by everybody, and prevent different failures.

0.95 gives *more* blocks than 0.90 and *less* headroom. So the same burst, and then memory that fragmentation takes
beside the engine's budget (1.6 GiB: more than 5 % of an L4, less than 10 %), meet all four combinations. The width
decides about preemptions, at either utilisation. Utilisation decides about running out of memory, at either width.
"""

import pytest

from shakedown.chaos import Count, Target
from shakedown.chaos.faults import EngineMemoryPressure
from shakedown.engine.metrics import PREEMPTIONS
from shakedown.judge.expectations import fact, increase, outcome_share
from shakedown.judge.records import Outcome
from shakedown.judge.windows import Phase
from shakedown.load import Burst, TrafficClass, Workload
from shakedown.serving.configuration import Serving
from shakedown.serving.failure import past_failure

BURST = 56
LONG_ANSWERS = TrafficClass(prompt_tokens=480, max_tokens=320)
FRAGMENTATION_GIB = 1.6


def combination(utilisation: str, sequences: str) -> Serving:
    flags = (("--gpu-memory-utilization", utilisation), ("--max-num-seqs", sequences))
    return Serving(replicas=1, device="L4", engine_args=flags, pool="which-knob")


COMBINATIONS = [
    pytest.param(
        wide, tight, id=f"{utilisation} and {sequences}", marks=pytest.mark.serving(combination(utilisation, sequences))
    )
    for utilisation, tight in (("0.95", True), ("0.90", False))
    for sequences, wide in (("256", True), ("28", False))
]
pytestmark = [
    pytest.mark.certify,
    pytest.mark.harms_its_engine,
    pytest.mark.compared("Two by two: which knob prevents preemption, and which running out of memory"),
]


@pytest.mark.parametrize(("preempts", "runs_out"), COMBINATIONS)
async def test_width_prevents_preemption_and_utilisation_prevents_oom(
    vllm, open_loop, chaos, scenario, preempts, runs_out
):
    """A wide queue preempts and a narrow one does not; 0.95 dies of the fragmentation that 0.90 survives."""
    the_engine = Target(namespace=vllm.namespace, selector=vllm.selector, how_many=Count(1))

    async with open_loop(vllm, Burst(BURST), Workload((LONG_ANSWERS,), seed=scenario.seed), duration_s=1) as load:
        await load.until(completed=8)
        await chaos(EngineMemoryPressure(target=the_engine, gib=FRAGMENTATION_GIB, duration_s=1), spares_nobody=True)
        await load.done()

    death = await past_failure(vllm)
    scenario.fact("how the engine died", death.kind if death else "not at all")
    scenario.fact("what to change", death.fix if death else "nothing")
    scenario.expect(increase(PREEMPTIONS, during=Phase.BEFORE), **({"at_least": 1} if preempts else {"at_most": 0}))
    scenario.expect(fact("how the engine died"), equals="oom-under-load" if runs_out else "not at all")
    scenario.expect(outcome_share(Outcome.COMPLETED), **({"at_most": 0.99} if runs_out else {"at_least": 1.0}))
