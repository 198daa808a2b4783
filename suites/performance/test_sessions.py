"""People talk: each question brings the whole talk with it, and an engine that remembers computes only what is new."""

import pytest

from shakedown.engine.metrics import PREFIX_CACHE_HITS
from shakedown.judge.expectations import increase, outcome_share, request_count
from shakedown.judge.records import Outcome
from shakedown.load import Burst, TrafficClass, Workload
from shakedown.serving.configuration import Serving

TALKERS, TURNS, QUESTION, ANSWER = 8, 4, 200, 48
CHAT = TrafficClass(prompt_tokens=QUESTION, max_tokens=ANSWER, turns=TURNS, think_time_s=1.0)
REMEMBERED = sum(turn * QUESTION for turn in range(1, TURNS))
"""Of one talk: each question finds at least the questions before it."""
LOST_TO_BLOCKS = 0.1
"""Of it: the cache knows whole blocks of 16 tokens, and a question made for a talk is shorter by the chat template."""


@pytest.mark.certify
@pytest.mark.serving(Serving(replicas=1, device="L4"))
async def test_a_talk_is_found_in_the_cache_question_by_question(vllm, open_loop, scenario):
    """Eight people ask four questions each: all are answered, and each finds the talk before it in the prefix cache."""
    talk = Workload((CHAT,), seed=scenario.seed)
    async with open_loop(vllm, Burst(TALKERS), talk, duration_s=120) as load:
        await load.done()

    scenario.expect(request_count(), at_least=TALKERS * TURNS)
    scenario.expect(outcome_share(Outcome.COMPLETED), at_least=1.0)
    scenario.expect(increase(PREFIX_CACHE_HITS), at_least=TALKERS * REMEMBERED * (1 - LOST_TO_BLOCKS))
