"""Rules about the gateway: streams, queues, retries, idle connections, headers."""

import re
from collections.abc import Iterator

from shakedown.serving.lint.findings import Assumptions, Fault, Severity, error, warning
from shakedown.serving.lint.gateways import (
    NGINX_READ_TIMEOUT_S,
    keepalive_s,
    place_of,
    proxying,
    routes,
    upstreams,
)
from shakedown.serving.lint.nginx_syntax import Block
from shakedown.serving.lint.world import NginxFile, World

CONNECT_WITHIN_S = 5.0
"""A connection inside a cluster takes milliseconds; TCP asks again after 1 s and after 3 s."""
ENGINE_KEEP_ALIVE_S = 5.0
"""uvicorn's default, which vLLM keeps unless VLLM_HTTP_TIMEOUT_KEEP_ALIVE says otherwise."""
PRIORITY_HEADER = re.compile(r"\$http_(\w*priority\w*)")


@error(
    "stream-buffered",
    effect="readers get tokens in bursts of 16 kB, and the first token after many seconds; even headers are withheld",
    fix="set proxy_buffering off (Kong: response_buffering: false; NGINX Gateway Fabric: a ProxySettingsPolicy)",
    reference="E01 (dstack#4269)",
)
def stream_buffered(world: World, assumptions: Assumptions) -> Iterator[Fault]:
    for route in routes(world):
        if route.buffers:
            yield Fault(route.place, route.buffers)


@error(
    "gateway-read-timeout",
    effect="a request that waits in the engine's queue is cut with 504, and clients that retry send it again",
    fix="set it to the client's timeout or more: queueing counts as silence",
    reference="E08 (open-asm#451), E05 (Omega#351)",
)
def gateway_read_timeout(world: World, assumptions: Assumptions) -> Iterator[Fault]:
    for route in routes(world):
        patience = route.patience
        if patience.seconds is None:
            wrong = (
                f"{patience.setting} is not set, and the implementation's default may be 15 s (Envoy) or 60 s (nginx)"
            )
            yield Fault(route.place, wrong, severity=Severity.WARNING)
        elif patience.seconds < assumptions.client_timeout_s:
            given = "" if patience.given else " (the default)"
            yield Fault(
                route.place,
                f"{patience.setting} is {patience.seconds:g} s{given}, and clients wait "
                f"{assumptions.client_timeout_s:g} s",
                severity=None if patience.seconds <= NGINX_READ_TIMEOUT_S else Severity.WARNING,
            )


@warning(
    "gateway-connect-timeout",
    effect="a replica whose node is gone refuses nothing and answers nothing: until its endpoint is taken away, each "
    "request that meets it waits that long before it is sent to another",
    fix="set it to 2s (Kong: connect_timeout: 2000): a connection inside a cluster takes milliseconds",
    reference="a node lost under load",
)
def gateway_connect_timeout(world: World, assumptions: Assumptions) -> Iterator[Fault]:
    for route in routes(world):
        connecting = route.connecting
        if connecting is not None and (connecting.seconds or 0.0) > CONNECT_WITHIN_S:
            given = "" if connecting.given else " (the default)"
            yield Fault(route.place, f"{connecting.setting} is {connecting.seconds:g} s{given}")


@error(
    "gateway-keepalive-long",
    effect="a request is sent into a connection that the engine has just closed: sporadic 502 after a pause",
    fix="set the upstream's keepalive_timeout to 3s, or VLLM_HTTP_TIMEOUT_KEEP_ALIVE in the engine above the gateway's",
    reference="E09 (vllm PR#18472, llm-d#1564)",
)
def gateway_keepalive_long(world: World, assumptions: Assumptions) -> Iterator[Fault]:
    engine_s = min((placed.engine.keep_alive_s for placed in world.engines()), default=ENGINE_KEEP_ALIVE_S)
    for file in world.nginx:
        for upstream in upstreams(file).values():
            idle_s = keepalive_s(upstream)
            if idle_s is not None and idle_s >= engine_s:
                yield Fault(
                    place_of(file, upstream),
                    f"idle connections are kept {idle_s:g} s, and the engine closes its own after {engine_s:g} s",
                )


