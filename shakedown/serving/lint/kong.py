"""Kong's declarative configuration (deck): services with their timeouts and retries, routes with their buffering.

Defaults: https://developer.konghq.com/gateway/entities/service/ and …/route/. That a timeout counts as a failure to
be tried again is Kong's own word: https://developer.konghq.com/support/kong-proxy-latency-exceeds-timeout-limit-specified-on-service/
"""

from collections.abc import Iterator, Mapping
from typing import Any

from shakedown.serving.lint.route import Patience, Route
from shakedown.serving.lint.tree import at, mapping, mappings, number, text
from shakedown.serving.lint.world import Item, Place, World

READ_TIMEOUT_MS = CONNECT_TIMEOUT_MS = 60_000
RETRIES = 5
MARK = "_format_version"
"""The key by which a document is known as Kong's."""


def kong_routes(world: World) -> Iterator[Route]:
    """Each route of each service of Kong's declarative configurations."""
    for item in world.items:
        if MARK not in item.body:
            continue
        for service in mappings(item.body.get("services")):
            for route in _routes_of(service, item):
                yield _route(item, service, route)


def _routes_of(service: Mapping[Any, Any], item: Item) -> Iterator[Mapping[Any, Any]]:
    """Those inside the service, and those of the top level that name it."""
    yield from mappings(service.get("routes"))
    for route in mappings(item.body.get("routes")):
        if text(at(route, "service", "name")) == text(service.get("name")) != "":
            yield route


def _route(item: Item, service: Mapping[Any, Any], route: Mapping[Any, Any]) -> Route:
    service = {**_defaults(item, "service"), **service}
    route = {**_defaults(item, "route"), **route}
    retries = number(service.get("retries"))
    names = f"Kong service {text(service.get('name'))}, route {text(route.get('name'))}"
    return Route(
        place=Place(item.file, names),
        buffers="" if route.get("response_buffering") is False else _said("response_buffering", "true", route),
        patience=_patience("read_timeout", READ_TIMEOUT_MS, service),
        connecting=_patience("connect_timeout", CONNECT_TIMEOUT_MS, service),
        repeats="" if retries == 0 else _said("retries", f"{RETRIES if retries is None else retries:g}", service),
    )


def _patience(setting: str, default_ms: float, service: Mapping[Any, Any]) -> Patience:
    given_ms = number(service.get(setting))
    return Patience(
        setting=setting, seconds=(default_ms if given_ms is None else given_ms) / 1000, given=given_ms is not None
    )


def _defaults(item: Item, kind: str) -> Mapping[Any, Any]:
    return mapping(at(item.body, "_info", "defaults", kind))


def _said(setting: str, value: str, entity: Mapping[Any, Any]) -> str:
    return f"{setting} is {value}" + ("" if setting in entity else " (Kong's default)")
