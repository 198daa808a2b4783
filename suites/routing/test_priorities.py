"""Priorities decide who is next, not who is on: what they cannot do, and what pools of their own can.

vLLM's scheduler takes the most urgent request out of the queue when a slot is free; it frees no slot for it. And
whoever is least urgent waits for everybody else, for as long as they keep coming.
"""

import pytest

from shakedown.engine.metrics import REQUESTS_RUNNING, REQUESTS_WAITING
from shakedown.judge.expectations import outcome_share, percentile_ttft
from shakedown.judge.records import Outcome
from shakedown.load import Burst, TrafficClass, Workload
from shakedown.serving.configuration import Serving
from shakedown.waiting import wait_until

SLOTS = 16
IN_16_SLOTS = ("--max-num-seqs", str(SLOTS))
BY_PRIORITY = ("--scheduling-policy", "priority")
INTERACTIVE_POOL = Serving(replicas=1, pool="interactive", device="L4", engine_args=(IN_16_SLOTS, BY_PRIORITY))
BATCH_POOL = Serving(replicas=1, pool="batch", device="L4", engine_args=(IN_16_SLOTS,))

CROWD = 3 * SLOTS
"""Three rounds of answers."""
ANSWER_TOKENS = 100
ANSWER_TAKES_S = (5.0, 9.0)
"""100 tokens in a full batch: 66 ms each by the model of an L4, and what two busy cores add."""
OWN_POOL_ANSWERS_WITHIN_S = 1.5

pytestmark = [pytest.mark.certify, pytest.mark.serving(INTERACTIVE_POOL, BATCH_POOL)]


async def test_an_urgent_request_waits_for_a_slot_and_not_for_the_queue(vllm, open_loop, scenario):
    """Priority inversion, and its bound: with every slot taken, the most urgent request waits one answer's time."""
    await behind_a_crowd(vllm, open_loop, scenario, crowd={"priority": 10}, latecomer={"priority": 0})

    scenario.expect(percentile_ttft(50, traffic_class="latecomer"), at_least=ANSWER_TAKES_S[0] / 2)
    scenario.expect(percentile_ttft(100, traffic_class="latecomer"), at_most=ANSWER_TAKES_S[1])
    scenario.expect(outcome_share(Outcome.COMPLETED), at_least=1.0)


async def test_in_one_queue_the_least_urgent_waits_for_everybody(vllm, open_loop, scenario):
    """Starvation: in the same queue, a request of the lower class is taken when the last of the higher has been."""
    await behind_a_crowd(vllm, open_loop, scenario, crowd={"priority": 0}, latecomer={"priority": 10})

    scenario.expect(percentile_ttft(50, traffic_class="latecomer"), at_least=2 * ANSWER_TAKES_S[0])
    scenario.expect(outcome_share(Outcome.COMPLETED), at_least=1.0)


async def test_in_a_pool_of_its_own_no_class_starves(gateway, vllm, open_loop, scenario):
    """The same crowd of people fills its own pool; the batch request behind it is answered as if nobody were there."""
    crowd, latecomer = ({"headers": {"X-Traffic-Class": name}} for name in ("interactive", "batch"))
    await behind_a_crowd(gateway, open_loop, scenario, crowd=crowd, latecomer=latecomer, fills=vllm)

    scenario.expect(percentile_ttft(100, traffic_class="latecomer"), at_most=OWN_POOL_ANSWERS_WITHIN_S)
    scenario.expect(outcome_share(Outcome.COMPLETED), at_least=1.0)


async def behind_a_crowd(target, open_loop, scenario, *, crowd, latecomer, fills=None) -> None:
    """Two requests come when a crowd has filled the slots of an engine and its queue."""
    engine = fills or target
    many = TrafficClass(name="crowd", prompt_tokens=64, max_tokens=ANSWER_TOKENS, **crowd)
    few = TrafficClass(name="latecomer", prompt_tokens=64, max_tokens=8, **latecomer)
    asks = Workload((many,), seed=scenario.seed), Workload((few,), seed=scenario.seed)
    async with open_loop(target, Burst(CROWD), asks[0], duration_s=1, name="crowd"):
        await wait_until(
            "all slots taken, and a queue",
            lambda: both(engine),
            lambda seen: seen[0] == SLOTS and seen[1] >= SLOTS,
            within_s=30,
        )
        async with open_loop(target, Burst(2), asks[1], duration_s=1, name="latecomer"):
            pass


async def both(engine) -> tuple[float, float]:
    return await engine.total(REQUESTS_RUNNING), await engine.total(REQUESTS_WAITING)
