"""Figures that engines printed in public reports, asked of `shakedown plan` as a user would, by its options alone.

The reports are named by row: vllm#10517 (N01, N02), vllm PR#10511 (N03), vllm#15815 (N06), vllm#13882 (N08), vllm PR#21728 (N10),
LMCache#1739 (N11), vllm#25350 (N12, N13), Lvllm#35 (N16), tpu-inference PR#223 (N17), OpenRLHF#336 (N18), vllm#16118 (N20),
Qwen3#295 (N25), the accuracy report of llm-d-planner (N28 to N36), pytorch#175666 (N45), kvcached#29 and vllm-omni#276 (N46),
vllm#44376 (N48).
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from shakedown.cli.main import _exit_code

PRINTED_GIB = 0.005
PLANNER_ROUNDING = 0.012
"""The planner's own rows add up to a hundredth only: 75.23 - 27.52 - 2.23 - 0.13 is 45.35 and it prints 45.34."""
LLAMA_8B = "--layers 32 --kv-heads 8 --head-dim 128"
QWEN_7B = "--layers 28 --kv-heads 4 --head-dim 128"
QWEN_14B = "--layers 40 --kv-heads 8 --head-dim 128"
QWEN_30B = "--layers 48 --kv-heads 4 --head-dim 128 --kv-cache-dtype fp8"
RTX3090 = "--total-gib 23.58 --gpu-memory-utilization 0.9 --weights-gib 14.99 --non-torch-gib 0.35"
H100 = "--total-gib 79.19 --gpu-memory-utilization 0.95"
Ask = Callable[[str], dict[str, Any]]


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Ask:
    """The JSON object that `shakedown plan` prints for these options, which are not wrong."""

    def asked(options: str) -> dict[str, Any]:
        code = _exit_code(["plan", *options.split(), "--json"])
        said = capsys.readouterr()
        assert code in (0, 1, 2), said.err
        told: dict[str, Any] = json.loads(said.out)
        assert code == {"fits": 0, "unknown": 2}.get(told["verdict"], 1)
        return told

    return asked


@dataclass(frozen=True)
class Row:
    id: str
    options: str
    exactly: dict[str, Any] = field(default_factory=dict)
    pool: float | None = None
    need: float | None = None
    tokens: int | None = None
    concurrency: float | None = None
    within: float = PRINTED_GIB


