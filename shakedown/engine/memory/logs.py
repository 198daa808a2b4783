"""An engine's own memory lines, of any version since 0.4, held against the arithmetic.

The wordings are those of the releases' sources: V0's `worker.py` and `executor_base.py` (0.4 to 0.10), V1's
`gpu_worker.py`, `kv_cache_utils.py` and `mem_utils.py` (0.8 to 0.32). They are found wherever they stand in a line, so
that time stamps, colours and the prefixes of ranks, pods and log shippers do not matter.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shakedown.engine.devices import GIB
from shakedown.engine.memory.demand import Demand
from shakedown.engine.memory.interval import PRINTED_GIB

NUMBER = r"(-?\d[\d,]*(?:\.\d+)?)"
WHOLE = r"(?=[^\d.,])"
"""After a number without a unit: a log may be cut in the middle of it."""
GI = r"\s?Gi?B"
ESCAPES = re.compile(r"(?:\x1b|\\u001b|\\x1b|\\033)\[[0-?]*[ -/]*[@-~]")
STARTS = re.compile(r"vLLM API server version|Initializing an LLM engine|Initializing a V1 LLM engine")
"""Said once a start; a log that holds several starts is read from the last."""
BANNER_GAP = 20_000
"""Both banners of one start stand closer together than that."""
Pick = Callable[[Sequence[float]], float]


def _last(values: Sequence[float]) -> float:
    return values[-1]


LINES: dict[str, tuple[Pick, str]] = {
    "kv_tokens": (min, rf"[A-Z]\w+ KV cache size: {NUMBER} tokens"),
    "kv_gib": (
        min,
        rf"Available KV cache memory: {NUMBER}{GI}|reserved for KV Cache is {NUMBER}{GI}|kv_cache_size={NUMBER}{GI}"
        rf"|Current kv cache memory in use is {NUMBER}{GI}|reserved {NUMBER}{GI} memory for KV Cache",
    ),
    "max_model_len": (_last, rf"Maximum concurrency for {NUMBER} tokens per request"),
    "concurrency": (min, rf"Maximum concurrency for [\d,]+ tokens per request: {NUMBER}x"),
    "gpu_blocks": (min, rf"# (?!CPU)\w+ blocks: {NUMBER}{WHOLE}|# (?!CPU)\w+ blocks: {NUMBER}, # CPU"),
    "cpu_blocks": (min, rf"# CPU blocks: {NUMBER}{WHOLE}"),
    "total_gib": (
        min,
        rf"total_gpu_memory \({NUMBER}{GI}\)|total_gpu_memory={NUMBER}{GI}|"
        rf"Free memory on device [^(\n]*\([\d.]+/{NUMBER} GiB\) on startup",
    ),
    "utilization": (
        _last,
        rf"gpu_memory_utilization \({NUMBER}\)|Desired GPU memory utilization is \({NUMBER},|"
        rf"desired GPU memory utilization \({NUMBER},|Requested memory: {NUMBER} \(util\)|"
        rf"gpu_memory_utilization[=:]\s?{NUMBER}{WHOLE}",
    ),
    "weights_gib": (
        max,
        rf"model weights take {NUMBER}{GI}|Model loading took {NUMBER}{GI}|Loading model weights took {NUMBER}{GI}|"
        rf"Actual usage is {NUMBER}{GI} for weight|weights memory: {NUMBER}{GI}",
    ),
    "non_torch_gib": (
        max,
        rf"non_torch_memory takes {NUMBER}{GI}|non_torch_memory={NUMBER}{GI}|"
        rf"non-torch forward increase memory: {NUMBER}{GI}|{NUMBER}{GI} for non-torch memory",
    ),
    "activation_gib": (
        max,
        rf"activation peak memory takes {NUMBER}{GI}|torch peak memory increase: {NUMBER}{GI}|"
        rf"{NUMBER}{GI} for peak activation",
    ),
    "peak_torch_gib": (max, rf"peak_torch_memory={NUMBER}{GI}"),
    "graphs_gib": (
        max,
        rf"Graph capturing finished in \d+ secs?, took {NUMBER}{GI}|CUDA graph pool memory: {NUMBER}{GI} \(actual\)|"
        rf"{NUMBER}{GI} for CUDAGraph memory",
    ),
    "graphs_estimate_gib": (max, rf"Estimated CUDA graph memory: {NUMBER}{GI} total"),
    "need_gib": (max, rf"\({NUMBER}{GI} KV cache is needed"),
    "available_gib": (min, rf"available KV cache memory \({NUMBER}{GI}\)"),
    "asked_max_model_len": (_last, rf"max seq len \({NUMBER}\)"),
    "estimated_max_model_len": (
        min,
        rf"estimated maximum model length is {NUMBER}|that can be stored in KV cache \({NUMBER}\)",
    ),
}
V0_BUDGET = re.compile(
    rf"total_gpu_memory \({NUMBER}{GI}\).{{0,40}}?gpu_memory_utilization \({NUMBER}\).{{0,300}}?"
    rf"model weights take {NUMBER}{GI}.{{0,100}}?non_torch_memory takes {NUMBER}{GI}.{{0,100}}?"
    rf"activation peak memory takes {NUMBER}{GI}.{{0,200}}?reserved for KV Cache is {NUMBER}{GI}",
    re.DOTALL,
)
"""One rank's whole budget; other lines may stand between its parts."""
RESULTS_BUDGET = re.compile(
    rf"total_gpu_memory={NUMBER}{GI}.{{0,100}}?peak_torch_memory={NUMBER}{GI}.{{0,100}}?"
    rf"non_torch_memory={NUMBER}{GI} kv_cache_size={NUMBER}{GI} gpu_memory_utilization={NUMBER}{WHOLE}"
)
"""The same as 0.6.4 to 0.6.6 print it: the peak holds the weights."""
PRINTED_UTILIZATION = 0.005
PRINTED_CONCURRENCY = 0.005
LINEAR_WITHIN = 0.03


