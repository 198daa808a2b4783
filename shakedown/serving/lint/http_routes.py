"""HTTPRoutes of the Gateway API: their timeouts and retries, and what their implementation adds.

The route itself says nothing about buffering. Envoy and Istio pass answers on as they come; NGINX Gateway Fabric
buffers unless a ProxySettingsPolicy forbids it, and Kong unless an annotation does.
https://docs.nginx.com/nginx-gateway-fabric/traffic-management/proxy-settings/
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from shakedown.serving.lint.nginx_syntax import seconds
from shakedown.serving.lint.route import Patience, Route
from shakedown.serving.lint.tree import at, labels_of, mapping, mappings, number, text, texts
from shakedown.serving.lint.world import Item, Place, World

TIMEOUTS = ("request", "backendRequest")
KONG_BUFFERING = "konghq.com/response-buffering"


def http_routes(world: World) -> Iterator[Route]:
    """Each rule of each HTTPRoute."""
    for item in world.of("HTTPRoute"):
        buffers = _buffers(item, world)
        for position, rule in enumerate(mappings(at(item.body, "spec", "rules"))):
            name = text(rule.get("name")) or f"{position + 1}"
            yield Route(
                place=Place(item.file, f"{item.place.object}, rule {name}"),
                buffers=buffers,
                patience=_patience(rule),
                repeats=_repeats(rule),
            )


def _patience(rule: Mapping[Any, Any]) -> Patience:
    given = {name: _limit(text(value)) for name, value in mapping(rule.get("timeouts")).items() if name in TIMEOUTS}
    shortest = min(given, key=lambda name: given[name], default="request")
    return Patience(setting=f"timeouts.{shortest}", seconds=given.get(shortest), given=bool(given))


def _limit(value: str) -> float:
    """Zero means no limit: https://gateway-api.sigs.k8s.io/geps/gep-1742/"""
    return seconds(value) or math.inf


def _repeats(rule: Mapping[Any, Any]) -> str:
    retry = mapping(rule.get("retry"))
    if not retry or number(retry.get("attempts"), 1) == 0:
        return ""
    codes = ", ".join(texts(retry.get("codes")))
    return f"retry asks again after {codes or 'failures'}, whatever the method"


def _buffers(item: Item, world: World) -> str:
    kind = _implementation(item, world)
    annotation = labels_of(at(item.body, "metadata", "annotations")).get(KONG_BUFFERING)
    if annotation == "true" or (kind == "kong" and annotation is None):
        return f"{KONG_BUFFERING} is true" + ("" if annotation else " (Kong's default)")
    if kind == "nginx" and not any(_passes_on(policy, item) for policy in world.of("ProxySettingsPolicy")):
        return "its Gateway is nginx, and no ProxySettingsPolicy has buffering.disable"
    return ""


def _implementation(item: Item, world: World) -> str:
    """nginx or kong, if a Gateway among the files says so."""
    parents = [text(parent.get("name")) for parent in mappings(at(item.body, "spec", "parentRefs"))]
    classes = [text(at(gw.body, "spec", "gatewayClassName")) for gw in world.of("Gateway") if gw.name in parents]
    return next((kind for kind in ("nginx", "kong") for name in classes if kind in name), "")


def _passes_on(policy: Item, item: Item) -> bool:
    targets = mappings(at(policy.body, "spec", "targetRefs"))
    parents = [text(parent.get("name")) for parent in mappings(at(item.body, "spec", "parentRefs"))]
    wanted = {("HTTPRoute", item.name), *(("Gateway", name) for name in parents)}
    hit = any((text(target.get("kind")), text(target.get("name"))) in wanted for target in targets)
    return hit and at(policy.body, "spec", "buffering", "disable") is True
