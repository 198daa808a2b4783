"""How narrow the weights of a quantised checkpoint are, from its `quantization_config`. Standard library only."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from shakedown.engine.shape import Quantization

METHOD_BITS = {
    "fp8": 8,
    "fbgemm_fp8": 8,
    "ptpc_fp8": 8,
    "compressed-tensors": 8,
    "modelopt": 8,
    "modelopt_fp4": 4,
    "bitsandbytes": 4,
    "awq": 4,
    "awq_marlin": 4,
    "gptq": 4,
    "gptq_marlin": 4,
    "auto-round": 4,
    "mxfp4": 4,
    "nvfp4": 4,
    "experts_int8": 8,
    "gpt_oss_mxfp4": 4,
}
"""Bits of a weight where the config names the method and not the bits."""
EXPERTS_ONLY = ("mxfp4", "gpt_oss_mxfp4", "experts_int8")
SCALE_BITS, ZERO_POINT_METHODS, DEFAULT_GROUP = 16, ("awq", "gptq", "awq_marlin", "gptq_marlin", "auto-round"), 128
"""A 16-bit scale a group of weights; these methods store a zero point of a weight's width beside it."""
MXFP4_SCALE_BITS, NVFP4_SCALE_BITS, BNB_SCALE_BITS = 8 / 32, 8 / 16, 32 / 64
BLOCK_SCALE_BITS = 32
LAYER = re.compile(r"layers[.\\]+(\d+)\b")
UNKNOWN_BITS = 8


def quantization_of(found: Mapping[str, Any], layers: int) -> tuple[Quantization | None, str]:
    """And, where the method is not known, a sentence that says so."""
    method = str(found.get("quant_method") or found.get("quant_algo") or "").lower()
    if not found or not method:
        return None, ""
    bits = _weight_bits(found, method)
    mixers, feed_forwards = _kept(found, layers)
    block = found.get("weight_block_size")
    return (
        Quantization(
            method=method,
            bits=(bits or UNKNOWN_BITS) + _scale_bits(found, method, bits or UNKNOWN_BITS),
            experts_only=method in EXPERTS_ONLY,
            kept_mixers=mixers,
            kept_feed_forwards=feed_forwards,
            block=_first_int(block),
        ),
        "" if bits else f"quantization {method!r} is unknown here, 8 bits a weight assumed",
    )


def _weight_bits(found: Mapping[str, Any], method: str) -> int:
    """0 when nothing tells them."""
    for key in ("bits", "w_bit", "weight_bits"):
        if isinstance(found.get(key), int) and not isinstance(found[key], bool) and 1 <= found[key] <= 16:
            return int(found[key])
    weights = _group(found)
    if isinstance(weights.get("num_bits"), int) and 1 <= weights["num_bits"] <= 16:
        return int(weights["num_bits"])
    if method == "bitsandbytes":
        return 8 if found.get("load_in_8bit") else 4
    algorithm = str(found.get("quant_algo") or found.get("moe_quant_algo") or "").upper()
    if "FP4" in algorithm or "W4" in algorithm:
        return 4
    return METHOD_BITS.get(method, 8 if "fp8" in method or "int8" in method else 0)


def _scale_bits(found: Mapping[str, Any], method: str, bits: int) -> float:
    """Of scales and zero points, a weight."""
    if method in ("mxfp4", "gpt_oss_mxfp4"):
        return MXFP4_SCALE_BITS
    if method == "bitsandbytes":
        return BNB_SCALE_BITS if bits == 4 else 0.0
    if "nvfp4" in f"{method} {found.get('format')} {found.get('quant_algo')}".lower() or method == "modelopt_fp4":
        return NVFP4_SCALE_BITS
    block = found.get("weight_block_size")
    if isinstance(block, Sequence) and len(block) == 2 and all(isinstance(side, int) and side > 0 for side in block):
        return BLOCK_SCALE_BITS / float(block[0] * block[1])
    if bits >= 8 and method not in ZERO_POINT_METHODS:
        return 0.0
    group = found.get("group_size", _group(found).get("group_size", DEFAULT_GROUP))
    if not isinstance(group, int) or group <= 0:
        return 0.0
    return (SCALE_BITS + (bits if method in ZERO_POINT_METHODS else 0)) / group


def _group(found: Mapping[str, Any]) -> Mapping[str, Any]:
    """The weights' part of the first group of compressed-tensors."""
    groups = found.get("config_groups")
    for group in groups.values() if isinstance(groups, Mapping) else ():
        weights = group.get("weights") if isinstance(group, Mapping) else None
        if isinstance(weights, Mapping):
            return weights
    return {}


def _kept(found: Mapping[str, Any], layers: int) -> tuple[frozenset[int], frozenset[int]]:
    """Layers whose attention, and whose feed-forward, the config excepts by name or by pattern."""
    mixers: set[int] = set()
    feed_forwards: set[int] = set()
    for key in ("modules_to_not_convert", "ignore", "ignored_layers", "exclude_modules"):
        names = found.get(key)
        for name in names if isinstance(names, Sequence) and not isinstance(names, str) else ():
            where = LAYER.search(str(name))
            indices = {int(where.group(1))} if where else set(range(layers))
            if "attn" in str(name) or "attention" in str(name):
                mixers |= indices
            elif _is_feed_forward(str(name)):
                feed_forwards |= indices
    return frozenset(mixers), frozenset(feed_forwards)


def _is_feed_forward(name: str) -> bool:
    """Routers (`mlp.gate`), shared experts and towers are no layer's feed-forward."""
    if re.search(r"router|shared|vis|gate\$?$", name):
        return False
    return bool(re.search(r"\bmlp\b|experts|feed_forward", name))


def _first_int(value: Any) -> int:
    first = value[0] if isinstance(value, Sequence) and value else 0
    return first if isinstance(first, int) and first > 0 else 0
