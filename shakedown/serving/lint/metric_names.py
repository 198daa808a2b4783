"""Rules about the names of metrics: colon or underscore, gone, not yet there, never there."""

from collections.abc import Iterator
from dataclasses import dataclass

from shakedown.engine.metrics import FAMILIES, HISTORY, INTER_TOKEN_LATENCY
from shakedown.serving.lint.findings import Assumptions, Fault, Severity, error, warning
from shakedown.serving.lint.promql import series_in
from shakedown.serving.lint.queries import Query, hpa_metrics, queries, recorded_names
from shakedown.serving.lint.world import World

PARTS = ("_bucket", "_sum", "_count", "_created")


@dataclass(frozen=True, slots=True)
class Span:
    """Release in which a replacement first exists, and the first one without the old name."""

    since: tuple[int, int]
    gone: tuple[int, int]


RENAMED = Span((0, 10), (0, 12))
"""vllm#18354: gpu_cache_usage_perc became kv_cache_usage_perc, gpu_prefix_cache_* became prefix_cache_*."""
SPANS = {INTER_TOKEN_LATENCY: Span((0, 11), (0, 13))}
WITHOUT_SUCCESSOR_GONE = (0, 10)
"""The V0 engine's own metrics: hidden one minor release after their deprecation, removed in the next."""


@error(
    "query-underscore-name",
    effect="Prometheus knows vllm: with a colon; the query returns nothing and looks like an idle engine",
    fix="write the name with a colon in PromQL; only the metrics API of an adapter has the underscore name",
    reference="D01 (kthena#868)",
)
def query_underscore_name(world: World, assumptions: Assumptions) -> Iterator[Fault]:
    recorded = recorded_names(world)
    for query, name in _names(world):
        if name.startswith("vllm_") and name not in recorded:
            yield Fault(query.place, f"the query reads {name}", fix=f"write {name.replace('_', ':', 1)}")


@error(
    "hpa-metric-colon",
    effect="the metrics API has no such metric and the HPA shows <unknown>: it never scales",
    fix="name the metric as the adapter's `as:` gives it, such as vllm_num_requests_waiting",
    reference="D01 (kthena#868)",
)
def hpa_metric_colon(world: World, assumptions: Assumptions) -> Iterator[Fault]:
    for metric in hpa_metrics(world):
        if ":" in metric.name:
            yield Fault(metric.place, f"the HPA asks a metrics API for {metric.name}, a name of Prometheus")


@error(
    "metric-gone",
    effect="the query returns nothing on that engine: no alert fires and no replica is added",
    fix="use the name of today",
    reference="C14 (vllm#18354), C15 (vllm PR#15458)",
)
def metric_gone(world: World, assumptions: Assumptions) -> Iterator[Fault]:
    versions = _versions(world)
    for query, name in _names(world):
        family = _family(name)
        past = HISTORY.get(family)
        if past is None:
            continue
        gone = SPANS.get(past.now or "", RENAMED).gone if past.now else WITHOUT_SUCCESSOR_GONE
        since = SPANS.get(past.now or "", RENAMED).since
        if versions and max(versions) < since:
            continue
        severity = None if versions and max(versions) >= gone else Severity.WARNING
        fix = f"use {past.now}" if past.now else "remove it: nothing took its place"
        yield Fault(query.place, f"the query reads {family}, {past.when}", fix=fix, severity=severity)


@error(
    "metric-not-yet",
    effect="the query returns nothing on that engine: no alert fires and no replica is added",
    fix="use the name that this release exports, or a newer engine",
    reference="C14 (vllm#18354)",
)
def metric_not_yet(world: World, assumptions: Assumptions) -> Iterator[Fault]:
    before = {past.now: old for old, past in HISTORY.items() if past.now}
    versions = _versions(world)
    for query, name in _names(world):
        family = _family(name)
        since = SPANS.get(family, RENAMED).since
        if family in before and versions and min(versions) < since:
            release = ".".join(map(str, min(versions)))
            yield Fault(
                query.place,
                f"the query reads {family}, and vLLM {release} calls it {before[family]}",
                fix=f"use {before[family]}",
            )


@warning(
    "metric-unknown",
    effect="if no engine exports it, the query returns nothing and looks like an idle engine",
    fix="compare the name with `curl ENGINE/metrics`",
    reference="D20 (vllm#7918): absent is not zero",
)
def metric_unknown(world: World, assumptions: Assumptions) -> Iterator[Fault]:
    known = known_families() | recorded_names(world)
    for query, name in _names(world):
        family = _family(name)
        if name.startswith("vllm:") and not {name, family, f"{family}_total"} & known and family not in HISTORY:
            # Only one release is known by heart, and plugins add their own.
            yield Fault(query.place, f"no release known here exports {name}")


def known_families() -> frozenset[str]:
    """Families of all captured releases."""
    lines = (line for file in FAMILIES.glob("*.txt") for line in file.read_text().splitlines())
    return frozenset(line.partition(" ")[0] for line in lines if line)


def _names(world: World) -> Iterator[tuple[Query, str]]:
    """Each name once per query."""
    for query in queries(world):
        # An adapter selects families by pattern; a name that ends in the middle is a part of one.
        for name in dict.fromkeys(series.name for series in series_in(query.text)):
            if name not in ("vllm:", "vllm_"):
                yield query, name


def _family(name: str) -> str:
    part = next((part for part in PARTS if name.endswith(part)), "")
    return name.removesuffix(part)


def _versions(world: World) -> list[tuple[int, int]]:
    return [placed.engine.version for placed in world.engines() if placed.engine.version is not None]


RULES = (query_underscore_name, hpa_metric_colon, metric_gone, metric_not_yet, metric_unknown)
