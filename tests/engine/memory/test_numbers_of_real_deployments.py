"""Figures that real engines printed, each computed with the calculator and compared within the printed rounding."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from shakedown.engine.devices import GIB
from shakedown.engine.memory.calculator import answer, tokens_in
from shakedown.engine.memory.demand import Demand

LLAMA_8B = {"layers": 32, "kv_heads": 8, "head_dim": 128}
QWEN_7B = {"layers": 28, "kv_heads": 4, "head_dim": 128}
QWEN_14B = {"layers": 40, "kv_heads": 8, "head_dim": 128}
H100_AT_095 = {"total_gib": 79.19, "utilization": 0.95}


@dataclass(frozen=True)
class Row:
    """One deployment: what was given, and what its engine printed."""

    id: str
    given: dict[str, Any]
    pool: float | None = None
    blocks: int | None = None
    tokens: int | None = None
    concurrency: float | None = None
    verdict: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)


def _with(*parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {key: value for part in (*parts, more) for key, value in part.items()}


RTX3090 = {"total_gib": 23.58, "utilization": 0.9, "weights_gib": 14.99, "non_torch_gib": 0.35, "version": (0, 6)}
ROWS = (
    Row("N01", _with(LLAMA_8B, RTX3090, activation_gib=2.07, max_model_len=20000), 3.81, 1952, None, 1.56, "fits"),
    Row(
        "N02",
        _with(LLAMA_8B, RTX3090, activation_gib=2.99, max_model_len=29000),
        2.89,
        1478,
        23648,
        0.82,
        "does-not-fit",
    ),
    Row(
        "N03",
        _with(
            LLAMA_8B,
            total_gib=79.22,
            utilization=0.9,
            weights_gib=14.96,
            activation_gib=1.26,
            non_torch_gib=1.79,
            version=(0, 6),
        ),
        53.29,
    ),
    Row(
        "N06",
        _with(
            total_gib=44.42,
            utilization=0.9,
            weights_gib=30.71,
            activation_gib=1.26,
            non_torch_gib=0.3,
            layers=64,
            kv_heads=8,
            head_dim=128,
            tensor_parallel=2,
            max_model_len=10000,
            version=(0, 8),
        ),
        7.71,
        3947,
        None,
        6.32,
        "fits",
    ),
    Row(
        "N08",
        _with(
            QWEN_7B,
            total_gib=8.0,
            utilization=0.7,
            weights_gib=5.2,
            activation_gib=1.42,
            non_torch_gib=0.03,
            max_model_len=4096,
            version=(0, 7),
        ),
        -1.05,
        0,
        0,
        0.0,
        "does-not-fit",
    ),
    Row(
        "N10",
        _with(layers=28, kv_heads=8, head_dim=128, kv_gib=18.83, max_model_len=8192),
        None,
        None,
        176240,
        21.51,
        "fits",
    ),
    Row("N11", _with(QWEN_14B, kv_gib=6.51, max_model_len=32768), None, None, 42656, 1.30, "fits"),
    Row(
        "N12",
        _with(layers=48, kv_heads=4, head_dim=128, kv_cache_dtype="fp8", kv_gib=10.55, max_model_len=100000),
        None,
        None,
        230528,
        2.31,
        "fits",
    ),
    Row(
        "N13",
        _with(layers=48, kv_heads=4, head_dim=128, kv_cache_dtype="fp8", kv_gib=5.59, max_model_len=221000),
        None,
        None,
        122080,
        None,
        "does-not-fit",
    ),
    Row("N16", _with(layers=62, kv_heads=8, head_dim=128, kv_gib=12.57), None, None, 53136),
    Row(
        "N17",
        _with(LLAMA_8B, kv_gib=0.71, block_size=256, max_model_len=131072),
        None,
        None,
        5632,
        None,
        "does-not-fit",
    ),
    Row(
        "N25",
        _with(layers=32, kv_heads=32, head_dim=128, kv_gib=3.586, max_model_len=32768),
        None,
        None,
        7344,
        None,
        "does-not-fit",
    ),
    Row(
        "N28",
        _with(
            LLAMA_8B,
            H100_AT_095,
            weights_gib=14.99,
            activation_gib=1.89,
            non_torch_gib=0.25,
            max_model_len=8192,
            version=(0, 19),
        ),
        58.11,
        None,
        476016,
        58.11,
        "fits",
    ),
    Row(
        "N31",
        _with(
            QWEN_14B,
            H100_AT_095,
            weights_gib=27.52,
            activation_gib=5.64,
            non_torch_gib=0.13,
            max_model_len=8192,
            version=(0, 15),
        ),
        41.94,
        None,
        None,
        33.55,
        "fits",
    ),
    Row(
        "N32",
        _with(
            QWEN_14B,
            H100_AT_095,
            weights_gib=27.52,
            activation_gib=2.23,
            non_torch_gib=0.13,
            max_model_len=8192,
            version=(0, 17),
        ),
        45.34,
        None,
        None,
        36.27,
        "fits",
    ),
    Row("N34", _with(QWEN_7B, kv_gib=58.53, kv_cache_dtype="fp8"), None, None, 2192000),
    Row("N36", _with(LLAMA_8B, dtype="float32", kv_gib=42.8), None, None, 175296),
    Row(
        "N38",
        _with(
            total_gib=14.56,
            utilization=0.5,
            weights_gib=2.89,
            activation_gib=2.02,
            non_torch_gib=0.01,
            layers=28,
            kv_heads=2,
            head_dim=128,
            max_model_len=32768,
            version=(0, 7),
        ),
        2.36,
        5517,
        None,
        2.69,
        "fits",
    ),
    Row(
        "N44",
        _with(QWEN_7B, kv_gib=6.11, block_size=128, max_model_len=118000),
        None,
        None,
        114432,
        None,
        "does-not-fit",
    ),
)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_what_the_engine_printed_lies_within_the_rounding(row: Row) -> None:
    found = answer(Demand(**row.given))

    if row.pool is not None:
        low, high = found.intervals["kv_pool_gib"]
        assert low - 0.005 <= row.pool <= high + 0.005
        assert found.kv_pool_gib == pytest.approx(row.pool, abs=0.02)
    if row.blocks is not None:
        low, high = found.intervals["kv_blocks"]
        assert low <= row.blocks <= high
    if row.tokens is not None:
        low, high = found.intervals["kv_tokens"]
        assert low <= row.tokens <= high
        assert found.kv_tokens == pytest.approx(row.tokens, rel=0.01)
    if row.concurrency is not None:
        low, high = found.intervals["max_concurrency"]
        assert low - 0.005 <= row.concurrency <= high + 0.005
    if row.verdict is not None:
        assert found.verdict == row.verdict


@pytest.mark.parametrize(
    ("id_", "shape", "tp", "kv_dtype", "length", "gib"),
    [
        ("N13", (48, 4, 128), 1, "fp8", 221000, 10.12),
        ("N17", (32, 8, 128), 1, "auto", 131072, 16.0),
        ("N20", (48, 8, 128), 8, "auto", 1048576, 24.0),
        ("N25", (32, 32, 128), 1, "auto", 32768, 16.0),
        ("N44", (28, 4, 128), 1, "auto", 118000, 6.3),
    ],
)
def test_one_sequence_of_the_full_length_needs_what_the_engine_said(
    id_: str, shape: tuple[int, int, int], tp: int, kv_dtype: str, length: int, gib: float
) -> None:
    layers, heads, dim = shape
    demand = Demand(
        layers=layers, kv_heads=heads, head_dim=dim, tensor_parallel=tp, kv_cache_dtype=kv_dtype, kv_gib=1.0
    )

    assert length * demand.bytes_per_token / GIB == pytest.approx(gib, abs=0.005), id_


@pytest.mark.parametrize(
    ("swap_gib", "cpu_blocks", "shape", "tp"),
    [(4, 2048, (64, 8, 128), 2), (4, 4681, (28, 4, 128), 1), (4, 1638, (80, 8, 128), 2), (4, 9362, (28, 2, 128), 1)],
    ids=["N06", "N08", "N18", "N38"],
)
def test_swap_blocks_reveal_the_price_of_a_block(
    swap_gib: int, cpu_blocks: int, shape: tuple[int, int, int], tp: int
) -> None:
    layers, heads, dim = shape
    demand = Demand(layers=layers, kv_heads=heads, head_dim=dim, tensor_parallel=tp, kv_gib=1.0)

    assert tokens_in(swap_gib, demand.bytes_per_token, 16) == cpu_blocks * 16


@pytest.mark.parametrize(
    ("total", "utilization", "free"),
    [(22.05, 0.9, 19.77), (79.15, 0.9, 59.32), (79.32, 0.6, 0.49)],
    ids=["N45", "N46a", "N46b"],
)
def test_a_card_that_somebody_else_is_on_is_refused(total: float, utilization: float, free: float) -> None:
    given = _with(LLAMA_8B, total_gib=total, utilization=utilization, free_gib=free, weights_gib=5.0)

    found = answer(Demand(**given))

    assert found.verdict == "does-not-fit"
    assert f"{total * utilization:.2f} GiB" in found.reasons[0]


@pytest.mark.parametrize(
    ("tp", "pp", "weights", "activation", "non_torch", "pool"),
    [
        (2, 1, 7.51, 1.89, 2.07, 63.76),
        (4, 1, 3.77, 1.89, 2.13, 67.44),
        (1, 2, 7.51, 1.1, 0.07, 66.55),
        (1, 4, 4.26, 1.05, 0.07, 69.85),
    ],
)
def test_n29_cards_and_stages(
    tp: int, pp: int, weights: float, activation: float, non_torch: float, pool: float
) -> None:
    given = _with(LLAMA_8B, H100_AT_095, weights_gib=weights, activation_gib=activation, non_torch_gib=non_torch)

    found = answer(Demand(**given, tensor_parallel=tp, pipeline_parallel=pp, version=(0, 19)))

    assert found.kv_pool_gib == pytest.approx(pool, abs=0.02)
