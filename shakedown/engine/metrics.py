"""vLLM metrics that the harness reads: their names, how they were called before, and a parser of their text.

The names are checked against manifests/vllm/metric-families/<release>.txt, captured from the engine itself.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx

from shakedown.errors import HarnessError, UsageError

REQUESTS_RUNNING = "vllm:num_requests_running"
REQUESTS_WAITING = "vllm:num_requests_waiting"
REQUESTS_ENDED = "vllm:request_success_total"
"""By reason. A request whose caller left while it waited in the queue is in none of them (0.32)."""
KV_CACHE_USAGE = "vllm:kv_cache_usage_perc"
"""Gauge from 0 to 1, despite its name."""
PREEMPTIONS = "vllm:num_preemptions_total"
GENERATION_TOKENS = "vllm:generation_tokens_total"
PREFIX_CACHE_HITS = "vllm:prefix_cache_hits_total"
PREFIX_CACHE_QUERIES = "vllm:prefix_cache_queries_total"
INTER_TOKEN_LATENCY = "vllm:inter_token_latency_seconds"


@dataclass(frozen=True, slots=True)
class Past:
    """What became of a metric's name."""

    now: str | None
    """The name today; None where nothing took its place."""
    when: str


_RENAMED = "renamed in 0.9, hidden in 0.11, gone in 0.12"
_NEVER_IN_V1 = "of the V0 engine: hidden one minor release after its deprecation, removed in the next"
HISTORY: Mapping[str, Past] = {
    "vllm:gpu_cache_usage_perc": Past(KV_CACHE_USAGE, _RENAMED),
    "vllm:gpu_prefix_cache_hits_total": Past(PREFIX_CACHE_HITS, _RENAMED),
    "vllm:gpu_prefix_cache_queries_total": Past(PREFIX_CACHE_QUERIES, _RENAMED),
    "vllm:time_per_output_token_seconds": Past(INTER_TOKEN_LATENCY, "deprecated in 0.11, hidden in 0.12, gone by 0.16"),
    "vllm:num_requests_swapped": Past(None, _NEVER_IN_V1),
    "vllm:cpu_cache_usage_perc": Past(None, _NEVER_IN_V1),
    "vllm:gpu_prefix_cache_hit_rate": Past(None, _NEVER_IN_V1),
    "vllm:cpu_prefix_cache_hit_rate": Past(None, _NEVER_IN_V1),
    "vllm:time_in_queue_requests": Past("vllm:request_queue_time_seconds", _NEVER_IN_V1),
    "vllm:model_forward_time_milliseconds": Past(None, _NEVER_IN_V1),
    "vllm:model_execute_time_milliseconds": Past(None, _NEVER_IN_V1),
}
"""Names that dashboards may still use. An engine shows a hidden one with --show-hidden-metrics-for-version."""

MEANT_AS_SHARE = (KV_CACHE_USAGE,)
LABELS_KEPT = ("finished_reason", "reason", "source", "sleep_state")
"""Labels whose values mean different things: each is kept beside the sum, as name{label="value"}."""
NOT_READ = ("_bucket", "_created", "_info")
HISTOGRAM_PARTS = ("_sum", "_count")
FAMILIES = Path(__file__).resolve().parents[2] / "manifests" / "vllm" / "metric-families"
SCRAPE_LIMIT_S = 5.0
_CACHE_LABEL = {
    name: re.compile(rf'^vllm:cache_config_info{{[^\n]*\b{name}="(\d+)"', re.MULTILINE)
    for name in ("num_gpu_blocks", "block_size")
}
_BOUND = re.compile(r'\ble="([^"]+)"')


def parse_metrics(text: str) -> dict[str, float]:
    """Every vllm: sample of a /metrics text by its name now, summed over labels; of histograms the sum and the count.

    Shares are not summed but averaged: several engines behind one API server each report their own cache. Where an
    engine exports a metric under its old and its new name, the old one is left out. Raises ValueError for a line that
    is not a sample.
    """
    totals: dict[str, list[float]] = {}
    for name, labels, value in _samples(text):
        totals.setdefault(name, []).append(value)
        for label in LABELS_KEPT:
            if (start := labels.find(f'{label}="')) >= 0 and labels[start - 1 : start] in ("", ","):
                end = labels.index('"', start + len(label) + 2) + 1
                totals.setdefault(f"{name}{{{labels[start:end]}}}", []).append(value)
    return {current_name(name): _together(name, values) for name, values in totals.items() if _counts(name, totals)}


