"""The hop between users and engines: what it decides, what it must pass on, and what it does when something is gone.

A gateway that buffers, retries or keeps a reader's place is not slower, it is wrong: text comes in bursts, one
question is answered three times, and engines write for nobody. Each of these is planted once and must be seen.
"""

import asyncio

import httpx
import pytest

from shakedown.chaos import Count, Target
from shakedown.chaos.faults import PodKill, Scale
from shakedown.engine.metrics import REQUESTS_RUNNING, REQUESTS_WAITING, exposition, read_metrics
from shakedown.errors import WaitTimeout
from shakedown.judge.expectations import fact, goodput, lost_beyond_in_flight, outcome_count, outcome_share
from shakedown.judge.objectives import SLO
from shakedown.judge.records import Outcome
from shakedown.judge.windows import strike_window
from shakedown.load import Burst, Poisson, TrafficClass, Workload
from shakedown.serving.configuration import Serving
from shakedown.serving.gateway import NAMESPACE, SELECTOR
from shakedown.waiting import wait_until

SLOTS = ("--max-num-seqs", "16")
POOLS = (
    Serving(replicas=1, pool="interactive", engine_args=(SLOTS,)),
    Serving(replicas=1, pool="batch", engine_args=(SLOTS,)),
)
WHAT_USERS_EXPECT = SLO(ttft_s=1.5, tpot_s=0.1)
TALK = TrafficClass(name="people", prompt_tokens=64, max_tokens=64, headers={"X-Traffic-Class": "interactive"})
JOB = TrafficClass(name="batch", prompt_tokens=64, max_tokens=64, headers={"X-Traffic-Class": "batch"})
LEAVERS = 16
SLOT_FREED_WITHIN_S = 5.0
REFUSED_WITHIN_S = 1.0
CROWD = 48
ATTEMPTS = 3
"""A client of OpenAI's library asks again twice by default."""

pytestmark = pytest.mark.serving(*POOLS)

WHO_GOES_WHERE = {
    "says interactive": ({"X-Traffic-Class": "interactive"}, "interactive"),
    "says batch": ({"X-Traffic-Class": "batch"}, "batch"),
    "says nothing": ({}, "interactive"),
    "says a class that does not exist": ({"X-Traffic-Class": "urgent"}, "interactive"),
    "says batch with underscores, which nginx drops": ({"x_traffic_class": "batch"}, "interactive"),
    "has a batch tenant's key and says interactive": (
        {"Authorization": "Bearer batch-tenant-example", "X-Traffic-Class": "interactive"},
        "batch",
    ),
}


async def test_the_header_decides_the_pool_unless_the_key_does(gateway, vllm, scenario):
    """Each caller lands in the pool of its class; a batch tenant that claims to be a person does not."""
    async with httpx.AsyncClient(base_url=gateway.url, timeout=30, trust_env=False) as client:
        for who, (headers, pool) in WHO_GOES_WHERE.items():
            answer = await client.post("/v1/completions", json=one_word(vllm.model), headers=headers)
            scenario.fact(f"pool of who {who}", answer.headers["X-Pool"])
            scenario.expect(fact(f"pool of who {who}"), equals=pool)


async def test_tokens_pass_the_gateway_one_by_one(gateway, vllm, open_loop, scenario):
    """Streams arrive through the gateway as finely as from the engine itself."""
    direct = await events_per_read(vllm, open_loop, scenario, name="direct")
    through = await events_per_read(gateway, open_loop, scenario, name="through")

    scenario.fact("events in one read, directly", direct)
    scenario.fact("events in one read, through the gateway", through)
    scenario.expect(fact("events in one read, through the gateway"), at_most=direct * 1.5)
    scenario.expect(outcome_share(Outcome.COMPLETED), at_least=1.0)


async def test_a_reader_who_leaves_is_passed_on_to_the_engine(gateway, vllm, open_loop, scenario):
    """Sixteen readers hang up, in the middle or before the first word; the engine stops writing for them."""
    leaver = TrafficClass(prompt_tokens=64, max_tokens=2000, abandon_after_tokens=5)
    async with open_loop(gateway, Burst(LEAVERS), Workload((leaver,), seed=scenario.seed), duration_s=1) as load:
        await load.done()
    scenario.fact("slots held for who left in the middle", await slots_held(vllm))
    await leave_before_the_first_word(gateway, vllm)
    scenario.fact("slots held for who left before the first word", await slots_held(vllm))

    scenario.expect(fact("slots held for who left in the middle"), equals=0)
    scenario.expect(fact("slots held for who left before the first word"), equals=0)


