"""The hop between users and engines: what it decides, what it must pass on, and what its patience costs.

A gateway that buffers, retries or keeps a reader's place is not slower, it is wrong: text comes in bursts, one
question is answered three times, and engines write for nobody. Each of these is planted once and must be seen.
"""

import math
import re
from contextlib import AsyncExitStack

import httpx
import pytest

from shakedown.engine.metrics import REQUESTS_ENDED, REQUESTS_RUNNING, REQUESTS_WAITING, exposition
from shakedown.errors import WaitTimeout
from shakedown.judge.expectations import events_per_read, fact, outcome_count, outcome_share, peak, percentile_ttft
from shakedown.judge.latency import inter_token_latencies
from shakedown.judge.percentiles import percentile
from shakedown.judge.records import Outcome
from shakedown.load import Burst, Poisson, TrafficClass, Workload
from shakedown.serving.configuration import Serving
from shakedown.serving.deployment import ServingDeployment
from shakedown.waiting import wait_until

SLOTS = 16
IN_16_SLOTS = ("--max-num-seqs", str(SLOTS))
BY_PRIORITY = ("--scheduling-policy", "priority")
INTERACTIVE_POOL = Serving(replicas=1, pool="interactive", device="L4", engine_args=(IN_16_SLOTS, BY_PRIORITY))
BATCH_POOL = Serving(replicas=1, pool="batch", device="L4", engine_args=(IN_16_SLOTS,))

FINE = 1.5
"""Events in one read of a stream that nobody holds back; a busy reader finds two at once now and then."""
HOP_ADDS_AT_MOST_S = 0.05
"""To the p95 gap between tokens."""
FIRST_WORD_WITHIN_S = 0.5
"""An engine with free slots needs 0.1 s; a buffer is full after one second of its tokens."""
BUFFER_BYTES = 4096
"""One memory page: the size of nginx's buffers unless it is told otherwise."""
SLOT_FREED_WITHIN_S = 5.0
CROWD = 32
ATTEMPTS = 3
"""A client of OpenAI's library asks again twice by default."""

COMPLETIONS = re.compile(r'^http_requests_total\{[^}]*handler="/v1/completions"[^}]*\} (\S+)$', re.MULTILINE)

pytestmark = pytest.mark.serving(INTERACTIVE_POOL, BATCH_POOL)

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


async def test_the_header_decides_the_pool_unless_the_key_does(gateway, deployed, vllm, scenario):
    """Each caller is answered by the pool of its class; a batch tenant that claims to be a person is not."""
    async with httpx.AsyncClient(base_url=gateway.url, timeout=30, trust_env=False) as client:
        for who, (headers, pool) in WHO_GOES_WHERE.items():
            before = await ended_by_pool(deployed)
            answer = await client.post("/v1/completions", json=one_word(vllm.model), headers=headers)
            after = await counted(deployed, before)
            scenario.fact(f"pool of who {who}, by the gateway's word", answer.headers["X-Pool"])
            scenario.fact(f"pool of who {who}", [name for name in after if after[name] > before[name]])
            scenario.expect(fact(f"pool of who {who}, by the gateway's word"), equals=pool)
            scenario.expect(fact(f"pool of who {who}"), equals=[pool])


async def test_nobody_outside_names_his_own_priority(gateway_with, scenario):
    """X-Priority from outside does not reach the other side of the gateway; where it is let through, that is seen."""
    for name, change in {"as shipped": with_mirror, "let through": lambda text: trusting(with_mirror(text))}.items():
        gateway = await gateway_with(change=change)
        async with httpx.AsyncClient(base_url=gateway.url, timeout=30, trust_env=False) as client:
            answer = await client.get("/", headers={"X-Priority": "-100"})
        scenario.fact(f"what arrives of X-Priority, {name}", answer.text)

    scenario.expect(fact("what arrives of X-Priority, as shipped"), equals="")
    scenario.expect(fact("what arrives of X-Priority, let through"), equals="-100")


