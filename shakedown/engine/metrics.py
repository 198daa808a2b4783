"""vLLM metrics that the harness reads: their names, how they were called before, and a parser of their text.

The names are checked against manifests/vllm/metric-families/<release>.txt, captured from the engine itself.
"""

from collections.abc import Mapping
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

from shakedown.errors import HarnessError, UsageError

REQUESTS_RUNNING = "vllm:num_requests_running"
REQUESTS_WAITING = "vllm:num_requests_waiting"
KV_CACHE_USAGE = "vllm:kv_cache_usage_perc"
"""Gauge from 0 to 1, despite its name."""
PREEMPTIONS = "vllm:num_preemptions_total"
REQUEST_SUCCESS = "vllm:request_success_total"
PROMPT_TOKENS = "vllm:prompt_tokens_total"
GENERATION_TOKENS = "vllm:generation_tokens_total"
PREFIX_CACHE_HITS = "vllm:prefix_cache_hits_total"
PREFIX_CACHE_QUERIES = "vllm:prefix_cache_queries_total"

ALIASES: Mapping[str, tuple[str, str]] = {
    "vllm:gpu_cache_usage_perc": (KV_CACHE_USAGE, "renamed in 0.10, gone by 0.12"),
    "vllm:gpu_prefix_cache_hits_total": (PREFIX_CACHE_HITS, "renamed in 0.10, gone by 0.12"),
    "vllm:gpu_prefix_cache_queries_total": (PREFIX_CACHE_QUERIES, "renamed in 0.10, gone by 0.12"),
}
"""Old name → the name now, and when it changed."""

MEANT_AS_SHARE = (KV_CACHE_USAGE,)
FAMILIES = Path(__file__).resolve().parents[2] / "manifests" / "vllm" / "metric-families"
SCRAPE_LIMIT_S = 5.0


def parse_metrics(text: str) -> dict[str, float]:
    """Every vllm: sample of a /metrics text by its name now, summed over labels; of histograms the sum and the count.

    Shares are not summed but averaged: two API servers of one engine each report the same cache.
    """
    totals: dict[str, list[float]] = {}
    for family in text_string_to_metric_families(text):
        if family.name.startswith("vllm:"):
            for sample in family.samples:
                if not sample.name.endswith(("_bucket", "_created", "_info")):
                    totals.setdefault(current_name(sample.name), []).append(sample.value)
    return {name: _together(name, values) for name, values in totals.items()}


def current_name(name: str) -> str:
    """The name that today's engines give a metric."""
    return ALIASES[name][0] if name in ALIASES else name


async def read_metrics(url: str) -> dict[str, float]:
    """Scrape the engine at a base URL. Raises HarnessError if it does not answer."""
    try:
        async with httpx.AsyncClient(timeout=SCRAPE_LIMIT_S, trust_env=False) as client:
            answer = await client.get(f"{url}/metrics")
            answer.raise_for_status()
    except httpx.HTTPError as error:
        raise HarnessError(f"{url}/metrics did not answer: {error or type(error).__name__}") from error
    return parse_metrics(answer.text)


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


def _together(name: str, values: list[float]) -> float:
    return sum(values) / len(values) if name in MEANT_AS_SHARE else sum(values)
