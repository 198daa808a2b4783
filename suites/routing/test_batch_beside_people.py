"""A batch job and people share the engines. Whoever comes first is served first, unless something knows the difference.

One engine and one queue: hundreds of batch requests stand before a person's question, and the person waits for all of
them. Two things fix it, each alone: priorities in the engine's scheduler, and a gateway that gives each class a pool of
its own by a header. Fixed means that people hardly notice: what they wait while the job runs is held against what the
same people wait without it.
"""

from dataclasses import replace

import pytest

from shakedown.judge.expectations import outcome_share, times_slower
from shakedown.judge.records import Outcome
from shakedown.load import Constant, TrafficClass, UniformTokens, Workload
from shakedown.serving.configuration import Serving

BATCH_JOB = 400
JOB_ARRIVES_S = 1.0
"""Eight times faster than the slots serve it, and slow enough to send: of 400 at one instant the last waits long."""
PEOPLE_PER_S = 0.8
"""A question takes an L4 half a second: sooner, and people would wait for each other."""
ALONE_S, TOGETHER_S = 12.0, 22.0
NOTICED = 1.5
"""Times the wait of an idle engine. Priority frees no slot: a person waits for one (four of 64 come free each step)."""

SLOTS = ("--max-num-seqs", "64")
FIRST_COME = Serving(replicas=1, device="L4", engine_args=(SLOTS,))
BY_PRIORITY = Serving(replicas=1, device="L4", engine_args=(SLOTS, ("--scheduling-policy", "priority")))
INTERACTIVE_POOL = Serving(replicas=1, device="L4", pool="interactive", engine_args=(SLOTS,))
BATCH_POOL = Serving(replicas=1, device="L4", pool="batch", engine_args=(SLOTS,))

PEOPLE = TrafficClass(name="people", prompt_tokens=1900, max_tokens=8, headers={"X-Traffic-Class": "interactive"})
"""Their prompt and a token of each other request are one step of 2,048 tokens."""
BATCH_ANSWERS = UniformTokens(1, 32)
"""Answers of one length would begin and end in step, and one that is never short would free no slot for a while after
the job has taken them all: whoever asks then waits for all of that."""
BATCH = TrafficClass(name="batch", prompt_tokens=32, max_tokens=BATCH_ANSWERS, headers={"X-Traffic-Class": "batch"})

pytestmark = pytest.mark.compared("People beside a batch job")


@pytest.mark.serving(FIRST_COME)
async def test_first_come_first_served_makes_people_wait_for_the_batch_job(vllm, open_loop, scenario):
    """The failure is real: behind 400 batch requests, people wait many times as long for the first word."""
    await alone_and_together(vllm, open_loop, scenario, people=PEOPLE, batch=BATCH)

    scenario.expect(times_slower("ttft", 99, traffic_class="people", than="people alone"), at_least=4 * NOTICED)


@pytest.mark.serving(BY_PRIORITY)
async def test_priorities_in_the_engine_let_people_pass(vllm, open_loop, scenario):
    """With priority scheduling and the same batch job, people wait for a free slot and not for the queue."""
    people, batch = replace(PEOPLE, headers={}, priority=0), replace(BATCH, headers={}, priority=10)
    await alone_and_together(vllm, open_loop, scenario, people=people, batch=batch)

    scenario.expect(times_slower("ttft", 99, traffic_class="people", than="people alone"), at_most=NOTICED)
    scenario.expect(outcome_share(Outcome.COMPLETED), at_least=1.0)


@pytest.mark.serving(INTERACTIVE_POOL, BATCH_POOL)
async def test_pools_behind_a_gateway_keep_people_and_batch_apart(gateway, open_loop, scenario):
    """Through an nginx that routes by header, the same batch job fills its own pool and people do not notice."""
    await alone_and_together(gateway, open_loop, scenario, people=PEOPLE, batch=BATCH)

    scenario.expect(times_slower("ttft", 99, traffic_class="people", than="people alone"), at_most=NOTICED)
    scenario.expect(outcome_share(Outcome.COMPLETED), at_least=1.0)


async def alone_and_together(target, open_loop, scenario, *, people: TrafficClass, batch: TrafficClass) -> None:
    """The same people twice: first by themselves, then beside a batch job that arrives within a second."""
    talk = Constant(rate=PEOPLE_PER_S)
    alone = Workload((replace(people, name="people alone"),), seed=scenario.seed)
    async with open_loop(target, talk, alone, duration_s=ALONE_S, name="alone"):
        pass
    job, beside = Workload((batch,), seed=scenario.seed), Workload((people,), seed=scenario.seed)
    async with (
        open_loop(target, Constant(rate=BATCH_JOB / JOB_ARRIVES_S), job, duration_s=JOB_ARRIVES_S, name="batch"),
        open_loop(target, talk, beside, duration_s=TOGETHER_S, name="people"),
    ):
        pass