def current_name(name: str) -> str:
    """The name that today's engines give a metric or a part of a histogram; a name without a successor stays."""
    part = next((part for part in HISTOGRAM_PARTS if name.endswith(part)), "")
    past = HISTORY.get(name.removesuffix(part))
    return past.now + part if past is not None and past.now is not None else name


@dataclass(frozen=True, slots=True)
class CacheShape:
    """How an engine has cut its KV cache."""

    blocks: int
    block_tokens: int

    @property
    def tokens(self) -> int:
        return self.blocks * self.block_tokens


def cache_shape(text: str) -> CacheShape:
    """From a /metrics text. Raises HarnessError where the engine does not tell."""
    found = {name: _CACHE_LABEL[name].search(text) for name in _CACHE_LABEL}
    if not all(found.values()):
        raise HarnessError("the engine's metrics do not tell how many KV blocks it has (vllm:cache_config_info)")
    blocks, block_tokens = (int(found[name][1]) for name in ("num_gpu_blocks", "block_size"))  # type: ignore[index]
    return CacheShape(blocks, block_tokens)


def histogram(text: str, name: str) -> dict[float, float]:
    """Of a /metrics text: upper bound of each bucket, infinity included, and how many fell into that bucket alone.

    Summed over labels; empty where there is no such histogram.
    """
    cumulative: dict[float, float] = {}
    for line in text.splitlines():
        if line.startswith(f"{name}_bucket{{") and (bound := _BOUND.search(line)):
            cumulative[float(bound[1])] = cumulative.get(float(bound[1]), 0.0) + float(line.rpartition(" ")[2])
    bounds = sorted(cumulative)
    return {
        bound: cumulative[bound] - (cumulative[bounds[index - 1]] if index else 0.0)
        for index, bound in enumerate(bounds)
    }


async def read_metrics(url: str) -> dict[str, float]:
    """Scrape the engine at a base URL. Raises HarnessError if it does not answer."""
    return parse_metrics(await exposition(url))


async def exposition(url: str) -> str:
    """The whole /metrics text of the engine at a base URL. Raises HarnessError if it does not answer."""
    try:
        async with httpx.AsyncClient(timeout=SCRAPE_LIMIT_S, trust_env=False) as client:
            answer = await client.get(f"{url}/metrics")
            answer.raise_for_status()
    except httpx.HTTPError as error:
        raise HarnessError(f"{url}/metrics did not answer: {error or type(error).__name__}") from error
    return answer.text


def golden_families(version: str) -> frozenset[str]:
    """ "name type" of every family that an engine version exports. Raises UsageError if it was never captured."""
    path = FAMILIES / f"{version}.txt"
    if not path.is_file():
        raise UsageError(f"the metric families of vLLM {version} were never captured ({path.name} is missing)")
    return frozenset(line for line in path.read_text().splitlines() if line)


def missing_families(text: str, golden: frozenset[str]) -> frozenset[str]:
    """Golden families that a /metrics text does not declare under that name and type."""
    declared = {" ".join(line.split()[2:4]) for line in text.splitlines() if line.startswith("# TYPE vllm:")}
    return golden - declared


def _samples(text: str) -> Iterator[tuple[str, str, float]]:
    """Name, labels and value. Every pod is scraped every second: a general parser takes 25 times as long."""
    for line in text.split("\n"):
        if not line.startswith("vllm:"):
            continue
        head, _, value = line.rpartition(" ")
        name, _, labels = head.partition("{")
        if not name.endswith(NOT_READ):
            yield name, labels.rstrip("}"), float(value)


def _counts(name: str, totals: Mapping[str, object]) -> bool:
    now = current_name(name)
    return now == name or now not in totals


def _together(name: str, values: list[float]) -> float:
    return sum(values) / len(values) if current_name(name) in MEANT_AS_SHARE else sum(values)
