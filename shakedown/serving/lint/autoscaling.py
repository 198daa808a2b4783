"""Rules about autoscaling: targets that cannot be met, metrics that lie, sources that fail."""

import re
from collections.abc import Iterator

from shakedown.engine.metrics import KV_CACHE_USAGE as SHARE
from shakedown.engine.metrics import REQUESTS_RUNNING as RUNNING
from shakedown.engine.metrics import current_name
from shakedown.serving.lint.findings import Assumptions, Fault, Severity, error, warning
from shakedown.serving.lint.metric_names import known_families
from shakedown.serving.lint.promql import grouped, outermost, series_in
from shakedown.serving.lint.queries import (
    adapter_rules,
    hpa_metrics,
    prometheus_triggers,
    queries,
    scaled_engine,
    target_of,
)
from shakedown.serving.lint.tree import at, mapping, mappings, number, text
from shakedown.serving.lint.world import Item, World

LARGEST_DEFAULT_SEQUENCES = 1024
"""vLLM's default of max-num-seqs on the largest GPUs; a target from here is out of reach whatever the flag."""
NOT_ADDITIVE = ("histogram_quantile", "avg", "max", "min", "quantile")
TELLS_MODELS_APART = re.compile(r"model|pod|service|deployment|app|job|instance|container|pool|release")
SCALES_HUNDREDFOLD = re.compile(r"\*\s*100\b|\b100\s*\*")


@error(
    "metric-not-served",
    effect="the HPA shows <unknown> for it and never scales on it",
    fix="add an adapter rule with this name under `as:`, or use a name that it has",
    reference="D02 (production-stack#341)",
)
def metric_not_served(world: World, assumptions: Assumptions) -> Iterator[Fault]:
    served = {api: set(_served(world, api)) for api in ("custom", "external")}
    if not any(served.values()):
        return
    for metric in hpa_metrics(world):
        names = served["external" if metric.kind == "External" else "custom"]
        if metric.name not in names and ":" not in metric.name:
            yield Fault(
                metric.place,
                f"no adapter rule of the files serves the {metric.kind} metric {metric.name}",
                fix=f"add a rule with `as: {metric.name}`" + (f"; served are {_few(names)}" if names else ""),
            )


def _few(names: set[str]) -> str:
    return ", ".join(sorted(names)[:3]) + (" and more" if len(names) > 3 else "")


def _served(world: World, api: str) -> Iterator[str]:
    """Names under which an adapter serves the series that its rules select."""
    for item in world.items:
        for found_api, rule in adapter_rules(item):
            if found_api != api:
                continue
            query = text(rule.get("seriesQuery"))
            names = {series.name for series in series_in(query)} | set(re.findall(r"^[A-Za-z_:][\w:]*", query))
            pattern = re.search(r'__name__\s*=~\s*"([^"]*)"', query)
            if pattern:
                names |= {name for name in known_families() if _matches(pattern[1].replace("\\\\", "\\"), name)}
            yield from (_renamed(rule, name) for name in names)


def _renamed(rule: object, name: str) -> str:
    matches, as_name = text(at(rule, "name", "matches")), text(at(rule, "name", "as"))
    if not matches:
        return as_name or name
    template = re.sub(r"\$\{?(\d+)\}?", r"\\g<\1>", as_name or ("$1" if "(" in matches else "$0"))
    try:
        return re.sub(matches, template, name, count=1)
    except (re.error, IndexError):
        return name


def _matches(pattern: str, name: str) -> bool:
    try:
        return re.fullmatch(pattern, name) is not None
    except re.error:
        return False


@error(
    "target-out-of-reach",
    effect="the gauge of running requests stops at max-num-seqs: the target is never exceeded, and requests only queue",
    fix="scale on vllm:num_requests_waiting, or set the target well below max-num-seqs",
    reference="D06 (LLMKube#482)",
)
def target_out_of_reach(world: World, assumptions: Assumptions) -> Iterator[Fault]:
    for query in queries(world):
        only_running = {series.name for series in series_in(query.text)} == {RUNNING}
        if query.per_replica and query.threshold is not None and only_running:
            cap = _cap(world, query.item, query.target)
            if query.threshold >= cap:
                yield Fault(
                    query.place,
                    f"the target is {query.threshold:g} running requests a replica, and at most {cap:g} run",
                )
    for metric in hpa_metrics(world):
        cap = _cap(world, metric.item, target_of(metric.item))
        if "num_requests_running" in metric.name and (metric.average_value or 0) >= cap:
            yield Fault(
                metric.place,
                f"the target is {metric.average_value:g} running requests a replica, and at most {cap:g} run",
            )


def _cap(world: World, item: Item, target: str) -> float:
    engine = scaled_engine(world, item, target)
    cap = engine.number("--max-num-seqs") if engine else None
    return cap or LARGEST_DEFAULT_SEQUENCES


@error(
    "share-as-percent",
    effect="the gauge goes from 0 to 1 despite its name: a target above 1 is never exceeded",
    fix="write the target as a share, such as 0.8",
    reference="C14 (vllm#18354)",
)
def share_as_percent(world: World, assumptions: Assumptions) -> Iterator[Fault]:
    for query in queries(world):
        only_share = {current_name(series.name) for series in series_in(query.text)} == {SHARE}
        if only_share and (query.threshold or 0) > 1 and not SCALES_HUNDREDFOLD.search(query.text):
            yield Fault(query.place, f"the threshold of {SHARE} is {query.threshold:g}")
    for metric in hpa_metrics(world):
        if "cache_usage_perc" in metric.name and (metric.average_value or 0) > 1:
            yield Fault(metric.place, f"the target of {metric.name} is {metric.average_value:g}")


