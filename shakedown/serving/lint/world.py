"""All that the files declare, together: a rule may need a Service, a Deployment and an autoscaler at once."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from shakedown.serving.lint.engines import Engine, Workload, engine_of, workload_body
from shakedown.serving.lint.nginx_syntax import Block
from shakedown.serving.lint.tree import at, labels_of, mappings, number, text


@dataclass(frozen=True, slots=True)
class Place:
    """Where something is wrong."""

    file: str
    object: str


@dataclass(frozen=True, slots=True, eq=False)
class Item:
    """One YAML document; `namespace` is None where the file leaves it open."""

    file: str
    body: Mapping[str, Any]
    namespace: str | None

    @property
    def kind(self) -> str:
        return text(self.body.get("kind"))

    @property
    def name(self) -> str:
        return text(at(self.body, "metadata", "name"))

    @property
    def place(self) -> Place:
        return Place(self.file, f"{self.kind} {self.name}".strip() or "document")

    @property
    def labels(self) -> dict[str, str]:
        return labels_of(at(self.body, "metadata", "labels"))

    def beside(self, other: "Item") -> bool:
        """Whether both may be in one namespace."""
        return None in (self.namespace, other.namespace) or self.namespace == other.namespace


@dataclass(frozen=True, slots=True, eq=False)
class NginxFile:
    """A parsed nginx configuration."""

    place: Place
    root: Block


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """A workload or its engine with the document that declares it."""

    item: Item
    workload: Workload
    engine: Engine

    @property
    def place(self) -> Place:
        return Place(self.item.file, f"{self.item.kind} {self.item.name}, container {self.engine.name}")


@dataclass(frozen=True, slots=True, eq=False)
class World:
    """Everything that was read."""

    items: tuple[Item, ...]
    nginx: tuple[NginxFile, ...] = ()

    def of(self, *kinds: str) -> Iterator[Item]:
        return (item for item in self.items if item.kind in kinds)

    def workloads(self) -> Iterator[tuple[Item, Workload]]:
        for item in self.items:
            body = workload_body(item.kind, item.body)
            if body is not None:
                yield item, body

    def engines(self) -> Iterator[Placed]:
        for item, workload in self.workloads():
            engine = engine_of(workload)
            if engine is not None:
                yield Placed(item, workload, engine)

    def autoscaled_floor(self, item: Item) -> int | None:
        """The fewest replicas that an autoscaler leaves a workload; None if it has no autoscaler."""
        floors = [bounds[0] for scaler, bounds in self._bounds(item)]
        return min(floors, default=None)

    def most_replicas(self, item: Item, workload: Workload) -> int:
        return max([workload.replicas, *(bounds[1] for _, bounds in self._bounds(item))])

    def _bounds(self, item: Item) -> Iterator[tuple[Item, tuple[int, int]]]:
        for scaler in self.of("HorizontalPodAutoscaler", "ScaledObject"):
            if not scaler.beside(item) or text(at(scaler.body, "spec", "scaleTargetRef", "name")) != item.name:
                continue
            names, default = (
                (("minReplicas", "maxReplicas"), (1, 1))
                if scaler.kind == "HorizontalPodAutoscaler"
                else (("minReplicaCount", "maxReplicaCount"), (0, 100))
            )
            low, high = (
                int(number(at(scaler.body, "spec", name), only) or 0) for name, only in zip(names, default, strict=True)
            )
            yield scaler, (low, high)


def selects(selector: Any, labels: Mapping[str, str]) -> bool:
    """Whether a label selector, or a Service's plain map of labels, picks these labels. An empty one picks nothing."""
    structured = isinstance(selector, dict) and ("matchLabels" in selector or "matchExpressions" in selector)
    wanted = labels_of(at(selector, "matchLabels") if structured else selector)
    expressions = mappings(at(selector, "matchExpressions")) if structured else []
    if not wanted and not expressions:
        return False
    return all(labels.get(key) == value for key, value in wanted.items()) and all(
        _expression_holds(expression, labels) for expression in expressions
    )


def _expression_holds(expression: Mapping[Any, Any], labels: Mapping[str, str]) -> bool:
    key, operator = text(expression.get("key")), text(expression.get("operator"))
    values = [text(value) for value in expression.get("values") or ()] if operator in ("In", "NotIn") else []
    holds = {
        "In": labels.get(key) in values,
        "NotIn": labels.get(key) not in values,
        "Exists": key in labels,
        "DoesNotExist": key not in labels,
    }
    return holds.get(operator, False)