@dataclass(frozen=True, slots=True, kw_only=True)
class LogReading:
    """The memory lines of a log; missing ones are absent from `found`. Of several ranks the one that decides counts:
    the smallest pool, the largest weights."""

    found: dict[str, float]
    disagreements: tuple[str, ...]
    """Which terms do not agree with each other or with the arithmetic, beyond what printing rounds away."""
    notes: tuple[str, ...] = ()

    @property
    def consistent(self) -> bool:
        return not self.disagreements


def read_log(text: str, demand: Demand | None = None) -> LogReading:
    """Find the memory lines and check them; with a demand also against its bytes per token."""
    plain = _last_start(ESCAPES.sub("", text))
    found: dict[str, float] = {}
    for name, (pick, pattern) in LINES.items():
        if values := [_number(match) for match in re.finditer(pattern, plain)]:
            found[name] = pick(values)
    checks = (*_budgets(plain), _concurrency(found), _tokens(found, demand))
    return LogReading(
        found=found, disagreements=tuple(dict.fromkeys(text for text in checks if text)), notes=_notes(found, demand)
    )


def _last_start(text: str) -> str:
    starts = [match.start() for match in STARTS.finditer(text)]
    if not starts:
        return text
    first = starts[-1]
    for start in reversed(starts[:-1]):
        if first - start > BANNER_GAP or re.search(LINES["kv_tokens"][1], text[start:first]):
            break
        first = start
    return text[first:]


def _number(match: "re.Match[str]") -> float:
    return float(next(group for group in match.groups() if group is not None).replace(",", ""))


def _budgets(text: str) -> list[str]:
    """One sentence for each rank whose printed terms do not add up."""
    found = []
    for match in V0_BUDGET.finditer(text):
        total, share, *taken, pool = (float(group.replace(",", "")) for group in match.groups())
        found.append(_budget(total, share, taken, pool))
    for match in RESULTS_BUDGET.finditer(text):
        total, peak, non_torch, pool, share = (float(group.replace(",", "")) for group in match.groups())
        found.append(_budget(total, share, [peak, non_torch], pool))
    return found


def _budget(total: float, share: float, taken: Sequence[float], pool: float) -> str:
    expected = total * share - sum(taken)
    allowed = PRINTED_GIB * (len(taken) + 2) + total * PRINTED_UTILIZATION
    if abs(expected - pool) <= allowed:
        return ""
    return f"KV pool: {total:g} × {share:g} minus the printed terms is {expected:.2f} GiB, printed {pool:g} GiB"


def _concurrency(found: dict[str, float]) -> str:
    if any(name not in found for name in ("kv_tokens", "max_model_len", "concurrency")) or not found["max_model_len"]:
        return ""
    expected = found["kv_tokens"] / found["max_model_len"]
    if abs(expected - found["concurrency"]) <= PRINTED_CONCURRENCY + 1 / found["max_model_len"]:
        return ""
    return f"concurrency: {expected:.2f}x by tokens ÷ model length, printed {found['concurrency']:g}x (hybrid layers?)"


def _tokens(found: dict[str, float], demand: Demand | None) -> str:
    pool, tokens = found.get("kv_gib"), found.get("kv_tokens")
    if tokens is None and "gpu_blocks" in found and demand is not None:
        tokens = found["gpu_blocks"] * demand.block_size
    if pool is None or tokens is None or demand is None or not demand.is_linear:
        return ""
    block = demand.bytes_per_token * demand.block_size / GIB
    low, high = ((pool + side) / block for side in (-PRINTED_GIB, PRINTED_GIB))
    blocks = tokens / demand.block_size
    if max(0, low - 1) <= blocks <= max(0, high + 1):
        return ""
    return (
        f"tokens: {pool:g} GiB hold {pool / block * demand.block_size:,.0f} tokens at {demand.bytes_per_token:,.0f} "
        f"bytes each, printed {tokens:,.0f}; the KV dtype, the split over cards or the block size differs"
    )


def _notes(found: dict[str, float], demand: Demand | None) -> tuple[str, ...]:
    """Where the arithmetic is not linear, the engine knows better."""
    notes = []
    if demand is not None and not demand.is_linear and demand.shape is not None:
        notes.append(f"tokens are not checked, a token has no fixed price: {demand.shape.why_not_linear}")
    terms = ("need_gib", "available_gib", "asked_max_model_len", "estimated_max_model_len")
    if all(found.get(term) for term in terms):
        need, available, asked, estimate = (found[term] for term in terms)
        linear = available / need * asked
        if abs(linear - estimate) > LINEAR_WITHIN * linear:
            notes.append(
                f"the maximum length is not linear in the pool: trust the engine's estimate of {estimate:.0f}, "
                f"not the {linear:.0f} of a linear rule"
            )
    return tuple(notes)
