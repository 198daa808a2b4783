"""Every place of the files that asks Prometheus something or names a metric to scale on."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from shakedown.serving.lint.engines import Engine
from shakedown.serving.lint.tree import at, mapping, mappings, number, text
from shakedown.serving.lint.world import Item, Place, World

QUANTITY_SUFFIXES = {"m": 0.001, "k": 1e3, "M": 1e6}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Query:
    """A PromQL text and what is done with its value."""

    item: Item
    place: Place
    text: str
    scales: bool = False
    target: str = ""
    """Name of the workload that is scaled by it."""
    threshold: float | None = None
    per_replica: bool = False
    """The value is divided by the number of replicas before it meets the threshold."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScaledMetric:
    """A metric that an HPA names, to be answered by a metrics API."""

    item: Item
    place: Place
    kind: str
    """Pods, Object or External."""
    name: str
    average_value: float | None


def queries(world: World) -> Iterator[Query]:
    """All PromQL of the world."""
    for item in world.items:
        yield from _of_triggers(item)
        yield from _of_adapter(item)
        yield from _of_groups(item)


def prometheus_triggers(world: World) -> Iterator[tuple[Item, Place, Mapping[Any, Any]]]:
    """KEDA triggers that ask Prometheus."""
    for item in world.of("ScaledObject", "ScaledJob"):
        for position, trigger in enumerate(mappings(at(item.body, "spec", "triggers"))):
            if text(trigger.get("type")) == "prometheus":
                yield item, Place(item.file, f"{item.place.object}, trigger {position + 1}"), trigger


def adapter_rules(item: Item) -> Iterator[tuple[str, Mapping[Any, Any]]]:
    """Rules of a Prometheus adapter with their API, "custom" or "external": its own file or its chart's values."""
    sources = {
        "custom": (item.body.get("rules"), at(item.body, "rules", "custom")),
        "external": (item.body.get("externalRules"), at(item.body, "rules", "external")),
    }
    for api, places in sources.items():
        for place in places:
            for rule in mappings(place):
                if "seriesQuery" in rule:
                    yield api, rule


def hpa_metrics(world: World) -> Iterator[ScaledMetric]:
    """Metrics of HPAs that come from a metrics API other than that of resources."""
    for item in world.of("HorizontalPodAutoscaler"):
        for metric in mappings(at(item.body, "spec", "metrics")):
            kind = text(metric.get("type"))
            source = mapping(metric.get(kind.lower()))
            name = text(at(source, "metric", "name"))
            if kind in ("Pods", "Object", "External") and name:
                yield ScaledMetric(
                    item=item,
                    place=item.place,
                    kind=kind,
                    name=name,
                    average_value=quantity(at(source, "target", "averageValue")),
                )


def scaled_engine(world: World, item: Item, target: str) -> Engine | None:
    """The engine that an autoscaler scales, if the files have it."""
    return next(
        (placed.engine for placed in world.engines() if placed.item.name == target and placed.item.beside(item)), None
    )


def target_of(item: Item) -> str:
    return text(at(item.body, "spec", "scaleTargetRef", "name"))


def recorded_names(world: World) -> frozenset[str]:
    """Series that recording rules of the files create."""
    return frozenset(text(rule.get("record")) for item in world.items for rule in _group_rules(item)) - {""}


def quantity(value: Any) -> float | None:
    """A Kubernetes quantity such as 500m, 2 or 3k; None for anything else."""
    written = text(value)
    factor = QUANTITY_SUFFIXES.get(written[-1:])
    found = number(written[:-1] if factor else written)
    return None if found is None else found * (factor or 1)


def _of_triggers(item: Item) -> Iterator[Query]:
    for holder, place, trigger in prometheus_triggers(World((item,))):
        metadata = mapping(trigger.get("metadata"))
        yield Query(
            item=holder,
            place=place,
            text=text(metadata.get("query")),
            scales=True,
            target=target_of(holder),
            threshold=number(metadata.get("threshold")),
            per_replica=text(trigger.get("metricType")) in ("", "AverageValue"),
        )


def _of_adapter(item: Item) -> Iterator[Query]:
    for _, rule in adapter_rules(item):
        series = text(rule.get("seriesQuery"))
        place = Place(item.file, f"{item.place.object}, adapter rule {series}")
        yield Query(item=item, place=place, text=series)
        yield Query(item=item, place=place, text=text(rule.get("metricsQuery")))


def _of_groups(item: Item) -> Iterator[Query]:
    for rule in _group_rules(item):
        name = text(rule.get("alert")) or text(rule.get("record"))
        yield Query(item=item, place=Place(item.file, f"{item.place.object}, {name}"), text=text(rule.get("expr")))


def _group_rules(item: Item) -> Iterator[Mapping[Any, Any]]:
    """Alerting and recording rules, of a PrometheusRule or of Prometheus' own file."""
    for groups in (at(item.body, "spec", "groups"), item.body.get("groups")):
        for group in mappings(groups):
            yield from mappings(group.get("rules"))
