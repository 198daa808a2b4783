"""The KV cache is paged: what an answer holds is its tokens, rounded up to whole blocks, and nothing more.

So memory can be promised to nearly the last block, and a prompt that begins like another costs only what is different
in it.
"""

from math import ceil

import pytest

from shakedown.chaos import Count, Target
from shakedown.chaos.faults import EngineHang
from shakedown.engine.metrics import (
    GENERATION_TOKENS,
    KV_CACHE_USAGE,
    PREFIX_CACHE_HITS,
    REQUESTS_RUNNING,
    CacheShape,
    cache_shape,
    exposition,
    read_metrics,
)
from shakedown.judge.expectations import fact, increase, outcome_share, peak
from shakedown.judge.records import Outcome, Recorded, RequestRecord
from shakedown.judge.windows import fault_window, strike_window
from shakedown.load import Burst, TrafficClass, UniformTokens, Workload
from shakedown.serving.configuration import Serving
from shakedown.waiting import wait_until

READERS = 24
PROMPT, ANSWER = 1000, 160
COMMON = 960
TEMPLATE = 64
"""At most so many tokens of the chat template stand around a prompt."""
RESERVED_BLOCKS = 1
"""vLLM keeps one block for itself, and does not count it in its share in use."""
SMALL_CARD = Serving(replicas=1, device="L4")
NO_SHARING = Serving(replicas=1, device="L4", switches=("--no-enable-prefix-caching",))
ALIKE = TrafficClass(prompt_tokens=PROMPT, max_tokens=ANSWER, shared_prefix_tokens=COMMON)

LONG_TALKS = TrafficClass(prompt_tokens=UniformTokens(100, 900), max_tokens=400)
TALKERS = 12
ALL_TALK_WITHIN_S = 30.0

side_by_side = pytest.mark.compared("The same prompts, their common beginning kept once and kept by everybody")


@side_by_side
@pytest.mark.serving(SMALL_CARD)
async def test_a_common_beginning_is_kept_once(vllm, open_loop, scenario):
    """Prompts that share 960 of 1,000 tokens hold those once: the others find them in the cache."""
    pool = await cache_of(vllm)
    await after_one_reader(vllm, open_loop, scenario)

    own = PROMPT - COMMON + TEMPLATE + ANSWER + 2 * pool.block_tokens
    scenario.expect(increase(PREFIX_CACHE_HITS), at_least=READERS * (COMMON - pool.block_tokens))
    scenario.expect(peak(KV_CACHE_USAGE), at_most=(COMMON + READERS * own) / pool.tokens)
    scenario.expect(outcome_share(Outcome.COMPLETED), at_least=1.0)


@side_by_side
@pytest.mark.serving(NO_SHARING)
async def test_without_prefix_caching_everybody_keeps_the_common_beginning(vllm, open_loop, scenario):
    """The saving is the prefix cache's: without it the same prompts hold their whole length each."""
    pool = await cache_of(vllm)
    await after_one_reader(vllm, open_loop, scenario)

    scenario.expect(increase(PREFIX_CACHE_HITS), at_most=0)
    scenario.expect(peak(KV_CACHE_USAGE), at_least=READERS * PROMPT / pool.tokens)
    scenario.expect(outcome_share(Outcome.COMPLETED), at_least=1.0)


@pytest.mark.harms_its_engine
@pytest.mark.serving(NO_SHARING)
async def test_blocks_in_use_are_the_tokens_held_rounded_up(vllm, open_loop, chaos, scenario):
    """With time stopped in the middle of twelve talks, the blocks in use are their tokens, less than one block over."""
    pool = await cache_of(vllm)
    the_engine = Target(namespace=vllm.namespace, selector=vllm.selector, how_many=Count(1))

    async with open_loop(vllm, Burst(TALKERS), Workload((LONG_TALKS,), seed=scenario.seed), duration_s=1) as load:
        await everybody_talks(vllm)
        await chaos(EngineHang(target=the_engine, duration_s=3), spares_nobody=True)
        await load.done()

    recorded = scenario.bundle.read().recorded
    at, usage = standstill(recorded)
    held = [tokens_held(record, at) for record in recorded.requests if record.due_at < at < record.finished_at]
    used = round(usage * (pool.blocks - RESERVED_BLOCKS))
    scenario.guard("twelve talks were under way", len(held) == TALKERS)
    scenario.fact("tokens held", sum(held))
    scenario.fact("blocks in use", used)
    scenario.fact("tokens of room lost to rounding, for each talk", (used * pool.block_tokens - sum(held)) / TALKERS)
    # The last token of each was sampled by the step before; whether its place is taken yet depends on the instant.
    fewest = sum(ceil((tokens - 1) / pool.block_tokens) for tokens in held)
    most = sum(ceil(tokens / pool.block_tokens) for tokens in held)
    scenario.expect(fact("blocks in use"), between=(fewest, most))
    scenario.expect(fact("tokens of room lost to rounding, for each talk"), at_most=pool.block_tokens)


async def after_one_reader(vllm, open_loop, scenario) -> None:
    """One reader comes first, so that what all prompts begin with has been computed when the others come."""
    alike = Workload((ALIKE,), seed=scenario.seed)
    async with open_loop(vllm, Burst(1), alike, duration_s=1, name="first") as first:
        await first.done()
    async with open_loop(vllm, Burst(READERS), alike, duration_s=1) as load:
        await load.done()


async def cache_of(vllm) -> CacheShape:
    (url,) = (await vllm.ready_engine_urls()).values()
    return cache_shape(await exposition(url))


async def everybody_talks(vllm) -> None:
    (url,) = (await vllm.ready_engine_urls()).values()

    async def talking() -> float:
        metrics = await read_metrics(url)
        return metrics[REQUESTS_RUNNING] if metrics[GENERATION_TOKENS] else 0.0

    await wait_until("every talk to run", talking, lambda running: running == TALKERS, within_s=ALL_TALK_WITHIN_S)


def standstill(recorded: Recorded) -> tuple[float, float]:
    """(wall time, share of the cache in use) of the last scrape while time stood still."""
    strike, fault = strike_window(recorded.marks), fault_window(recorded.marks)
    assert strike is not None, "the engine was never made to stand still"
    assert fault is not None, "the engine never went on"
    landed, ended = strike.end, fault.end
    frozen = [sample for sample in recorded.samples if landed < sample.at < ended and KV_CACHE_USAGE in sample.values]
    return frozen[0].at, frozen[0].values[KV_CACHE_USAGE]


def tokens_held(record: RequestRecord, at: float) -> int:
    """Tokens of a request that its engine had to keep at an instant: the prompt, and what was said by then."""
    return (record.prompt_tokens or 0) + sum(time < at for time in record.token_times)