@error(
    "null-is-zero",
    effect="an empty answer counts as 0 waiting requests: the ScaledObject looks healthy and scales in under load",
    fix='set metadata.ignoreNullValues: "false"',
    reference="D10 (llm-d#2492)",
)
def null_is_zero(world: World, assumptions: Assumptions) -> Iterator[Fault]:
    for _, place, trigger in prometheus_triggers(world):
        if text(at(trigger, "metadata", "ignoreNullValues")).lower() != "false":
            yield Fault(place, "ignoreNullValues is not false")


@error(
    "fallback-missing",
    effect="when Prometheus is down, the workload is scaled in to its minimum while users wait",
    fix="add spec.fallback with failureThreshold and as many replicas as a busy hour needs",
    reference="D11 (keda#1850)",
)
def fallback_missing(world: World, assumptions: Assumptions) -> Iterator[Fault]:
    for item in {item: None for item, _, _ in prometheus_triggers(world) if item.kind == "ScaledObject"}:
        if "replicas" in mapping(at(item.body, "spec", "fallback")):
            continue
        floor = number(at(item.body, "spec", "minReplicaCount"), 0.0)
        severity = Severity.WARNING if floor else None
        yield Fault(item.place, f"there is no fallback, and minReplicaCount is {floor:g}", severity=severity)


@warning(
    "sum-mixes-models",
    effect="one model's queue scales another model's replicas",
    fix='select by model_name (or by the pods\' namespace and service), such as {model_name="…"}',
    reference="namespace sum mixing models",
)
def sum_mixes_models(world: World, assumptions: Assumptions) -> Iterator[Fault]:
    models = {placed.engine.model for placed in world.engines()} - {""}
    for query in queries(world):
        series = [found for found in series_in(query.text) if found.name not in ("vllm:", "vllm_")]
        mixing = series and not any(TELLS_MODELS_APART.search(label) for found in series for label in found.labels)
        if query.scales and mixing and not grouped(query.text):
            several = f"; the files serve {len(models)} models" if len(models) > 1 else ""
            severity = Severity.ERROR if several else None
            yield Fault(query.place, f"the query takes every model together{several}", severity=severity)


@error(
    "average-of-non-sum",
    effect="the value is divided by the number of replicas, so that each new replica makes a bad latency look good",
    fix="set metricType: Value (an HPA's target type Value), or scale on a sum such as waiting requests",
    reference="AverageValue on a percentile",
)
def average_of_non_sum(world: World, assumptions: Assumptions) -> Iterator[Fault]:
    for query in queries(world):
        call = outermost(query.text)
        if query.per_replica and call in NOT_ADDITIVE and series_in(query.text):
            yield Fault(query.place, f"metricType is AverageValue, and the query is {call}(…), not a sum")


@error(
    "scale-to-zero-blind",
    effect="with no engine running there is no series: nothing ever tells the autoscaler to start one",
    fix="keep one replica, or add a trigger that sees requests without an engine, such as the gateway's",
    reference="scale to zero and back",
)
def scale_to_zero_blind(world: World, assumptions: Assumptions) -> Iterator[Fault]:
    for item in world.of("ScaledObject"):
        floor = number(at(item.body, "spec", "minReplicaCount"), 0.0)
        idle = number(at(item.body, "spec", "idleReplicaCount"))
        triggers = mappings(at(item.body, "spec", "triggers"))
        own = [query for query in queries(World((item,))) if query.scales and series_in(query.text)]
        if (floor == 0 or idle == 0) and triggers and len(own) == len(triggers):
            yield Fault(item.place, "it may scale to 0, and every trigger reads metrics of the engine itself")
    for item in world.of("HorizontalPodAutoscaler"):
        metrics = [metric for metric in hpa_metrics(world) if metric.item is item]
        if number(at(item.body, "spec", "minReplicas")) == 0 and not any(_outside(metric.name) for metric in metrics):
            yield Fault(item.place, "minReplicas is 0, and every metric comes from the engine itself")


def _outside(name: str) -> bool:
    return not name.startswith(("vllm_", "vllm:"))


@error(
    "two-autoscalers",
    effect="they take turns in undoing each other: the number of replicas flaps",
    fix="keep one; KEDA makes its own HPA and takes several triggers",
    reference="KEDA: an HPA beside a ScaledObject",
)
def two_autoscalers(world: World, assumptions: Assumptions) -> Iterator[Fault]:
    scalers = list(world.of("HorizontalPodAutoscaler", "ScaledObject"))
    for position, scaler in enumerate(scalers):
        target = target_of(scaler)
        rival = next(
            (other for other in scalers[:position] if other.beside(scaler) and target_of(other) == target), None
        )
        if target and rival is not None:
            yield Fault(scaler.place, f"{rival.place.object} scales {target} as well")


RULES = (
    metric_not_served,
    target_out_of_reach,
    share_as_percent,
    null_is_zero,
    fallback_missing,
    sum_mixes_models,
    average_of_non_sum,
    scale_to_zero_blind,
    two_autoscalers,
)