ROWS = (
    Row(
        "N01",
        f"{LLAMA_8B} {RTX3090} --activation-gib 2.07 --max-model-len 20000",
        {"verdict": "fits", "bytes_per_token": 131072},
        pool=3.81,
        tokens=1952 * 16,
        concurrency=1.56,
    ),
    Row(
        "N02",
        f"{LLAMA_8B} {RTX3090} --activation-gib 2.99 --max-model-len 29000",
        {"verdict": "does-not-fit"},
        pool=2.89,
        tokens=23648,
        concurrency=0.82,
    ),
    Row(
        "N03",
        f"{LLAMA_8B} --total-gib 79.22 --gpu-memory-utilization 0.9 --weights-gib 14.96 --activation-gib 1.26 --non-torch-gib 1.79",
        {"verdict": "fits"},
        pool=53.29,
    ),
    Row(
        "N06",
        "--layers 64 --kv-heads 8 --head-dim 128 -tp 2 --total-gib 44.42 --gpu-memory-utilization 0.9 --weights-gib 30.71 "
        "--activation-gib 1.26 --non-torch-gib 0.3 --max-model-len 10000 --swap-space 4",
        {"verdict": "fits", "cpu_blocks": 2048, "bytes_per_token": 131072},
        pool=7.71,
        tokens=3947 * 16,
        concurrency=6.32,
    ),
    Row(
        "N08",
        f"{QWEN_7B} --total-gib 8 --gpu-memory-utilization 0.7 --weights-gib 5.2 --activation-gib 1.42 --non-torch-gib 0.03 "
        "--max-model-len 4096 --swap-space 4",
        {"verdict": "does-not-fit", "kv_blocks": 0, "kv_tokens": 0, "max_concurrency": 0.0, "cpu_blocks": 4681},
        pool=-1.05,
    ),
    Row(
        "N10",
        "--layers 28 --kv-heads 8 --head-dim 128 --kv-gib 18.83 --max-model-len 8192",
        {"verdict": "fits"},
        tokens=176240,
        concurrency=21.51,
    ),
    Row(
        "N11",
        f"{QWEN_14B} --kv-gib 6.51 --max-model-len 32768",
        {"verdict": "fits"},
        tokens=42656,
        concurrency=1.3,
    ),
    Row(
        "N12",
        f"{QWEN_30B} --kv-gib 10.55 --max-model-len 100000",
        {"verdict": "fits", "bytes_per_token": 49152},
        tokens=230528,
        concurrency=2.31,
    ),
    Row(
        "N13",
        f"{QWEN_30B} --kv-gib 5.59 --max-model-len 221000",
        {"verdict": "does-not-fit"},
        need=10.12,
        tokens=122080,
    ),
    Row(
        "N16",
        "--layers 62 --kv-heads 8 --head-dim 128 --kv-gib 12.57 --total-gib 44.99 --gpu-memory-utilization 0.95 --weights-gib 11.55",
        {"verdict": "fits"},
        tokens=53136,
    ),
    Row(
        "N17",
        f"{LLAMA_8B} --kv-gib 0.71 --block-size 256 --max-model-len 131072",
        {"verdict": "does-not-fit", "max_model_len_that_fits": 5632},
        need=16.0,
    ),
    Row(
        "N18",
        "--layers 80 --kv-heads 8 --head-dim 128 -tp 2 --num-gpu-blocks-override 378 --swap-space 4 --max-model-len 8192",
        {"verdict": "does-not-fit", "kv_tokens": 6048, "kv_blocks": 378, "cpu_blocks": 1638},
    ),
    Row(
        "N20",
        "--layers 48 --kv-heads 8 --head-dim 128 -tp 8 --kv-gib 9.97 --max-model-len 1048576",
        {"verdict": "does-not-fit", "bytes_per_token": 24 * 1024},
        need=24.0,
    ),
    Row(
        "N25",
        "--layers 32 --kv-heads 32 --head-dim 128 --kv-gib 3.586 --max-model-len 32768",
        {"verdict": "does-not-fit", "bytes_per_token": 512 * 1024, "kv_tokens": 7344},
        need=16.0,
    ),
    Row(
        "N28",
        f"{LLAMA_8B} {H100} --weights-gib 14.99 --activation-gib 1.89 --non-torch-gib 0.25 --max-model-len 8192",
        {"verdict": "fits"},
        pool=58.11,
        within=PLANNER_ROUNDING,
        tokens=476016,
        concurrency=58.11,
    ),
    *(
        Row(
            f"N29 {split}",
            f"{LLAMA_8B} {H100} {split} --weights-gib {weights} --activation-gib {activation} --non-torch-gib {other}",
            {"verdict": "fits"},
            pool=pool,
            within=PLANNER_ROUNDING,
        )
        for split, weights, activation, other, pool in (
            ("-tp 2", 7.51, 1.89, 2.07, 63.76),
            ("-tp 4", 3.77, 1.89, 2.13, 67.44),
            ("-pp 2", 7.51, 1.1, 0.07, 66.55),
            ("-pp 4", 4.26, 1.05, 0.07, 69.85),
        )
    ),
    Row(
        "N31",
        f"{QWEN_14B} {H100} --weights-gib 27.52 --activation-gib 5.64 --non-torch-gib 0.13 --max-model-len 8192",
        {"verdict": "fits"},
        pool=41.94,
        concurrency=33.55,
    ),
    Row(
        "N32",
        f"{QWEN_14B} {H100} --weights-gib 27.52 --activation-gib 2.23 --non-torch-gib 0.13 --max-model-len 8192",
        {"verdict": "fits"},
        pool=45.34,
        within=PLANNER_ROUNDING,
        concurrency=36.27,
    ),
    Row("N34", f"{QWEN_7B} --kv-cache-dtype fp8 --kv-gib 58.53", {"bytes_per_token": 28672}, tokens=2192000),
    Row("N36", f"{LLAMA_8B} --dtype float32 --kv-gib 42.8", {"bytes_per_token": 262144}, tokens=175296),
    Row(
        "N38",
        "--layers 28 --kv-heads 2 --head-dim 128 --total-gib 14.56 --gpu-memory-utilization 0.5 --weights-gib 2.89 "
        "--activation-gib 2.02 --non-torch-gib 0.01 --max-model-len 32768 --swap-space 4",
        {"verdict": "fits", "cpu_blocks": 9362},
        pool=2.36,
        tokens=5517 * 16,
        concurrency=2.69,
    ),
    Row(
        "N44",
        f"{QWEN_7B} --block-size 128 --kv-gib 6.11 --max-model-len 118000",
        {"verdict": "does-not-fit"},
        need=6.3,
        tokens=114432,
    ),
    Row("N45", "--total-gib 22.05 --gpu-memory-utilization 0.9 --free-gib 19.77", {"verdict": "does-not-fit"}),
    Row("N46a", "--total-gib 79.15 --gpu-memory-utilization 0.9 --free-gib 59.32", {"verdict": "does-not-fit"}),
    Row("N46b", "--total-gib 79.32 --gpu-memory-utilization 0.6 --free-gib 0.49", {"verdict": "does-not-fit"}),
    Row(
        "N48",
        "--model deepseek-ai/DeepSeek-V4-Flash -tp 2 --max-model-len 30000 --kv-gib 5.44 --need-gib 6.66",
        {"verdict": "does-not-fit", "kv_tokens": None, "max_model_len_that_fits": None, "bytes_per_token": None},
        need=6.66,
    ),
)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_what_was_printed_comes_out_of_the_command(row: Row, ask: Ask) -> None:
    told = ask(row.options)

    assert {key: told[key] for key in row.exactly} == row.exactly
    if row.pool is not None:
        low, high = told["intervals"]["kv_pool_gib"]
        assert low <= row.pool <= high
        assert told["kv_pool_gib"] == pytest.approx(row.pool, abs=row.within)
    if row.need is not None:
        assert told["need_gib"] == pytest.approx(row.need, abs=PRINTED_GIB)
    if row.tokens is not None:
        low, high = told["intervals"]["kv_tokens"]
        assert low <= row.tokens <= high
        assert told["kv_tokens"] == pytest.approx(row.tokens, rel=0.003)
    if row.concurrency is not None:
        low, high = told["intervals"]["max_concurrency"]
        assert low - 0.005 <= row.concurrency <= high + 0.005