async def test_a_gateway_that_hides_the_leaving_is_seen_to(gateway_with, vllm, scenario):
    """With that planted, the engine goes on writing for nobody, and the held slots show it."""
    deaf = await gateway_with(
        change=lambda text: text.replace("proxy_ignore_client_abort off", "proxy_ignore_client_abort on")
    )
    await leave_before_the_first_word(deaf, vllm)
    scenario.fact("slots held for who left before the first word", await slots_held(vllm))
    scenario.expect(fact("slots held for who left before the first word"), at_least=1)


async def test_one_of_two_gateways_killed_costs_only_what_it_carried(gateway_with, open_loop, chaos, scenario):
    """Killing one of two gateways costs the answers that it carried; new requests go through the other."""
    gateway = await gateway_with(replicas=2)
    async with open_loop(gateway, Poisson(rate=6, seed=scenario.seed), talk(scenario), duration_s=20) as load:
        await load.until(completed=10)
        await chaos(PodKill(target=gateways(1)))
        await load.done()

    scenario.expect(goodput(WHAT_USERS_EXPECT), at_least=0.9)
    scenario.expect(lost_beyond_in_flight(), at_most=0)


async def test_a_reload_loses_no_stream(gateway, cluster, open_loop, scenario):
    """A new configuration is taken while streams are under way: the old workers carry them to their end."""
    async with open_loop(gateway, Poisson(rate=6, seed=scenario.seed), talk(scenario), duration_s=10) as load:
        await load.until(completed=10)
        (pod,) = await cluster.pods(NAMESPACE, SELECTOR)
        reload = ("/usr/sbin/nginx", "-c", "/etc/gateway/nginx.conf", "-s", "reload")
        scenario.fact("what nginx said", await cluster.exec(NAMESPACE, pod.name, reload))
        await load.done()

    scenario.expect(outcome_share(Outcome.COMPLETED), at_least=1.0)


async def test_a_gateway_that_is_scaled_in_finishes_its_streams(gateway_with, open_loop, chaos, scenario):
    """From two gateways to one and back under streams: nobody is cut off."""
    gateway = await gateway_with(replicas=2)
    async with open_loop(gateway, Poisson(rate=6, seed=scenario.seed), talk(scenario), duration_s=20) as load:
        await load.until(completed=10)
        await chaos(Scale(target=gateways(1), replicas=1, duration_s=5))
        await load.done()

    scenario.expect(outcome_share(Outcome.COMPLETED), at_least=1.0)


@pytest.mark.harms_its_engine
async def test_without_its_pool_people_are_refused_at_once(gateway, deployed, open_loop, chaos, scenario):
    """The interactive pool is gone: people get a clear refusal within a second, and the batch job goes on."""
    await without_the_interactive_pool(gateway, deployed, open_loop, chaos, scenario)

    scenario.expect(outcome_count(Outcome.FAILED, traffic_class="people"), at_least=1)
    scenario.expect(fact("slowest refusal"), at_most=REFUSED_WITHIN_S)
    scenario.expect(outcome_share(Outcome.COMPLETED, traffic_class="batch"), at_least=1.0)


@pytest.mark.harms_its_engine
async def test_with_a_fallback_people_are_served_by_the_other_pool(gateway_with, deployed, open_loop, chaos, scenario):
    """The same with the batch pool as a backup for connections that fail: only what was in flight is lost."""
    gateway = await gateway_with(change=with_fallback)
    await without_the_interactive_pool(gateway, deployed, open_loop, chaos, scenario)

    scenario.expect(lost_beyond_in_flight(), at_most=0)
    scenario.expect(outcome_share(Outcome.COMPLETED, traffic_class="people"), at_least=0.9)
    scenario.expect(outcome_share(Outcome.COMPLETED, traffic_class="batch"), at_least=1.0)


async def test_a_question_is_asked_once_at_the_engine(gateway, vllm, open_loop, scenario):
    """Behind a long queue, a client that would ask again gets its answer, and the engine saw one request."""
    status, seen = await one_question_behind_a_queue(gateway, vllm, open_loop, scenario)

    scenario.fact("status that the client got", status)
    scenario.fact("requests that the engine saw for it", seen)
    scenario.expect(fact("status that the client got"), equals=200)
    scenario.expect(fact("requests that the engine saw for it"), equals=1)


async def test_a_gateway_less_patient_than_its_queue_is_seen_to(gateway_with, vllm, open_loop, scenario):
    """With a read timeout below the queue planted, one question costs the engine three and is never answered."""
    impatient = await gateway_with(change=lambda text: text.replace("proxy_read_timeout 900s", "proxy_read_timeout 1s"))
    status, seen = await one_question_behind_a_queue(impatient, vllm, open_loop, scenario)

    scenario.fact("status that the client got", status)
    scenario.fact("requests that the engine saw for it", seen)
    scenario.expect(fact("status that the client got"), equals=504)
    scenario.expect(fact("requests that the engine saw for it"), equals=ATTEMPTS)