async def test_tokens_pass_the_gateway_one_by_one(gateway, vllm, open_loop, scenario):
    """Of readers at the same engine, those behind the gateway get their tokens as finely and evenly as the others."""
    loads = {}
    async with AsyncExitStack() as stack:
        for name, target in {"direct": vllm, "through": gateway}.items():
            talk = Workload((TrafficClass(name=name, prompt_tokens=64, max_tokens=64),), seed=scenario.seed)
            arrivals = Poisson(rate=1, seed=scenario.seed)
            loads[name] = await stack.enter_async_context(open_loop(target, arrivals, talk, duration_s=8, name=name))
    gap_s = {name: p95_gap(load.records) for name, load in loads.items()}
    scenario.fact("p95 gap between tokens, direct", gap_s["direct"])
    scenario.fact("what the gateway adds to it", gap_s["through"] - gap_s["direct"])

    scenario.expect(events_per_read(traffic_class="direct"), at_most=FINE, guard=True)
    scenario.expect(events_per_read(traffic_class="through"), at_most=FINE)
    scenario.expect(fact("what the gateway adds to it"), at_most=HOP_ADDS_AT_MOST_S)
    scenario.expect(outcome_share(Outcome.COMPLETED), at_least=1.0)


async def test_an_nginx_in_front_is_told_not_to_buffer(gateway_with, open_loop, scenario):
    """Behind somebody else's nginx, as it comes, tokens still arrive one by one: the gateway's answers ask for it."""
    await listen(await gateway_with(change=behind_an_edge), open_loop, scenario)

    scenario.expect(events_per_read(), at_most=FINE)
    scenario.expect(percentile_ttft(50), at_most=FIRST_WORD_WITHIN_S)


async def test_a_hop_that_buffers_is_seen_to(gateway_with, vllm, open_loop, scenario):
    """Without that wish text comes a buffer at a time, the first word included, and the same measure shows it."""
    await listen(await gateway_with(change=lambda text: wishless(behind_an_edge(text))), open_loop, scenario)
    fit = BUFFER_BYTES / await bytes_per_event(vllm)
    scenario.fact("events that fit a buffer", fit)

    # The last burst of an answer is what is left over.
    scenario.expect(events_per_read(), between=(0.6 * fit, 1.2 * fit))
    scenario.expect(percentile_ttft(50), at_least=FIRST_WORD_WITHIN_S)


async def test_a_reader_who_leaves_is_passed_on_to_the_engine(gateway, vllm, open_loop, scenario):
    """Sixteen callers hang up, reading or still waiting; the engine behind the gateway stops writing for them."""
    scenario.fact("slots still held", await slots_held_after_leaving(gateway, vllm, open_loop, scenario))
    scenario.expect(fact("slots still held"), equals=0)


async def test_a_gateway_that_hides_the_leaving_is_seen_to(gateway_with, vllm, open_loop, scenario):
    """With that planted, the engine goes on writing for who waited for a whole answer, and the held slots show it."""
    deaf = await gateway_with(
        change=lambda text: text.replace("proxy_ignore_client_abort off", "proxy_ignore_client_abort on")
    )
    scenario.fact("slots still held", await slots_held_after_leaving(deaf, vllm, open_loop, scenario))
    scenario.expect(fact("slots still held"), at_least=1)


async def test_a_question_is_asked_once_at_the_engine(gateway, vllm, open_loop, scenario):
    """Behind a long queue, a client that would ask again gets its answer, and the engine saw one request."""
    await one_question_behind_a_queue(gateway, vllm, open_loop, scenario)

    scenario.expect(fact("status that the client got"), equals=200)
    scenario.expect(fact("requests that the engine saw for it"), equals=1)


async def test_a_gateway_less_patient_than_its_queue_is_seen_to(gateway_with, vllm, open_loop, scenario):
    """With a read timeout below the queue planted, one question costs the engine three and is never answered."""
    impatient = await gateway_with(change=lambda text: text.replace("proxy_read_timeout 900s", "proxy_read_timeout 1s"))
    await one_question_behind_a_queue(impatient, vllm, open_loop, scenario)

    scenario.expect(fact("status that the client got"), equals=504)
    scenario.expect(fact("requests that the engine saw for it"), equals=ATTEMPTS)


def one_word(model: str) -> dict[str, object]:
    return {"model": model, "prompt": "hello", "max_tokens": 1}


async def ended_by_pool(deployed) -> dict[str, float]:
    return {engine.rendered.serving.pool: await engine.total(REQUESTS_ENDED) for engine in deployed}


async def counted(deployed, before: dict[str, float]) -> dict[str, float]:
    """The counters once they have moved: an engine answers first and counts then."""
    return await wait_until(
        "an engine that counts the answer", lambda: ended_by_pool(deployed), lambda seen: seen != before, within_s=10
    )


async def in_the_engine(engine: ServingDeployment) -> float:
    return await engine.total(REQUESTS_RUNNING, REQUESTS_WAITING)


