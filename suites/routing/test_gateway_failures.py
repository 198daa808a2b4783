"""Something is gone: a gateway, its configuration, or a whole pool. Who notices, how fast, and what they are told."""

import pytest

from shakedown.chaos import Count, Target
from shakedown.chaos.faults import PodKill, Scale
from shakedown.engine.metrics import REQUESTS_ENDED
from shakedown.judge.expectations import (
    fact,
    goodput,
    lost_beyond_in_flight,
    lost_in_flight,
    outcome_share,
    request_count,
)
from shakedown.judge.objectives import SLO
from shakedown.judge.records import Outcome, RequestRecord
from shakedown.load import Poisson, TrafficClass, Workload
from shakedown.serving.configuration import Serving
from shakedown.serving.gateway import NAMESPACE, SELECTOR
from shakedown.waiting import wait_until

IN_16_SLOTS = ("--max-num-seqs", "16")
BY_PRIORITY = ("--scheduling-policy", "priority")
INTERACTIVE_POOL = Serving(replicas=1, pool="interactive", device="L4", engine_args=(IN_16_SLOTS, BY_PRIORITY))
BATCH_POOL = Serving(replicas=1, pool="batch", device="L4", engine_args=(IN_16_SLOTS,))
TALK = TrafficClass(name="people", prompt_tokens=64, max_tokens=32, headers={"X-Traffic-Class": "interactive"})
JOB = TrafficClass(name="batch", prompt_tokens=64, max_tokens=32, headers={"X-Traffic-Class": "batch"})
PER_S = 4
WHAT_USERS_EXPECT = SLO(ttft_s=1.5, tpot_s=0.2)

REFUSED_WITHIN_S = 2.5
"""The gateway waits 2 s for a connection. Most refusals come at once; the kernel sends one a second to each client."""
REFUSALS = ["502", "504"]
"""Refused, and no answer at all."""
KNOWN_WITHIN_S = 1.0
"""Until nginx and every node's packet filter have heard that a pool is gone."""

pytestmark = pytest.mark.serving(INTERACTIVE_POOL, BATCH_POOL)


async def test_one_of_two_gateways_killed_costs_only_what_it_carried(gateway_with, cluster, open_loop, chaos, scenario):
    """Killing one of two gateways costs the answers that it carried; the other's go on, and so do new requests."""
    gateway = await gateway_with(replicas=2)
    before = await names(cluster)
    async with open_loop(gateway, Poisson(rate=PER_S, seed=scenario.seed), talk(scenario), duration_s=15) as load:
        await load.until(completed=10)
        await chaos(PodKill(target=gateways(1)))
        killed = before - await names(cluster)
        await load.done()
    carriers = {record.served_by for record in load.records if record.served_by}
    losers = {record.served_by for record in load.records if record.outcome is Outcome.CONNECTION_LOST}
    scenario.guard("both gateways carried streams", before <= carriers)
    scenario.fact("gateways whose streams were lost, beside the one killed", sorted(losers - killed - {None}))

    scenario.expect(lost_in_flight(), at_least=1, guard=True)
    scenario.expect(fact("gateways whose streams were lost, beside the one killed"), equals=[])
    scenario.expect(lost_beyond_in_flight(), at_most=0)
    scenario.expect(goodput(WHAT_USERS_EXPECT), at_least=0.85)


async def test_a_reload_loses_no_stream(gateway, cluster, open_loop, scenario):
    """A new configuration is taken while streams are under way: the old workers carry them to their end."""
    (pod,) = await names(cluster)
    async with open_loop(gateway, Poisson(rate=PER_S, seed=scenario.seed), talk(scenario), duration_s=10) as load:
        await load.until(completed=10)
        before = await workers(cluster, pod)
        await cluster.exec(NAMESPACE, pod, ("/usr/sbin/nginx", "-c", "/etc/gateway/nginx.conf", "-s", "reload"))
        after = await wait_until(
            "new workers of nginx", lambda: workers(cluster, pod), lambda seen: bool(seen - before), within_s=10
        )
        scenario.guard("old workers were still busy when new ones came", bool(after & before))
        await load.done()

    scenario.expect(outcome_share(Outcome.COMPLETED), at_least=1.0)


