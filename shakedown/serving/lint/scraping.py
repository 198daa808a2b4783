"""Rules about what Prometheus scrapes: the engines themselves, not the router before them."""

from collections.abc import Iterator
from typing import Any

from shakedown.serving.lint.findings import Assumptions, Fault, Severity, error
from shakedown.serving.lint.tree import at, labels_of, mapping, mappings, text, texts
from shakedown.serving.lint.world import Item, World, selects

FIX = "select the Service (or pods) of the engines, and check that the series carry their pods' names"
EFFECT = "series are absent, or all zero from a router: the autoscaler sees an idle engine whatever the load"


@error("scrape-misses-engine", effect=EFFECT, fix=FIX, reference="D05 (production-stack#318, OPEA#431)")
def scrape_misses_engine(world: World, assumptions: Assumptions) -> Iterator[Fault]:
    monitors = list(world.of("ServiceMonitor", "PodMonitor"))
    if not any(world.engines()) or any(_engines_under(world, monitor) for monitor in monitors):
        return
    for monitor in monitors:
        if _about_vllm(monitor):
            names = ", ".join(item.name for item in _selected(world, monitor))
            if names:
                yield Fault(monitor.place, f"it selects {names}, not the engine pods")
            else:
                # What it selects may be declared elsewhere.
                yield Fault(monitor.place, "it selects nothing of the files", severity=Severity.WARNING)


@error("scrape-port-missing", effect=EFFECT, fix="name a port that the Service has", reference="D05 (OPEA#431)")
def scrape_port_missing(world: World, assumptions: Assumptions) -> Iterator[Fault]:
    for monitor in world.of("ServiceMonitor"):
        services = [item for item in _selected(world, monitor) if item.kind == "Service"]
        ports = {text(port.get("name")) for item in services for port in mappings(at(item.body, "spec", "ports"))}
        for endpoint in mappings(at(monitor.body, "spec", "endpoints")):
            port = text(endpoint.get("port"))
            if services and port and port not in ports:
                yield Fault(monitor.place, f'no Service that it selects has a port named "{port}"')


def _selected(world: World, monitor: Item) -> list[Item]:
    """Services that a ServiceMonitor picks, or workloads whose pods a PodMonitor picks."""
    selector = at(monitor.body, "spec", "selector")
    if monitor.kind == "PodMonitor":
        return [item for item, load in world.workloads() if _in_reach(monitor, item) and selects(selector, load.labels)]
    return [item for item in world.of("Service") if _in_reach(monitor, item) and selects(selector, item.labels)]


def _engines_under(world: World, monitor: Item) -> bool:
    picked = _selected(world, monitor)
    engines = list(world.engines())
    if monitor.kind == "PodMonitor":
        return any(placed.item in picked for placed in engines)
    return any(
        service.beside(placed.item) and selects(at(service.body, "spec", "selector"), placed.workload.labels)
        for service in picked
        for placed in engines
    )


def _in_reach(monitor: Item, item: Item) -> bool:
    where = mapping(at(monitor.body, "spec", "namespaceSelector"))
    if where.get("any") is True or item.namespace is None:
        return True
    named = texts(where.get("matchNames"))
    return item.namespace in named if named else monitor.beside(item)


def _about_vllm(monitor: Item) -> bool:
    selector: Any = at(monitor.body, "spec", "selector", "matchLabels")
    words = [monitor.name, *labels_of(selector).values(), *monitor.labels.values()]
    return any("vllm" in word or "llm" in word for word in words)


RULES = (scrape_misses_engine, scrape_port_missing)
