"""An answer that was preempted is computed again from its beginning, and its reader must not be able to tell.

The same questions go to an engine whose cache holds them all and to one whose cache does not. Greedy answers must be
equal, token by token, however often they were set back.
"""

import pytest

from shakedown.engine.metrics import PREEMPTIONS
from shakedown.judge.expectations import fact, increase, outcome_share
from shakedown.judge.records import Outcome
from shakedown.load import Burst, TrafficClass, Workload
from shakedown.serving.configuration import Serving

QUESTIONS = 24
GREEDY = TrafficClass(prompt_tokens=96, max_tokens=160, keep_text=True)
"""24 × (96 + 160) tokens are 6,144, three times what 64 blocks of 32 hold."""


def with_blocks(count: str) -> Serving:
    sizes = (("--block-size", "32"), ("--num-gpu-blocks-override", count), ("--max-model-len", "1024"))
    return Serving(replicas=1, engine_args=sizes)


@pytest.mark.certify
@pytest.mark.serving(with_blocks("64"), with_blocks("512"))
async def test_a_preempted_answer_is_the_answer_that_was_not(deployed, open_loop, scenario):
    """Greedy answers of an engine that preempts equal those of one that does not, token by token."""
    tight, roomy = deployed
    calm = await answers(roomy, open_loop, scenario, name="roomy")
    pressed = await answers(tight, open_loop, scenario, name="tight")

    scenario.fact("answers compared", len(calm))
    scenario.fact("answers that differ", [key for key in calm if calm[key] != pressed.get(key)])
    scenario.expect(increase(PREEMPTIONS), at_least=1)
    scenario.expect(outcome_share(Outcome.COMPLETED), at_least=1.0)
    scenario.expect(fact("answers compared"), equals=QUESTIONS)
    scenario.expect(fact("answers that differ"), equals=[])


async def answers(engine, open_loop, scenario, *, name: str) -> dict[str, tuple[str | None, int | None]]:
    """Text and length of each answer, by the question's number."""
    questions = Workload((GREEDY,), seed=scenario.seed, prompt_set="asked twice")
    async with open_loop(engine, Burst(QUESTIONS), questions, duration_s=1, name=name) as load:
        await load.done()
    return {record.id.rpartition("-")[2]: (record.text, record.completion_tokens) for record in load.records}