@error(
    "gateway-retries-generation",
    effect="when a replica dies or is slow, its answers are generated again: twice the work at the worst moment",
    fix="take non_idempotent out of proxy_next_upstream (Kong: retries: 0; HTTPRoute: no retry)",
    reference="E10 (openresty#200)",
)
def gateway_retries_generation(world: World, assumptions: Assumptions) -> Iterator[Fault]:
    for route in routes(world):
        if route.repeats:
            yield Fault(route.place, route.repeats)


@error(
    "client-abort-ignored",
    effect="the engine goes on generating for readers who have left, and its slots stay taken",
    fix="remove proxy_ignore_client_abort on",
    reference="E12 (vllm#9428)",
)
def client_abort_ignored(world: World, assumptions: Assumptions) -> Iterator[Fault]:
    for route in routes(world):
        if route.ignores_abort:
            yield Fault(route.place, "proxy_ignore_client_abort is on")


@warning(
    "keepalive-unused",
    effect="every request opens a new connection to the engine",
    fix='set proxy_http_version 1.1 and proxy_set_header Connection ""',
    reference="nginx: keepalive needs HTTP/1.1",
)
def keepalive_unused(world: World, assumptions: Assumptions) -> Iterator[Fault]:
    for file in world.nginx:
        keeping = {name for name, block in upstreams(file).items() if block.here("keepalive")}
        for block in proxying(file):
            target = block.value("proxy_pass", "").partition("://")[2].partition("/")[0].partition(":")[0]
            if target not in keeping and not (target.startswith("$") and keeping):
                continue
            missing = _missing_for_keepalive(block)
            if missing:
                yield Fault(place_of(file, block), f"its upstream has keepalive, and {' and '.join(missing)}")


def _missing_for_keepalive(block: Block) -> list[str]:
    headers = _headers_set(block)
    missing = []
    if block.value("proxy_http_version", "1.0") == "1.0":
        missing.append("proxy_http_version is 1.0")
    if "connection" not in headers or headers["connection"].lower() == "close":
        missing.append("the Connection header is close")
    return missing


@warning(
    "header-underscore",
    effect="nginx and most gateways drop headers with an underscore silently: the request falls into the default pool",
    fix="use hyphens (X-Traffic-Class), and leave underscores_in_headers off",
    reference="E26 (ingress-nginx#2974)",
)
def header_underscore(world: World, assumptions: Assumptions) -> Iterator[Fault]:
    for file in world.nginx:
        for block in file.root.walk():
            if ("on",) in block.here("underscores_in_headers"):
                wrong = "underscores_in_headers is on: X_Name and X-Name become the same variable"
                yield Fault(place_of(file, block), wrong)
            for words in block.here("proxy_set_header"):
                if words and "_" in words[0]:
                    yield Fault(place_of(file, block), f"it sends the header {words[0]} to the next hop")


@error(
    "priority-header-trusted",
    effect="any caller may name itself important, and its batch job passes the people who wait",
    fix='strip the header from outside (proxy_set_header NAME "") and derive the priority from who the caller is',
    reference="spoofed priority header",
)
def priority_header_trusted(world: World, assumptions: Assumptions) -> Iterator[Fault]:
    for file in world.nginx:
        for variable in sorted(set(_priority_variables(file))):
            name = variable.replace("_", "-")
            for block in proxying(file):
                passed = _headers_set(block).get(name)
                if passed is None or f"$http_{variable}" in passed:
                    yield Fault(
                        place_of(file, block), f"the caller's own {name} header decides and is passed on unchanged"
                    )


def _priority_variables(file: NginxFile) -> Iterator[str]:
    for block in file.root.walk():
        for words in (block.words, *block.directives):
            yield from PRIORITY_HEADER.findall(" ".join(words))


def _headers_set(block: Block) -> dict[str, str]:
    """Headers that a block sets on what it passes on, by lower-case name."""
    return {words[0].lower(): " ".join(words[1:]) for words in block.effective("proxy_set_header") if words}


RULES = (
    stream_buffered,
    gateway_read_timeout,
    gateway_connect_timeout,
    gateway_keepalive_long,
    gateway_retries_generation,
    client_abort_ignored,
    keepalive_unused,
    header_underscore,
    priority_header_trusted,
)
