"""The calculator's own rules, its agreement with the twin, the log reader, the classes of failure, and bad input."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shakedown.cli.main import _exit_code
from shakedown.cli.plan import load_shape
from shakedown.engine.devices import DEVICES, GIB
from shakedown.engine.environment import CONFIGS
from shakedown.engine.hf_config import read_shape
from shakedown.engine.memory.calculator import answer
from shakedown.engine.memory.demand import Demand
from shakedown.engine.memory.failures import classify
from shakedown.engine.memory.logs import read_log
from shakedown.engine.twin.device import DeviceModel

LLAMA = json.loads((CONFIGS / "llama-3-8b.json").read_text())
QWEN = json.loads((CONFIGS / "qwen2.5-7b.json").read_text())
DEEPSEEK = {
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "q_lora_rank": 1536,
    "vocab_size": 129280,
    "intermediate_size": 18432,
    "n_routed_experts": 256,
    "moe_intermediate_size": 2048,
}


@pytest.mark.parametrize("device", ["A100-80", "H100-80", "L4", "L40S", "A100-40"])
@pytest.mark.parametrize(("utilization", "batched"), [(0.90, 2048), (0.95, 2048), (0.90, 8192), (0.85, 4096)])
def test_plan_predicts_what_the_twin_will_print(device: str, utilization: float, batched: int) -> None:
    shape, profile = read_shape(LLAMA), DEVICES[device]
    twin = DeviceModel(profile, shape, 2, 2)
    pool = twin.kv_pool_bytes(twin.requested_bytes(utilization, 0), batched, graphs=True)
    printed = pool // (131072 * 16) * 16

    found = answer(
        Demand(
            shape=shape, total_gib=profile.total_bytes / GIB, utilization=utilization, max_num_batched_tokens=batched
        )
    )

    assert found.kv_tokens == printed


def test_weights_of_published_models_come_out() -> None:
    assert read_shape(LLAMA).weights_bytes(2) / GIB == pytest.approx(14.96, abs=0.005)
    assert read_shape(QWEN).parameters == pytest.approx(7.62e9, rel=0.005)
    assert read_shape(DEEPSEEK).parameters == pytest.approx(671e9, rel=0.05)


def test_heads_fewer_than_cards_are_replicated_and_a_latent_is_never_split() -> None:
    assert read_shape(QWEN).kv_bytes_per_token(2, tp=8) == 2 * 28 * 1 * 128 * 2
    assert read_shape(DEEPSEEK).kv_bytes_per_token(2, tp=8) == 61 * 576 * 2


@pytest.mark.parametrize(
    ("config", "linear"),
    [
        (LLAMA, True),
        ({**LLAMA, "sliding_window": 4096}, False),
        ({**LLAMA, "sliding_window": 4096, "use_sliding_window": False}, True),
        ({**LLAMA, "layer_types": ["full_attention", "sliding_attention"] * 16}, False),
        ({**LLAMA, "layer_types": ["full_attention"] * 32}, True),
        ({**LLAMA, "mamba_d_state": 128}, False),
        ({"text_config": {**LLAMA, "full_attention_interval": 4}}, False),
    ],
)
def test_hybrid_layers_have_no_fixed_price_and_the_answer_says_so(config: dict[str, Any], linear: bool) -> None:
    found = answer(Demand(shape=read_shape(config), total_gib=79.25, max_model_len=8192))

    assert (found.kv_tokens is not None) is linear
    assert linear or "not linear" in " ".join(found.reasons)


@given(util=st.floats(0.5, 0.94), weights=st.floats(1, 30))
def test_more_utilisation_never_means_fewer_tokens_and_fp8_doubles_them(util: float, weights: float) -> None:
    def tokens(**changes: Any) -> int:
        given: dict[str, Any] = {"layers": 32, "kv_heads": 8, "head_dim": 128, "total_gib": 79.25, "utilization": util}
        found = answer(Demand(**{**given, "weights_gib": weights, **changes}))
        assert found.kv_tokens is not None
        return found.kv_tokens

    assert tokens(utilization=util + 0.05) >= tokens()
    assert abs(tokens(kv_cache_dtype="fp8") - 2 * tokens()) <= 16


def test_invalid_is_told_from_does_not_fit() -> None:
    qwen = read_shape(QWEN)

    split = answer(Demand(shape=qwen, total_gib=44.42, tensor_parallel=3))
    long = answer(Demand(shape=qwen, total_gib=44.42, max_model_len=99999))
    large = answer(Demand(shape=qwen, total_gib=14.56, max_model_len=4096))

    assert (split.verdict, long.verdict, large.verdict) == ("invalid", "invalid", "does-not-fit")
    assert "1, 2, 4" in split.reasons[0]
    assert large.suggestions


def test_following_a_suggestion_makes_it_fit() -> None:
    demand: dict[str, Any] = {"layers": 32, "kv_heads": 8, "head_dim": 128, "kv_gib": 2.89, "max_model_len": 29000}

    found = answer(Demand(**demand))
    length = int(found.suggestions[0].split()[1].rstrip(":"))

    assert answer(Demand(**{**demand, "max_model_len": length})).verdict == "fits"
    assert answer(Demand(**{**demand, "max_model_len": length + 16})).verdict == "does-not-fit"


def test_a_budget_that_leaves_no_room_for_the_sampler_is_warned_of() -> None:
    tight = answer(Demand(shape=read_shape(LLAMA), total_gib=79.19, utilization=0.995))
    roomy = answer(Demand(shape=read_shape(LLAMA), total_gib=79.19, utilization=0.90))

    assert any("--max-num-seqs" in warning for warning in tight.warnings)
    assert roomy.warnings == ()


V0_LOG = """the current vLLM instance can use total_gpu_memory (23.58GiB) x gpu_memory_utilization (0.90) = 21.22GiB
model weights take 14.99GiB; non_torch_memory takes 0.35GiB; PyTorch activation peak memory takes 2.07GiB; \
the rest of the memory reserved for KV Cache is 3.81GiB.
# GPU blocks: 1952, # CPU blocks: 2048
Maximum concurrency for 20000 tokens per request: 1.56x"""


def test_a_log_that_agrees_with_itself_is_consistent_and_a_changed_term_is_named() -> None:
    demand = Demand(layers=32, kv_heads=8, head_dim=128)

    assert read_log(V0_LOG, demand).consistent
    broken = read_log(V0_LOG.replace("Cache is 3.81", "Cache is 5.81"), demand)
    assert any("KV pool" in text for text in broken.disagreements)
    assert not read_log(V0_LOG, Demand(layers=32, kv_heads=8, head_dim=128, kv_cache_dtype="fp8")).consistent


@pytest.mark.parametrize(
    ("log", "kind", "advice"),
    [
        (
            "ValueError: The model's max seq len (8192) is larger than the maximum number of tokens that can be stored in KV cache (6048). Try",
            "does-not-fit",
            "6048",
        ),
        (
            "ValueError: To serve at least one request with the models's max seq len (1048576), (24.00 GiB KV cache is needed, which is larger than the available KV cache memory (9.97 GiB). Based on the available memory, the estimated maximum model length is 435424.",
            "does-not-fit",
            "435424",
        ),
        (
            "ValueError: To serve at least one request with the model's max seq len (131072), (16.00 GiB KV cache is needed, which is larger than the available KV cache memory (0.71 GiB). Try increasing",
            "does-not-fit",
            "--max-model-len",
        ),
        (
            "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`",
            "does-not-fit",
            "--gpu-memory-utilization",
        ),
        (
            "ValueError: Free memory on device (19.77/22.05 GiB) on startup is less than desired GPU memory utilization (0.9, 19.84 GiB).",
            "free-memory-gate",
            "card",
        ),
        (
            "RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy requests. Please try lowering",
            "oom-at-warm-up",
            "lower --max-num-seqs",
        ),
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 14.96 GiB. GPU 0",
            "oom-at-start",
            "--tensor-parallel-size",
        ),
        (
            "INFO: Application startup complete.\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB.",
            "oom-under-load",
            "lower",
        ),
        (
            "ValueError: Total number of attention heads (28) must be divisible by tensor parallel size (3).",
            "invalid",
            "28",
        ),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", "engine-death", "node"),
        ("everything is fine", "unknown", "log"),
    ],
)
def test_failures_are_recognised_from_their_own_words(log: str, kind: str, advice: str) -> None:
    found = classify(log, exit_code=1, reason="Error")

    assert found.kind == kind
    assert advice in found.fix


def test_the_kernels_and_the_kubelets_kills_are_told_from_cuda() -> None:
    assert classify("", exit_code=137, reason="OOMKilled").kind == "node-oom-kill"
    assert (
        classify("CUDA out of memory. Tried to allocate 1 GiB", exit_code=137, reason="probe-kill").kind == "probe-kill"
    )


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "--device"),
        (["--model", "nobody", "--device", "L4"], "llama-3-8b"),
        (["--model", "llama-3-8b", "--device", "nothing"], "A100-80"),
        (["--model", "llama-3-8b", "--device", "L4", "--max-model-len", "-2"], "--max-model-len"),
        (["--model", "llama-3-8b", "--device", "L4", "--gpu-memory-utilization", "1.5"], "--gpu-memory-utilization"),
        (["--model", "llama-3-8b", "--device", "L4", "--gpu-memory-utilization", "nan"], "--gpu-memory-utilization"),
        (["--model", "llama-3-8b", "--device", "L4", "-tp", "0"], "--tensor-parallel-size"),
        (["--model", "llama-3-8b", "--device", "L4", "--kv-cache-dtype", "fp3"], "--kv-cache-dtype"),
        (["--config", "/", "--device", "L4"], "config.json"),
    ],
)
def test_bad_input_is_one_line_and_exit_4(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert _exit_code(["plan", *words]) == 4

    said = capsys.readouterr().err.strip()
    assert told in said
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("text", ["[]", "not json", '{"hidden_size": 1}', '"x"', "\0"])
def test_a_file_that_is_no_config_is_one_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)

    with pytest.raises(Exception, match=r"config\.json") as caught:
        load_shape(tmp_path, None)
    assert type(caught.value).__name__ == "UsageError"


def test_a_config_of_ten_gigabytes_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(10 * GIB)

    with pytest.raises(Exception, match="at most"):
        load_shape(path, None)


def test_json_output_is_one_object_with_the_promised_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert _exit_code(["plan", "--model", "llama-3-8b", "--device", "A100-80", "--json"]) == 0

    told = json.loads(capsys.readouterr().out)
    promised = {"verdict", "bytes_per_token", "kv_pool_gib", "kv_blocks", "kv_tokens", "max_concurrency"}
    assert promised | {"reasons", "suggestions", "intervals"} <= told.keys()