def talk(scenario) -> Workload:
    return Workload((TALK,), seed=scenario.seed)


def gateways(count: int) -> Target:
    return Target(namespace=NAMESPACE, selector=SELECTOR, how_many=Count(count))


def one_word(model: str) -> dict[str, object]:
    return {"model": model, "prompt": "hello", "max_tokens": 1}


def with_fallback(text: str) -> str:
    """The batch pool takes over where no connection can be made; what has been sent is never sent again."""
    return text.replace(
        "server INTERACTIVE_POOL:8000;", "server INTERACTIVE_POOL:8000;\n    server BATCH_POOL:8000 backup;"
    ).replace("proxy_next_upstream off", "proxy_next_upstream error")


async def events_per_read(target, open_loop, scenario, *, name: str) -> float:
    """How many events of a stream one read from the socket brings, over a few answers."""
    async with open_loop(target, Poisson(rate=2, seed=scenario.seed), talk(scenario), duration_s=5, name=name) as load:
        await load.done()
    return float(sum(record.events for record in load.records) / sum(record.reads for record in load.records))


async def leave_before_the_first_word(target, engine) -> None:
    """Ask for whole answers, which come in one piece, and hang up while they are made."""
    question = {"model": engine.model, "prompt": "hello", "max_tokens": 2000, "ignore_eos": True}
    async with httpx.AsyncClient(base_url=target.url, timeout=60, trust_env=False) as client:
        asking = [asyncio.create_task(client.post("/v1/completions", json=question)) for _ in range(LEAVERS)]
        await wait_until("every question to run", lambda: requests_in(engine), lambda n: n == LEAVERS, within_s=15)
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)


async def slots_held(engine) -> float:
    """Slots of the engine that are taken although everybody has left."""
    try:
        return await wait_until(
            "free slots", lambda: requests_in(engine), lambda held: held == 0, within_s=SLOT_FREED_WITHIN_S
        )
    except WaitTimeout:
        return await requests_in(engine)


async def requests_in(engine) -> float:
    metrics = [await read_metrics(url) for url in (await engine.ready_engine_urls()).values()]
    return sum(metric[REQUESTS_RUNNING] + metric[REQUESTS_WAITING] for metric in metrics)


async def without_the_interactive_pool(gateway, deployed, open_loop, chaos, scenario) -> None:
    interactive, _ = deployed
    pool = Target(namespace=interactive.namespace, selector=interactive.selector, how_many=Count(1))
    both = Workload((TALK, JOB), seed=scenario.seed)
    async with open_loop(gateway, Poisson(rate=6, seed=scenario.seed), both, duration_s=25) as load:
        await load.until(completed=10)
        await chaos(Scale(target=pool, replicas=0, duration_s=5), spares_nobody=True)
        await load.done()
    gone = strike_window(scenario.bundle.recorded().marks)
    refused = [record for record in load.records if record.outcome is Outcome.FAILED]
    # Who asked while the pool was dying may have been asking the dying one.
    afterwards = [record.finished_at - record.sent_at for record in refused if gone and record.sent_at > gone.end]
    scenario.fact("slowest refusal", max(afterwards, default=0.0))


async def one_question_behind_a_queue(gateway, engine, open_loop, scenario) -> tuple[int, float]:
    """(last status, requests that the engine saw for it) of a client that asks up to three times."""
    crowd = TrafficClass(prompt_tokens=64, max_tokens=400)
    before = await questions_seen(engine)
    async with open_loop(engine, Burst(CROWD), Workload((crowd,), seed=scenario.seed), duration_s=1) as load:
        await wait_until("a queue", lambda: requests_in(engine), lambda held: held >= CROWD, within_s=30)
        status = await asked_up_to_thrice(gateway, engine.model)
        await load.done()
    await wait_until("an idle engine", lambda: requests_in(engine), lambda held: held == 0, within_s=60)
    return status, await questions_seen(engine) - before


async def questions_seen(engine) -> float:
    """HTTP requests to where only the one question goes, by the engine's own count, given up or not."""
    texts = [await exposition(url) for url in (await engine.ready_engine_urls()).values()]
    lines = [line for text in texts for line in text.splitlines() if line.startswith("http_requests_total{")]
    return sum(float(line.rpartition(" ")[2]) for line in lines if 'handler="/v1/completions"' in line)


async def asked_up_to_thrice(gateway, model: str) -> int:
    async with httpx.AsyncClient(base_url=gateway.url, timeout=60, trust_env=False) as client:
        for _ in range(ATTEMPTS):
            answer = await client.post("/v1/completions", json=one_word(model))
            if answer.status_code < 500:
                break
    return answer.status_code
