"""What stands before the engine, whoever says it: nginx, an Ingress, an HTTPRoute or Kong."""

import re
from collections.abc import Iterator, Mapping

from shakedown.serving.lint.http_routes import http_routes
from shakedown.serving.lint.kong import kong_routes
from shakedown.serving.lint.nginx_syntax import Block, seconds
from shakedown.serving.lint.route import Patience, Route
from shakedown.serving.lint.tree import at, labels_of, mappings, text
from shakedown.serving.lint.world import Item, NginxFile, Place, World

NGINX_READ_TIMEOUT_S = NGINX_CONNECT_TIMEOUT_S = 60.0
INGRESS_NGINX_CONNECT_TIMEOUT_S = 5.0
NGINX_KEEPALIVE_S = 60.0
NOT_GENERATING = re.compile(r"^location .*(health|metrics|ping|ready|live)")
ANNOTATION = "nginx.ingress.kubernetes.io/"


def routes(world: World) -> Iterator[Route]:
    """All routes of nginx files, of Ingresses for ingress-nginx, of the Gateway API and of Kong."""
    for file in world.nginx:
        for block in proxying(file):
            yield _of_block(file, block)
    for item in world.of("Ingress"):
        if _for_nginx(item):
            yield _of_ingress(item)
    yield from http_routes(world)
    yield from kong_routes(world)


def proxying(file: NginxFile) -> Iterator[Block]:
    """Blocks that hand requests on over HTTP; health checks and scrapes are short and do not count."""
    return (block for block in file.root.walk() if block.here("proxy_pass") and not _short_or_raw(block))


def _short_or_raw(block: Block) -> bool:
    return bool(NOT_GENERATING.search(" ".join(block.words))) or any(
        outer.name == "stream" for outer in block.outward()
    )


def place_of(file: NginxFile, block: Block) -> Place:
    prefix = "" if file.place.object == "nginx" else f"{file.place.object}, "
    return Place(file.place.file, f"{prefix}{block.path or block.name or 'nginx'}")


def upstreams(file: NginxFile) -> dict[str, Block]:
    return {block.words[1]: block for block in file.root.walk() if block.name == "upstream" and len(block.words) > 1}


def keepalive_s(upstream: Block) -> float | None:
    """How long nginx keeps idle connections to an upstream; None if it keeps none."""
    if not upstream.here("keepalive"):
        return None
    return seconds(upstream.value("keepalive_timeout", f"{NGINX_KEEPALIVE_S:g}s"))


def _of_block(file: NginxFile, block: Block) -> Route:
    buffering = block.value("proxy_buffering", "on") != "off"
    timeout = seconds(block.value("proxy_read_timeout", ""))
    connect = seconds(block.value("proxy_connect_timeout", ""))
    return Route(
        place=place_of(file, block),
        buffers="proxy_buffering is on (nginx's default)" if buffering else "",
        patience=_nginx_patience(timeout, given=bool(block.effective("proxy_read_timeout"))),
        repeats=_nginx_repeats(block.value("proxy_next_upstream", "error timeout")),
        ignores_abort=block.value("proxy_ignore_client_abort", "off") == "on",
        connecting=_nginx_connecting(connect, NGINX_CONNECT_TIMEOUT_S),
    )


def _of_ingress(item: Item) -> Route:
    """ingress-nginx: buffering is off by default, the read timeout is nginx's own."""
    notes = annotations(item)
    timeout = notes.get(f"{ANNOTATION}proxy-read-timeout", "")
    return Route(
        place=item.place,
        buffers="proxy-buffering is on" if notes.get(f"{ANNOTATION}proxy-buffering", "off") == "on" else "",
        patience=_nginx_patience(seconds(timeout), given=bool(timeout)),
        repeats=_nginx_repeats(notes.get(f"{ANNOTATION}proxy-next-upstream", "error timeout")),
        connecting=_nginx_connecting(
            seconds(notes.get(f"{ANNOTATION}proxy-connect-timeout", "")), INGRESS_NGINX_CONNECT_TIMEOUT_S
        ),
    )


def _nginx_patience(timeout_s: float | None, *, given: bool) -> Patience:
    return Patience(setting="proxy_read_timeout", seconds=timeout_s or NGINX_READ_TIMEOUT_S, given=given)


def _nginx_connecting(timeout_s: float | None, default_s: float) -> Patience:
    return Patience(setting="proxy_connect_timeout", seconds=timeout_s or default_s, given=timeout_s is not None)


def _nginx_repeats(next_upstream: str) -> str:
    return "proxy_next_upstream has non_idempotent" if "non_idempotent" in next_upstream.split() else ""


def annotations(item: Item) -> Mapping[str, str]:
    return labels_of(at(item.body, "metadata", "annotations"))


def _for_nginx(item: Item) -> bool:
    name = text(at(item.body, "spec", "ingressClassName")) or annotations(item).get("kubernetes.io/ingress.class", "")
    return "nginx" in name or (not name and bool(mappings(at(item.body, "spec", "rules"))) and _annotated(item))


def _annotated(item: Item) -> bool:
    return any(key.startswith(ANNOTATION) for key in annotations(item))
