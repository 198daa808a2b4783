"""More users than one replica can serve: the autoscaler notices by the queue, and more replicas take it over.

Every link of the loop is watched on its own: the queue, Prometheus, the metrics API, the HPA, the scheduler, the
weights, the traffic. So a slow or a broken loop says where.
"""

import pytest

from shakedown.chaos import Count, Target
from shakedown.chaos.faults import Scale
from shakedown.judge.expectations import (
    changes_of_mind,
    link_outage,
    lowest,
    outcome_share,
    peak,
    scale_out_time,
)
from shakedown.judge.loop import DESIRED, DRAINED, MORE_READY, MORE_SERVING, MORE_WANTED, READY
from shakedown.judge.records import Outcome
from shakedown.judge.windows import Phase
from shakedown.load import ClosedLoop, TrafficClass, Workload
from shakedown.serving.configuration import Serving
from shakedown.serving.scaling import Autoscaling
from shakedown.waiting import wait_until

USERS = ClosedLoop(users=600, think_time_s=15)
"""They ask for up to 31 answers a second; one L4 with 64 sequences gives 14, three give 42."""
TALK = TrafficClass(prompt_tokens=64, max_tokens=64)
ONE_SMALL_REPLICA = Serving(replicas=1, device="L4", engine_args=(("--max-num-seqs", "64"),))
BY_THE_QUEUE = Autoscaling(threshold=5, minimum=1, maximum=3)
WANTED_WITHIN_S = 20.0
"""A scrape (2 s), the HPA's own round (5 s) and KEDA's query, each at its worst, and a queue that must form first."""
READY_WITHIN_S = 90.0
"""An engine starts in 12 s alone, and in a minute beside a load that takes both cores."""

PROMETHEUS = Target(namespace="llm-monitoring", selector="app=prometheus", how_many=Count(1))
AWAY_S = 20.0
"""Four rounds of the HPA."""

pytestmark = [pytest.mark.certify, pytest.mark.serving(ONE_SMALL_REPLICA)]


async def test_600_users_make_one_replica_three(vllm, autoscale, open_loop, scenario):
    """600 users on one replica: the loop closes link by link, three replicas serve, and the queue drains."""
    await autoscale(vllm, BY_THE_QUEUE)

    async with open_loop(vllm, USERS, Workload((TALK,), seed=scenario.seed), duration_s=120) as load:
        await load.done()

    scenario.expect(scale_out_time(MORE_WANTED, BY_THE_QUEUE.threshold), at_most=WANTED_WITHIN_S)
    scenario.expect(scale_out_time(MORE_READY, BY_THE_QUEUE.threshold), at_most=READY_WITHIN_S)
    scenario.expect(scale_out_time(MORE_SERVING, BY_THE_QUEUE.threshold), at_most=READY_WITHIN_S)
    scenario.expect(scale_out_time(DRAINED, BY_THE_QUEUE.threshold), at_most=120)
    scenario.expect(peak(READY), equals=3)
    scenario.expect(changes_of_mind(), at_most=1)
    scenario.expect(outcome_share(Outcome.COMPLETED), at_least=1.0)


async def test_600_users_keep_three_replicas_while_prometheus_is_away(vllm, autoscale, open_loop, chaos, scenario):
    """Prometheus is away while three replicas serve 600 users: none of them goes, and the broken link is named."""
    scaled = await autoscale(vllm, BY_THE_QUEUE)

    async with open_loop(vllm, USERS, Workload((TALK,), seed=scenario.seed), duration_s=600) as load:
        await wait_until("three Ready replicas", vllm.ready_pods, lambda pods: len(pods) == 3, within_s=READY_WITHIN_S)
        await chaos(Scale(target=PROMETHEUS, replicas=0, duration_s=AWAY_S), spares_nobody=True)
        await wait_until(
            "an HPA that computes again",
            scaled.hpa,
            lambda seen: seen is not None and seen.active,
            within_s=READY_WITHIN_S,
        )
        load.stop()

    scenario.expect(link_outage("Prometheus"), at_least=AWAY_S / 2)
    scenario.expect(lowest(DESIRED, during=Phase.DURING), at_least=3)
    scenario.expect(lowest(READY, during=Phase.DURING), at_least=3)
    scenario.expect(outcome_share(Outcome.COMPLETED, Outcome.ABANDONED), at_least=1.0)