def test_weights_of_the_reports_come_out_of_the_model_alone(ask: Ask) -> None:
    """N28, N29 (worst stage of four, not an even quarter), N31, N36, N10 and vllm PR#10511."""
    for options, weights in (
        ("--model meta-llama/Llama-3.1-8B-Instruct", 14.99),
        ("--model meta-llama/Llama-3.1-8B-Instruct -tp 2", 7.51),
        ("--model meta-llama/Llama-3.1-8B-Instruct -tp 4", 3.77),
        ("--model meta-llama/Llama-3.1-8B-Instruct -pp 2", 7.51),
        ("--model meta-llama/Llama-3.1-8B-Instruct -pp 4", 4.26),
        ("--model meta-llama/Llama-3.1-8B-Instruct --dtype float32", 29.98),
        ("--model meta-llama/Meta-Llama-3-8B-Instruct", 14.96),
        ("--model Qwen/Qwen3-14B", 27.52),
        ("--model Qwen/Qwen3-0.6B", 1.12),
    ):
        told = ask(f"{options} --device H100")["terms"]["weights"]["gib"]
        assert told == pytest.approx(weights, abs=0.006), options


def test_a_term_that_is_given_is_not_estimated_and_the_others_are(ask: Ask) -> None:
    told = ask("--model Qwen/Qwen3-14B --device H100 --activation-gib 2.23 --vllm-version 0.19.0")["terms"]

    assert told["activation peak"]["source"] == "given"
    assert told["weights"]["source"] != "given"
    assert told["CUDA graphs"]["gib"] == 0


