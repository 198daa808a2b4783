"""A batch job and people share the engines. Whoever comes first is served first, unless something knows the difference.

One engine and one queue: hundreds of batch requests stand before a person's question, and the person waits for all of
them. Two things fix it, each alone: priorities in the engine's scheduler, and a gateway that gives each class a pool of
its own by a header.
"""

from contextlib import AsyncExitStack

import pytest

from shakedown.judge.expectations import outcome_share, percentile_ttft
from shakedown.judge.records import Outcome
from shakedown.load import Burst, Poisson, TrafficClass, UniformTokens, Workload
from shakedown.serving.configuration import Serving

BATCH_JOB = 160
PEOPLE_PER_S = 1.5
PEOPLE_WAIT_AT_MOST_S = 1.5
"""p95 to the first word; an idle engine needs 0.1 s, and engines of the embedded cluster share two cores."""

SLOTS = ("--max-num-seqs", "16")
FIRST_COME = Serving(replicas=1, engine_args=(SLOTS,))
BY_PRIORITY = Serving(replicas=1, engine_args=(SLOTS, ("--scheduling-policy", "priority")))
INTERACTIVE_POOL = Serving(replicas=1, pool="interactive", engine_args=(SLOTS,))
BATCH_POOL = Serving(replicas=1, pool="batch", engine_args=(SLOTS,))

PEOPLE = TrafficClass(name="people", prompt_tokens=64, max_tokens=32, headers={"X-Traffic-Class": "interactive"})
BATCH_ANSWERS = UniformTokens(64, 192)
"""Answers of one length would begin and end in step, and a person would wait for all of them at once."""
BATCH = TrafficClass(name="batch", prompt_tokens=64, max_tokens=BATCH_ANSWERS, headers={"X-Traffic-Class": "batch"})


@pytest.mark.serving(FIRST_COME)
async def test_first_come_first_served_makes_people_wait_for_the_batch_job(vllm, open_loop, scenario):
    """The failure is real: behind 160 batch requests, people's p95 wait for the first word is beyond their patience."""
    await both(vllm, open_loop, scenario, people=PEOPLE, batch=BATCH)

    scenario.expect(percentile_ttft(95, traffic_class="people"), at_least=PEOPLE_WAIT_AT_MOST_S)


@pytest.mark.serving(BY_PRIORITY)
async def test_priorities_in_the_engine_let_people_pass(vllm, open_loop, scenario):
    """With priority scheduling and the same batch job, people wait for a free slot and not for the queue."""
    await both(
        vllm,
        open_loop,
        scenario,
        people=TrafficClass(name="people", prompt_tokens=64, max_tokens=32, priority=0),
        batch=TrafficClass(name="batch", prompt_tokens=64, max_tokens=BATCH_ANSWERS, priority=10),
    )

    scenario.expect(percentile_ttft(95, traffic_class="people"), at_most=PEOPLE_WAIT_AT_MOST_S)
    scenario.expect(outcome_share(Outcome.COMPLETED), at_least=1.0)


@pytest.mark.serving(INTERACTIVE_POOL, BATCH_POOL)
async def test_pools_behind_a_gateway_keep_people_and_batch_apart(gateway, open_loop, scenario):
    """Through an nginx that routes by header, the same batch job fills its own pool and people do not notice."""
    await both(gateway, open_loop, scenario, people=PEOPLE, batch=BATCH)

    scenario.expect(percentile_ttft(95, traffic_class="people"), at_most=PEOPLE_WAIT_AT_MOST_S)
    scenario.expect(outcome_share(Outcome.COMPLETED), at_least=1.0)


async def both(target, open_loop, scenario, *, people: TrafficClass, batch: TrafficClass) -> None:
    """People come all the time; the batch job arrives at once, when some of them have been served."""
    async with AsyncExitStack() as loads:
        talk = Workload((people,), seed=scenario.seed)
        arrivals = Poisson(rate=PEOPLE_PER_S, seed=scenario.seed)
        questions = await loads.enter_async_context(open_loop(target, arrivals, talk, duration_s=20, name="people"))
        await questions.until(completed=3)
        job = Workload((batch,), seed=scenario.seed)
        await loads.enter_async_context(open_loop(target, Burst(BATCH_JOB), job, duration_s=1, name="batch"))
