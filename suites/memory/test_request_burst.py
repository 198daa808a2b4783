"""A burst of long answers on a card whose memory is small for it.

With nearly all memory given to the KV cache and a wide queue (0.95, 256 sequences), the engine admits more answers
than it can finish: the cache fills, running answers are preempted and computed again, and their readers see the text
stop. With a margin and a queue no wider than the cache (0.90, 28 sequences), the same burst waits at the door
instead, and an answer that has begun goes on.
"""

import pytest

from shakedown.engine.metrics import KV_CACHE_USAGE, PREEMPTIONS, exposition, histogram
from shakedown.judge.expectations import increase, longest_gap, outcome_share, peak
from shakedown.judge.records import Outcome
from shakedown.load import Burst, TrafficClass, Workload
from shakedown.serving.configuration import Serving

BURST = 56
LONG_ANSWERS = TrafficClass(prompt_tokens=480, max_tokens=320)
"""56 × 800 tokens are 44,800: more than the cache of an L4 at 0.95 (41,900). 28 × 800 fit at 0.90 (32,800)."""
NO_STALL_LONGER_THAN_S = 1.5
SET_BACK = "vllm:request_num_preemptions"

WIDE = Serving(replicas=1, device="L4", engine_args=(("--gpu-memory-utilization", "0.95"), ("--max-num-seqs", "256")))
NARROW = Serving(replicas=1, device="L4", engine_args=(("--gpu-memory-utilization", "0.90"), ("--max-num-seqs", "28")))

pytestmark = [pytest.mark.smoke, pytest.mark.compared("The same burst, without and with the mitigation")]


@pytest.mark.serving(WIDE)
async def test_a_burst_at_095_fills_the_cache_and_preempts(vllm, open_loop, scenario):
    """At 0.95 with a wide queue the burst fills the cache and preempts running answers: their text stands still."""
    await the_burst(vllm, open_loop, scenario)

    scenario.fact("how often answers were set back", await set_back(vllm))
    scenario.expect(peak(KV_CACHE_USAGE), at_least=0.96)
    scenario.expect(increase(PREEMPTIONS), at_least=1)
    scenario.expect(longest_gap(99), at_least=NO_STALL_LONGER_THAN_S)
    scenario.expect(outcome_share(Outcome.COMPLETED), at_least=1.0)


@pytest.mark.serving(NARROW)
async def test_the_same_burst_at_090_with_a_narrow_queue_keeps_streams_flowing(vllm, open_loop, scenario):
    """The mitigation holds: nothing is preempted, nothing is lost, and no answer that has begun stalls."""
    await the_burst(vllm, open_loop, scenario)

    scenario.expect(increase(PREEMPTIONS), at_most=0)
    scenario.expect(outcome_share(Outcome.COMPLETED), at_least=1.0)
    scenario.expect(longest_gap(99), at_most=NO_STALL_LONGER_THAN_S)


async def the_burst(vllm, open_loop, scenario) -> None:
    async with open_loop(vllm, Burst(BURST), Workload((LONG_ANSWERS,), seed=scenario.seed), duration_s=1) as load:
        await load.done()


async def set_back(vllm) -> list[str]:
    """The engine's own histogram of preemptions per answer, in words."""
    (url,) = (await vllm.ready_engine_urls()).values()
    buckets = histogram(await exposition(url), SET_BACK)
    return [f"{count:g} answers at most {bound:g} times" for bound, count in buckets.items() if count]
