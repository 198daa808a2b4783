"""A load from two nodes says what a load from one process says: same users, same questions, same numbers.

What is not the same is where the clients are. If the numbers differ beyond the noise of the sample, one of the two
measures itself.
"""

from collections.abc import Sequence

import pytest

from shakedown.judge.expectations import fact, outcome_share
from shakedown.judge.latency import tpot, ttft
from shakedown.judge.percentiles import percentile
from shakedown.judge.records import Outcome, RequestRecord
from shakedown.load import ClosedLoop, TrafficClass, Workload
from shakedown.load.distributed import DistributedLoad, run_distributed
from shakedown.serving.configuration import Serving

USERS, THINK_S, LASTS_S = 40, 2.0, 40.0
TALK = TrafficClass(prompt_tokens=64, max_tokens=64)
ENGINE = Serving(replicas=1, device="L4", engine_args=(("--max-num-seqs", "64"),))
RATE_WITHIN, TPOT_WITHIN = 0.1, 0.1
"""Some 200 requests each: the standard error of the rate is 7 %, and that of the median time per token far below."""


@pytest.mark.certify
@pytest.mark.serving(ENGINE)
async def test_a_load_from_two_nodes_gives_the_numbers_of_one_process(vllm, open_loop, cluster, scenario, settings):
    """40 users from Locust workers on both nodes get what 40 users of one process get: rate and time per token."""
    alone = Workload((TALK,), seed=scenario.seed)
    users = ClosedLoop(users=USERS, think_time_s=THINK_S)
    async with open_loop(vllm, users, alone, duration_s=LASTS_S, name="one-process") as load:
        await load.done()
    spread = await run_distributed(
        cluster,
        DistributedLoad(
            url=vllm.url, users=USERS, think_time_s=THINK_S, prompt_tokens=64, max_tokens=64, duration_s=LASTS_S
        ),
        settings,
        scenario.bundle.root / "requests-two-nodes.jsonl",
    )

    one, two = list(load.records), list(spread.records)
    scenario.fact("nodes that sent", sorted(set(spread.nodes)))
    scenario.fact("requests of one process", len(one))
    scenario.fact("requests of two nodes", len(two))
    scenario.fact("answers a second from two nodes for each from one process", rate(two) / rate(one))
    for name, records in (("one process", one), ("two nodes", two)):
        scenario.fact(f"median wait for the first word, {name}", median(ttft, records))
        scenario.fact(f"median time per token, {name}", median(tpot, records))
    scenario.fact("time per token of two nodes for each of one process", median(tpot, two) / median(tpot, one))
    scenario.expect(fact("nodes that sent"), equals=["node-1", "node-2"])
    scenario.expect(
        fact("answers a second from two nodes for each from one process"), between=(1 - RATE_WITHIN, 1 + RATE_WITHIN)
    )
    scenario.expect(
        fact("time per token of two nodes for each of one process"), between=(1 - TPOT_WITHIN, 1 + TPOT_WITHIN)
    )
    scenario.expect(outcome_share(Outcome.COMPLETED), at_least=1.0)


def rate(records: Sequence[RequestRecord]) -> float:
    """From the first question to the last answer: users in step end a round more or less when a load is cut by time."""
    return len(records) / (max(each.finished_at for each in records) - min(each.due_at for each in records))


def median(measure, records) -> float:
    return percentile([value for record in records if (value := measure(record)) is not None], 50) or 0.0