def with_mirror(text: str) -> str:
    """In the place of the interactive pool, a server that answers with the X-Priority that it received."""
    mirror = '  server { listen 8081; location / { return 200 "$http_x_priority"; } }\n'
    return text.replace("INTERACTIVE_POOL:8000", "127.0.0.1:8081").replace("  server {\n", f"{mirror}  server {{\n", 1)


def trusting(text: str) -> str:
    return text.replace('proxy_set_header X-Priority "";', "")


def behind_an_edge(text: str) -> str:
    """In front of the gateway, a second nginx with its defaults before 1.29.7, written out: HTTP/1.0 and buffers."""
    edge = f"""  server {{
    listen 8080;
    location / {{
      proxy_pass http://127.0.0.1:8082;
      proxy_http_version 1.0;
      proxy_buffering on;
      proxy_buffer_size {BUFFER_BYTES};
      proxy_buffers 8 {BUFFER_BYTES};
    }}
  }}
"""
    return text.replace("listen 8080;", "listen 8082;").replace("  server {\n", f"{edge}  server {{\n", 1)


def wishless(text: str) -> str:
    return text.replace("add_header X-Accel-Buffering no always;", "")


async def listen(target, open_loop, scenario) -> None:
    talk = Workload((TrafficClass(prompt_tokens=64, max_tokens=64),), seed=scenario.seed)
    async with open_loop(target, Poisson(rate=1, seed=scenario.seed), talk, duration_s=8) as load:
        await load.done()


async def bytes_per_event(engine) -> float:
    body = {"model": engine.model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 16, "stream": True}
    async with httpx.AsyncClient(base_url=engine.url, timeout=30, trust_env=False) as client:
        stream = (await client.post("/v1/chat/completions", json={**body, "ignore_eos": True})).content
    return len(stream) / stream.count(b"\n\n")


def p95_gap(records) -> float:
    """Infinity where no answer had two tokens."""
    return percentile((gap for record in records for gap in inter_token_latencies(record)), 95) or math.inf


async def slots_held_after_leaving(target, engine, open_loop, scenario) -> float:
    """Slots of the engine that are still taken a while after everybody has left."""
    reading = TrafficClass(name="reading", prompt_tokens=64, max_tokens=200, abandon_after_tokens=25)
    waiting = TrafficClass(
        name="waiting",
        prompt_tokens=64,
        max_tokens=200,
        abandon_after_s=2,
        extra={"stream": False, "stream_options": None},
    )
    both = Workload((reading, waiting), seed=scenario.seed)
    async with open_loop(target, Burst(SLOTS), both, duration_s=1) as load:
        await load.done()
    scenario.expect(outcome_count(Outcome.ABANDONED), equals=SLOTS, guard=True)
    scenario.expect(peak(REQUESTS_RUNNING), at_least=SLOTS, guard=True)
    try:
        held = await wait_until(
            "free slots", lambda: in_the_engine(engine), lambda held: held == 0, within_s=SLOT_FREED_WITHIN_S
        )
    except WaitTimeout:
        held = await in_the_engine(engine)
    await idle(engine)
    return held


async def one_question_behind_a_queue(gateway, engine, open_loop, scenario) -> None:
    """A client asks up to three times while others fill the engine; what it got, and what the engine saw for it."""
    crowd = Workload((TrafficClass(name="crowd", prompt_tokens=64, max_tokens=100),), seed=scenario.seed)
    before = await questions_seen(engine)
    async with open_loop(engine, Burst(CROWD), crowd, duration_s=1) as load:
        await wait_until("a queue", lambda: in_the_engine(engine), lambda held: held >= CROWD, within_s=30)
        scenario.fact("status that the client got", await asked_up_to_thrice(gateway, engine.model))
        await load.done()
    await idle(engine)
    scenario.fact("requests that the engine saw for it", await questions_seen(engine) - before)


async def questions_seen(engine: ServingDeployment) -> float:
    """Completions that the engine's HTTP server has seen the end of.

    The crowd chats, so that these are the one client's. vLLM's own counters leave out who left the queue.
    """
    texts = [await exposition(url) for url in (await engine.ready_engine_urls()).values()]
    return sum(float(count) for text in texts for count in COMPLETIONS.findall(text))


async def asked_up_to_thrice(gateway, model: str) -> int:
    async with httpx.AsyncClient(base_url=gateway.url, timeout=60, trust_env=False) as client:
        for _ in range(ATTEMPTS):
            answer = await client.post("/v1/completions", json=one_word(model))
            if answer.status_code < 500:
                break
    return answer.status_code


async def idle(engine: ServingDeployment) -> None:
    await wait_until("an idle engine", lambda: in_the_engine(engine), lambda held: held == 0, within_s=60)