def test_n16_says_how_much_of_the_budget_is_neither_weights_nor_cache(ask: Ask) -> None:
    """0.95 × 44.99 − 11.55 − 12.57 = 18.62 GiB; the reporter expected a cache of 32."""
    told = ask(next(row.options for row in ROWS if row.id == "N16"))

    assert told["overhead_gib"] == pytest.approx(18.62, abs=PRINTED_GIB)
    assert any("18.6 GiB" in warning for warning in told["warnings"])


def test_n46_tells_that_utilisation_is_of_the_total(ask: Ask) -> None:
    told = ask("--total-gib 79.15 --gpu-memory-utilization 0.9 --free-gib 59.32")

    assert "71.2" in told["reasons"][0]
    assert "share of the total" in told["reasons"][0]
    assert told["suggestions"][0].startswith("--gpu-memory-utilization 0.74")


def test_n48_trusts_the_engine_and_not_a_linear_rule(ask: Ask, tmp_path: Any) -> None:
    log = tmp_path / "engine.log"
    log.write_text(
        "ValueError: To serve at least one request with the models's max seq len (30000), (6.66 GiB KV cache is needed, which is "
        "larger than the available KV cache memory (5.44 GiB). Based on the available memory, the estimated maximum model length is "
        "13528. Try increasing `gpu_memory_utilization`"
    )

    told = ask(f"--log {log}")

    assert told["verdict"] == "does-not-fit"
    assert "13528" in told["suggestions"][0]
    assert any("not linear" in reason and "24505" in reason for reason in told["reasons"])


def test_a05_says_that_weights_fit_and_the_cache_does_not(ask: Ask) -> None:
    """vllm#4429: a 33B model on two L40 fails at its default length; the suggested length works."""
    told = ask(
        "--model 01-ai/Yi-34B-Chat --device L40 -tp 2 --max-model-len 4096 --gpu-memory-utilization 0.80 --vllm-version 0.6"
    )

    assert told["verdict"] == "does-not-fit"
    assert "the weights fit and the KV cache does not" in told["reasons"][0]
    length = told["suggestions"][0].split()[1].rstrip(":")
    again = f"--model 01-ai/Yi-34B-Chat --device L40 -tp 2 --max-model-len {length} --gpu-memory-utilization 0.80 --vllm-version 0.6"
    assert ask(again)["verdict"] == "fits"


def test_a12_warns_of_the_sampler_at_095_and_not_at_090(ask: Ask) -> None:
    """gpt-oss-20b on an H100, whose default is 1,024 sequences."""
    tight, roomy = (ask(f"--model openai/gpt-oss-20b --device H100 --gpu-memory-utilization {u}") for u in (0.95, 0.9))

    assert any("--max-num-seqs" in warning for warning in tight["warnings"])
    assert roomy["warnings"] == []


def test_a21_counts_heads_that_are_cached_and_not_the_hidden_size(ask: Ask) -> None:
    assert ask("--model Qwen/Qwen2.5-7B-Instruct-AWQ --device L4")["bytes_per_token"] == 57344


def test_a23_a_length_beyond_the_model_is_invalid(ask: Ask) -> None:
    told = ask("--model microsoft/phi-2 --device H100 --max-model-len 8192")

    assert told["verdict"] == "invalid"
    assert "2048" in told["reasons"][0]
    assert told["suggestions"][0].startswith("--max-model-len 2048")


def test_a24_a_planner_with_an_activation_term_refuses_70b_on_one_card(ask: Ask) -> None:
    told = ask(
        "--model RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic --device H100 --gpu-memory-utilization 0.95 --max-model-len 16000"
    )

    assert told["verdict"] == "does-not-fit"


@pytest.mark.parametrize(
    "options",
    [
        "--model llama-3-8b --device A100-80",
        "--model llama-3-8b --device T4",
        "--model llama-3-8b --device A100-80 -tp 3",
        "--model openai/gpt-oss-20b --device A100-80",
        "--total-gib 22 --free-gib 1",
        "--kv-gib 5",
    ],
)
def test_every_answer_has_the_promised_keys(options: str, ask: Ask) -> None:
    promised = {"verdict", "bytes_per_token", "kv_pool_gib", "kv_blocks", "kv_tokens", "max_concurrency"}

    assert promised | {"reasons", "suggestions", "intervals"} <= ask(options).keys()
