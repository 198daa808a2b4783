"""An engine's own memory lines, of any version since 0.4, held against the arithmetic."""

import re
from dataclasses import dataclass

from shakedown.engine.devices import GIB
from shakedown.engine.memory.demand import Demand
from shakedown.engine.memory.interval import PRINTED_GIB

NUMBER = r"(-?[\d,]+(?:\.\d+)?)"
LINES = {
    "kv_tokens": rf"(?:GPU|CPU) KV cache size: {NUMBER} tokens",
    "kv_gib": rf"Available KV cache memory: {NUMBER} GiB",
    "max_model_len": rf"Maximum concurrency for {NUMBER} tokens per request",
    "concurrency": rf"Maximum concurrency for [\d,]+ tokens per request: {NUMBER}x",
    "gpu_blocks": rf"# (?:GPU|CUDA|cuda) blocks: {NUMBER}",
    "cpu_blocks": rf"# CPU blocks: {NUMBER}",
    "total_gib": rf"total_gpu_memory \({NUMBER}GiB\)",
    "utilization": rf"gpu_memory_utilization \({NUMBER}\)",
    "weights_gib": rf"(?:model weights take {NUMBER}GiB|Model loading took {NUMBER} Gi?B)",
    "non_torch_gib": rf"non_torch_memory takes {NUMBER}GiB",
    "activation_gib": rf"activation peak memory takes {NUMBER}GiB",
    "reserved_kv_gib": rf"reserved for KV Cache is {NUMBER}GiB",
}
PRINTED_UTILIZATION = 0.005
PRINTED_CONCURRENCY = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class LogReading:
    """The memory lines of a log; missing ones are absent from `found`."""

    found: dict[str, float]
    disagreements: tuple[str, ...]
    """Which terms do not agree with each other or with the arithmetic, beyond what printing rounds away."""

    @property
    def consistent(self) -> bool:
        return not self.disagreements


def read_log(text: str, demand: Demand | None = None) -> LogReading:
    """Find the memory lines and check them; with a demand also against its bytes per token."""
    found: dict[str, float] = {}
    for name, pattern in LINES.items():
        if match := re.search(pattern, text):
            printed = next(group for group in match.groups() if group is not None)
            found[name] = float(printed.replace(",", ""))
    checks = (_budget(found), _concurrency(found), _tokens(found, demand))
    return LogReading(found=found, disagreements=tuple(text for text in checks if text))


def _budget(found: dict[str, float]) -> str:
    terms = ("total_gib", "utilization", "weights_gib", "non_torch_gib", "activation_gib", "reserved_kv_gib")
    if any(term not in found for term in terms):
        return ""
    total, share, *taken, pool = (found[term] for term in terms)
    expected = total * share - sum(taken)
    allowed = PRINTED_GIB * (len(taken) + 2) + total * PRINTED_UTILIZATION
    if abs(expected - pool) <= allowed:
        return ""
    return f"KV pool: {total:g} × {share:g} minus the printed terms is {expected:.2f} GiB, printed {pool:g} GiB"


def _concurrency(found: dict[str, float]) -> str:
    if any(name not in found for name in ("kv_tokens", "max_model_len", "concurrency")):
        return ""
    expected = found["kv_tokens"] / found["max_model_len"]
    if abs(expected - found["concurrency"]) <= PRINTED_CONCURRENCY + 1 / found["max_model_len"]:
        return ""
    return f"concurrency: {expected:.2f}x by tokens ÷ model length, printed {found['concurrency']:g}x (hybrid layers?)"


def _tokens(found: dict[str, float], demand: Demand | None) -> str:
    pool = found.get("kv_gib", found.get("reserved_kv_gib"))
    tokens = found.get("kv_tokens")
    if tokens is None and "gpu_blocks" in found and demand is not None:
        tokens = found["gpu_blocks"] * demand.block_size
    if pool is None or tokens is None or demand is None or not demand.is_linear:
        return ""
    block = demand.bytes_per_token * demand.block_size / GIB
    low, high = ((pool + side) / block for side in (-PRINTED_GIB, PRINTED_GIB))
    blocks = tokens / demand.block_size
    if low - 1 <= blocks <= high + 1:
        return ""
    return (
        f"tokens: {pool:g} GiB hold {pool / block * demand.block_size:,.0f} tokens at {demand.bytes_per_token:,.0f} "
        f"bytes each, printed {tokens:,.0f}; the KV dtype, the split over cards or the block size differs"
    )
