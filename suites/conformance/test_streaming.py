"""A stream is sound: every answer arrives token by token, ends properly, and says what it cost.

Clients meter, bill and retry by what the stream says. A bad request must cost nobody anything, and a client that
leaves must give its place back.
"""

import httpx
import pytest

from shakedown.engine.metrics import REQUESTS_RUNNING, REQUESTS_WAITING, read_metrics
from shakedown.judge.expectations import fact, outcome_share, percentile_ttft
from shakedown.judge.records import Outcome
from shakedown.load import Burst, Poisson, TrafficClass, Workload
from shakedown.waiting import wait_until

FIRST_TOKEN_WITHIN_S = 1.0
SLOT_FREED_WITHIN_S = 5.0

pytestmark = pytest.mark.smoke


async def test_streams_are_complete_and_say_what_they_cost(vllm, open_loop, scenario):
    """Answers of 64 tokens stream to their end: no more deltas than tokens, [DONE], and a usage that agrees."""
    talk = Workload((TrafficClass(prompt_tokens=96, max_tokens=64),), seed=scenario.seed)

    async with open_loop(vllm, Poisson(rate=8, seed=scenario.seed), talk, duration_s=5) as load:
        await load.done()

    answered = [record for record in load.records if record.outcome is Outcome.COMPLETED]
    scenario.fact("answers", len(answered))
    scenario.fact("streams without [DONE]", [record.id for record in answered if not record.saw_done])
    scenario.fact(
        "answers of another length than asked", [record.id for record in answered if record.completion_tokens != 64]
    )
    # An engine may put several tokens into one delta, never one token into several.
    scenario.fact(
        "answers with more deltas than tokens",
        [record.id for record in answered if len(record.token_times) > (record.completion_tokens or 0)],
    )
    scenario.expect(fact("answers"), at_least=20)
    scenario.expect(outcome_share(Outcome.COMPLETED), at_least=1.0)
    scenario.expect(fact("streams without [DONE]"), equals=[])
    scenario.expect(fact("answers of another length than asked"), equals=[])
    scenario.expect(fact("answers with more deltas than tokens"), equals=[])
    scenario.expect(percentile_ttft(95), at_most=FIRST_TOKEN_WITHIN_S)


async def test_a_bad_request_gets_400_and_harms_nobody(vllm, open_loop, scenario):
    """Malformed and impossible requests are refused with a 4xx while other streams go on untouched."""
    talk = Workload((TrafficClass(prompt_tokens=64, max_tokens=64),), seed=scenario.seed)
    bad_requests = {
        "not JSON": b"{not json",
        "no messages": b'{"model": "%s"}' % vllm.model.encode(),
        "negative max_tokens": _chat(vllm.model, "hi", max_tokens=-1),
        "longer than the model's context": _chat(vllm.model, "word " * 9000, max_tokens=8),
        "unknown model": _chat("no-such-model", "hi", max_tokens=8),
    }

    async with (
        httpx.AsyncClient(timeout=30, trust_env=False) as client,
        open_loop(vllm, Poisson(rate=6, seed=scenario.seed), talk, duration_s=4) as load,
    ):
        await load.until(completed=3)
        for name, body in bad_requests.items():
            answer = await client.post(
                f"{vllm.url}/v1/chat/completions", content=body, headers={"Content-Type": "application/json"}
            )
            scenario.fact(f"status of: {name}", answer.status_code)
        await load.done()

    for name in bad_requests:
        scenario.expect(fact(f"status of: {name}"), between=(400, 499))
    scenario.expect(outcome_share(Outcome.COMPLETED), at_least=1.0)


async def test_a_client_that_leaves_frees_its_slot(vllm, open_loop, scenario):
    """Sixteen clients hang up early in a 2,000-token answer; the engine stops generating for them."""
    leavers = Workload((TrafficClass(prompt_tokens=64, max_tokens=2000, abandon_after_tokens=5),), seed=scenario.seed)

    async with open_loop(vllm, Burst(16), leavers, duration_s=1) as load:
        await load.done()

    async def held_slots() -> float:
        metrics = [await read_metrics(url) for url in (await vllm.engine_urls()).values()]
        return sum(metric[REQUESTS_RUNNING] + metric[REQUESTS_WAITING] for metric in metrics)

    left = await wait_until(
        "every slot of the clients that left to be free",
        held_slots,
        lambda held: held == 0,
        within_s=SLOT_FREED_WITHIN_S,
    )
    scenario.fact("slots still held", left)
    scenario.expect(outcome_share(Outcome.ABANDONED), at_least=1.0)
    scenario.expect(fact("slots still held"), equals=0)


def _chat(model: str, text: str, max_tokens: int) -> bytes:
    request = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": max_tokens}
    return httpx.Request("POST", "http://unused", json=request).content