async def test_a_gateway_that_is_scaled_in_finishes_its_streams(gateway_with, open_loop, chaos, scenario):
    """From two gateways to one and back under streams: nobody is cut off."""
    gateway = await gateway_with(replicas=2)
    async with open_loop(gateway, Poisson(rate=PER_S, seed=scenario.seed), talk(scenario), duration_s=15) as load:
        await load.until(completed=10)
        await chaos(Scale(target=gateways(1), replicas=1, duration_s=5))
        await load.done()
    carriers = {record.served_by for record in load.records}
    scenario.guard("both gateways carried streams", len(carriers) >= 2)

    scenario.expect(outcome_share(Outcome.COMPLETED), at_least=1.0)


@pytest.mark.harms_its_engine
async def test_without_its_pool_people_are_refused_at_once(gateway, deployed, open_loop, chaos, scenario):
    """The interactive pool is gone: people get a clear refusal within moments, and the batch job goes on."""
    refused = await people_without_their_pool(gateway, deployed, open_loop, chaos, scenario)
    told = sorted({str(record.http_status) for record in refused})
    scenario.fact("what people are told", told)
    scenario.fact("what people are told that is no refusal", [status for status in told if status not in REFUSALS])
    scenario.fact("slowest refusal", max(record.finished_at - record.sent_at for record in refused))

    scenario.expect(fact("what people are told that is no refusal"), equals=[])
    scenario.expect(fact("slowest refusal"), at_most=REFUSED_WITHIN_S)
    scenario.expect(outcome_share(Outcome.COMPLETED, traffic_class="batch"), at_least=1.0)


@pytest.mark.harms_its_engine
async def test_with_a_fallback_people_are_served_by_the_other_pool(gateway_with, deployed, open_loop, chaos, scenario):
    """The same with the batch pool as a backup for connections that fail: people who come then are served there."""
    gateway = await gateway_with(change=with_fallback)
    _, batch = deployed
    before = await batch.total(REQUESTS_ENDED)
    came = await people_without_their_pool(gateway, deployed, open_loop, chaos, scenario)
    scenario.fact("people who came then and were not served", sum(r.outcome is not Outcome.COMPLETED for r in came))
    scenario.fact("requests that the batch pool ended", await batch.total(REQUESTS_ENDED) - before)

    scenario.expect(fact("people who came then and were not served"), equals=0)
    scenario.expect(fact("requests that the batch pool ended"), at_least=len(came) + 1)
    scenario.expect(outcome_share(Outcome.COMPLETED, traffic_class="batch"), at_least=1.0)


def talk(scenario) -> Workload:
    return Workload((TALK,), seed=scenario.seed)


def gateways(count: int) -> Target:
    return Target(namespace=NAMESPACE, selector=SELECTOR, how_many=Count(count))


async def names(cluster) -> set[str]:
    return {pod.name for pod in await cluster.pods(NAMESPACE, SELECTOR)}


async def workers(cluster, pod: str) -> set[str]:
    """Process ids of nginx's workers: the children of the container's first process."""
    said = await cluster.exec(NAMESPACE, pod, ("/usr/bin/cat", "/proc/1/task/1/children"))
    return set(said.split())


def with_fallback(text: str) -> str:
    """The batch pool takes over where no connection can be made; what has been sent is never sent again."""
    return text.replace(
        "server INTERACTIVE_POOL:8000;", "server INTERACTIVE_POOL:8000;\n    server BATCH_POOL:8000 backup;"
    ).replace("proxy_next_upstream off", "proxy_next_upstream error timeout")


async def people_without_their_pool(gateway, deployed, open_loop, chaos, scenario) -> list[RequestRecord]:
    """Records of the people who came while the interactive pool was known to be gone.

    Its answers in flight are lost with it, as those of any engine that goes: suites/chaos tells that story.
    """
    interactive, _ = deployed
    pool = Target(namespace=interactive.namespace, selector=interactive.selector, how_many=Count(1))
    both = Workload((TALK, JOB), seed=scenario.seed)
    async with open_loop(gateway, Poisson(rate=PER_S, seed=scenario.seed), both, duration_s=15) as load:
        await load.until(completed=10)
        journal = await chaos(Scale(target=pool, replicas=0, duration_s=5), spares_nobody=True)
        await load.done()
    gone_at, back_at = journal.lasted
    came = [r for r in load.records if r.traffic_class == "people" and gone_at + KNOWN_WITHIN_S <= r.sent_at < back_at]
    scenario.guard("people came while their pool was gone", bool(came))
    scenario.expect(request_count(traffic_class="batch"), at_least=1, guard=True)
    return came
