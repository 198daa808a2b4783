"""A thousand users for five minutes: nothing is lost, and the books of both sides agree to the token.

Every request has an outcome, the tokens that users were charged for are those that the engines made, and the client
that says so has not grown meanwhile.
"""

import pytest

from shakedown.engine.metrics import GENERATION_TOKENS, read_metrics
from shakedown.judge.expectations import fact, outcome_share, percentile_ttft, request_count, unaccounted
from shakedown.judge.records import Outcome
from shakedown.load import ClosedLoop, TrafficClass, Workload

USERS = ClosedLoop(users=1000, think_time_s=40)
"""About 24 requests a second, half of what two engines on two cores give."""
TALK = TrafficClass(prompt_tokens=64, max_tokens=64)
LASTS_S = 300.0
ASKED_AT_LEAST = 5000
FIRST_WORD_WITHIN_S = 2.0
"""p80: the thousand that come at the same instant in the beginning are a seventh of all requests."""
FLAT_WITHIN_BYTES = 16 * 1024**2


@pytest.mark.certify
async def test_a_thousand_users_are_all_accounted_for(vllm, open_loop, scenario):
    """1,000 users, five minutes: sent equals the outcomes, tokens equal the engines' count, and memory is flat."""
    made_before = await tokens_made(vllm)
    async with open_loop(vllm, USERS, Workload((TALK,), seed=scenario.seed), duration_s=LASTS_S) as load:
        await load.done()
    made = await tokens_made(vllm) - made_before

    charged = sum(record.completion_tokens or 0 for record in load.records)
    scenario.fact("tokens that users were charged for", charged)
    scenario.fact("tokens that engines made", made)
    scenario.fact("difference in tokens", made - charged)
    scenario.fact("growth of the client's memory in bytes", load.health.memory_growth_bytes)
    scenario.expect(request_count(), at_least=ASKED_AT_LEAST)
    scenario.expect(unaccounted(), at_most=0)
    scenario.expect(outcome_share(Outcome.COMPLETED), at_least=1.0)
    scenario.expect(fact("difference in tokens"), equals=0)
    scenario.expect(fact("growth of the client's memory in bytes"), at_most=FLAT_WITHIN_BYTES)
    scenario.expect(percentile_ttft(80), at_most=FIRST_WORD_WITHIN_S)


async def tokens_made(vllm) -> float:
    """By all engines since they started."""
    metrics = [await read_metrics(url) for url in (await vllm.ready_engine_urls()).values()]
    return sum(metric.get(GENERATION_TOKENS, 0.0) for metric in metrics)
