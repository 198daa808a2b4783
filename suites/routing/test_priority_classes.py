"""Every GPU is taken and people need one more: a batch replica gives its own, and nobody who reads an answer notices.

Kubernetes' scheduler takes the GPU from the pod of the lowest priority, rather from one whose PodDisruptionBudget can
bear it; but for a scheduler a budget is a wish. For a drain it is a veto: the eviction API refuses.
"""

import pytest

from shakedown.chaos import Count, Target
from shakedown.chaos.faults import Drain
from shakedown.judge.expectations import fact, lost_requests, percentile_ttft
from shakedown.load import Poisson, TrafficClass, Workload
from shakedown.serving.configuration import Serving
from shakedown.serving.occupied import occupied_gpus
from shakedown.waiting import wait_until

URGENT = Serving(replicas=1, priority_class="llm-interactive", drain_s=20)
GIVES_WAY = Serving(replicas=2, priority_class="llm-batch")
PEOPLE = TrafficClass(name="people", prompt_tokens=64, max_tokens=64)
FIRST_WORD_WITHIN_S = 3.0
"""p95. An idle engine needs 0.1 s; here others boot beside it on the same two cores."""
READY_WITHIN_S = 180.0
"""The batch replica's grace period, and the boot of the one that takes its place."""

pytestmark = [pytest.mark.certify, pytest.mark.serving(URGENT, GIVES_WAY), pytest.mark.usefixtures("priority_classes")]


@pytest.mark.harms_its_engine
async def test_a_batch_replica_gives_its_gpu_to_people(vllm, deployed, gpus, cluster, open_loop, chaos, scenario):
    """With no GPU free, one more interactive replica takes a batch replica's; then a node is drained under readers."""
    _, batch = deployed
    before = {pod.uid for pod in await batch.pods()}
    talk = Workload((PEOPLE,), seed=scenario.seed)
    async with open_loop(vllm, Poisson(rate=2, seed=scenario.seed), talk, duration_s=900) as load:
        await load.until(completed=5)
        async with occupied_gpus(batch, gpus, leave=0) as placeholders:
            scenario.guard("somebody without a class holds GPUs too", placeholders > 0)
            await cluster.patch("apps/v1", "Deployment", vllm.namespace, vllm.name, {"spec": {"replicas": 2}})
            await ready(vllm, 2)
            left = {pod.uid for pod in await batch.ready_pods()}
            scenario.fact("batch replicas that gave way", len(before - left))
            scenario.fact("batch replicas that go on", len(before & left))
            events = await cluster.events(batch.namespace)
            preempted = {event.involved_uid for event in events if event.reason == "Preempted"}
            scenario.guard("it was preempted, and did not fail", before - left <= preempted)

            node = Target(namespace=vllm.namespace, selector=vllm.selector, how_many=Count(1))
            drain = Drain(target=node, duration_s=1, within_s=READY_WITHIN_S, delete_emptydir_data=True)
            # Both replicas may be on that node: then their budget keeps the second until the first has a successor.
            await chaos(drain, spares_nobody=True)
            await ready(vllm, 2)
        load.stop()

    scenario.expect(fact("batch replicas that gave way"), equals=1)
    scenario.expect(fact("batch replicas that go on"), equals=1)
    scenario.expect(percentile_ttft(95), at_most=FIRST_WORD_WITHIN_S)
    scenario.expect(lost_requests(), at_most=0)


async def ready(engine, count: int) -> None:
    await wait_until(
        f"{count} Ready interactive replicas",
        engine.ready_pods,
        lambda pods: len(pods) == count,
        within_s=READY_WITHIN_S,
    )
