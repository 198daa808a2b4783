"""What each family of models weighs and what its tokens cost, against the hub's counts, engines' reports and hand arithmetic."""

from contextlib import suppress
from typing import Any

import pytest

from shakedown.engine.config_text import ConfigError
from shakedown.engine.devices import DEVICES, GIB
from shakedown.engine.hf_config import read_shape
from shakedown.engine.memory.calculator import answer
from shakedown.engine.memory.demand import Demand
from shakedown.engine.memory.known_models import KnownModel, find_model, known_models, nearest_names
from shakedown.engine.memory.validity import valid_tensor_parallel
from shakedown.engine.shape import FULL, RECURRENT, WINDOW, ModelShape, stage_layers
from shakedown.engine.twin.device import DeviceModel

COUNTED = [model for model in known_models() if model.parameters]
NORMS_AND_BIASES = 3e-5
"""Norms of heads, some biases and the routers' corrections are left out; nothing larger is."""


def shape(name: str, **changes: Any) -> ModelShape:
    found = find_model(name)
    assert found is not None
    return read_shape({**found.config, **changes})


@pytest.mark.parametrize("model", COUNTED, ids=lambda model: model.names[0])
def test_parameters_are_those_that_the_hub_counts(model: KnownModel) -> None:
    tolerance = 2e-4 if read_shape(model.config).estimated else NORMS_AND_BIASES

    assert read_shape(model.config).parameters == pytest.approx(model.parameters, rel=tolerance)


@pytest.mark.parametrize(
    ("name", "gib"),
    [
        ("llama-3-8b", 14.96),  # vllm PR#10511
        ("meta-llama/Llama-3.1-8B-Instruct", 14.99),  # vllm#10517: 131,072 rotary positions more
        ("Qwen/Qwen3-14B", 27.52),  # accuracy report of llm-d-planner
        ("Qwen/Qwen3-0.6B", 1.12),  # vllm PR#21728; its table is tied
        ("Qwen/Qwen2.5-7B-Instruct-AWQ", 5.20),  # vllm#13882
        ("Qwen/Qwen3-30B-A3B-Instruct-2507-FP8", 29.09),  # vllm#25350
        ("Qwen/Qwen2.5-1.5B-Instruct", 2.89),  # the T4 log of row N38
        # By hand: parameters of the hub × 2 bytes, and the table of rotary positions.
        ("Qwen/Qwen2.5-32B-Instruct", (32_763_876_352 + 32768 * 128) * 2 / GIB),
        ("Qwen/Qwen2.5-7B-Instruct", (7_615_616_512 + 32768 * 128) * 2 / GIB),
        ("microsoft/phi-2", (2_779_683_840 + 2048 * 32) * 2 / GIB),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", (46_702_792_704 + 32768 * 128) * 2 / GIB),
    ],
)
def test_weights_are_those_that_engines_print(name: str, gib: float) -> None:
    assert shape(name).weights_bytes(2) / GIB == pytest.approx(gib, abs=0.011)


def test_fp8_leaves_embedding_and_output_as_they_are() -> None:
    """Llama 3.1 70B: 2 × 128,256 × 8,192 parameters in two bytes, all matrices in one."""
    tables = 2 * 128256 * 8192
    expected = (70_553_706_496 - tables) + 2 * tables

    assert shape("RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic").weights_bytes(2) == pytest.approx(expected, rel=0.0006)


def test_awq_and_gptq_carry_scales_and_zero_points() -> None:
    """4 bits, and 16 + 4 a group of 128: 4.15625 bits of each of the 6.53 G parameters in matrices."""
    tables = 2 * 152064 * 3584
    matrices = 28 * (3584 * (3584 + 2 * 512) + 3584 * 3584 + 3 * 3584 * 18944)

    for name in ("Qwen/Qwen2.5-7B-Instruct-AWQ", "Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4"):
        assert shape(name).weights_bytes(2) == pytest.approx(matrices * 4.15625 / 8 + tables * 2, rel=0.002)


def test_int4_of_compressed_tensors_keeps_what_it_ignores() -> None:
    """W4A16 of groups of 128, symmetric: 4 + 16/128 bits; attention of the second layer stays in two bytes."""
    scheme = {"weights": {"num_bits": 4, "type": "int", "group_size": 128, "strategy": "group", "symmetric": True}}
    quantized = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": scheme},
        "ignore": ["lm_head"],
    }
    llama = shape("llama-3-8b", quantization_config=quantized)
    kept = shape(
        "llama-3-8b", quantization_config={**quantized, "ignore": ["lm_head", "model.layers.1.self_attn.q_proj"]}
    )

    assert llama.quantization is not None
    assert llama.quantization.bits == 4.125
    assert kept.weights_bytes(2) - llama.weights_bytes(2) == pytest.approx((4096 * 10240) * (2 - 4.125 / 8))


def test_mxfp4_narrows_experts_only() -> None:
    """gpt-oss-20b: 24 × 32 experts of 3 × 2880² in 4.25 bits, and the hub's 20.91 G count in all."""
    experts = 24 * 32 * (3 * 2880 * 2880 + 3 * 2880)
    expected = experts * 4.25 / 8 + (20_914_757_184 - experts + 131072 * 64) * 2

    assert shape("openai/gpt-oss-20b").weights_bytes(2) == pytest.approx(expected, rel=1e-4)


def test_block_fp8_has_a_scale_for_each_square() -> None:
    """DeepSeek-V3: 128 × 128 weights share 32 bits."""
    quantized = shape("deepseek-ai/DeepSeek-V3").quantization

    assert quantized is not None
    assert (quantized.bits, quantized.block) == (8 + 32 / 128**2, 128)


@pytest.mark.parametrize(
    ("name", "tp", "dtype_bytes", "per_token"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", 1, 2, 2 * 32 * 8 * 128 * 2),  # grouped queries
        ("meta-llama/Llama-3.1-8B-Instruct", 8, 2, 2 * 32 * 1 * 128 * 2),
        ("meta-llama/Llama-3.1-8B-Instruct", 16, 2, 2 * 32 * 1 * 128 * 2),  # replicated, not 0
        ("Qwen/Qwen1.5-7B-Chat", 1, 2, 512 * 1024),  # every head: Qwen3#295
        ("tiiuae/falcon-7b-instruct", 1, 2, 2 * 32 * 1 * 64 * 2),  # one head for all
        ("Qwen/Qwen2.5-7B-Instruct", 8, 1, 2 * 28 * 1 * 128),
        ("deepseek-ai/DeepSeek-V3", 1, 2, 70_272),  # 2 × 576 × 61
        ("deepseek-ai/DeepSeek-V3", 8, 2, 70_272),  # a latent vector is on every card
        ("deepseek-ai/DeepSeek-V3", 8, 1, 35_136),
        ("deepseek-ai/DeepSeek-V2-Lite-Chat", 1, 2, 576 * 27 * 2),
        ("Qwen/Qwen3-30B-A3B", 1, 1, 49_152),  # vllm#25350
        ("meta-llama/Llama-3.3-70B-Instruct", 2, 2, 160 * 1024),  # OpenRLHF#336
    ],
)
def test_a_token_costs(name: str, tp: int, dtype_bytes: int, per_token: int) -> None:
    assert shape(name).kv_bytes_per_token(dtype_bytes, tp) == per_token


@pytest.mark.parametrize(
    ("layers", "stages", "counts"),
    [
        (32, 4, [8, 8, 8, 8]),
        (32, 3, [11, 11, 10]),
        (30, 4, [7, 8, 8, 7]),
        (61, 8, [7, 7, 8, 8, 8, 8, 8, 7]),
        (5, 1, [5]),
    ],
)
def test_layers_are_split_into_stages_as_vllm_splits_them(layers: int, stages: int, counts: list[int]) -> None:
    """`get_pp_indices` of vLLM: what is left over goes to the stages before the last."""
    assert stage_layers(layers, stages) == counts


def test_the_stage_with_an_embedding_is_the_heaviest_and_one_in_the_middle_the_lightest() -> None:
    held = shape("meta-llama/Llama-3.1-8B-Instruct").stage_weights_bytes(2, pp=4)

    assert held[0] / GIB == pytest.approx(4.26, abs=0.005)  # accuracy report of llm-d-planner
    assert held[1] == held[2] < held[0]
    assert held[3] - held[0] == 2 * 4096  # the last norm
    assert sum(held) / GIB == pytest.approx(14.96 + 4 * 0.031, abs=0.01)


def test_a_tied_table_is_counted_once_and_on_both_ends_of_a_pipeline() -> None:
    llama = shape("meta-llama/Llama-3.2-1B-Instruct")
    table = 128256 * 2048 * 2

    assert llama.weights_bytes(2) == pytest.approx(1_235_814_400 * 2, rel=0.01)
    assert sum(llama.stage_weights_bytes(2, pp=2)) - llama.weights_bytes(2) == pytest.approx(table, rel=0.04)


def test_experts_are_split_over_expert_parallel_ranks() -> None:
    qwen = shape("Qwen/Qwen3-30B-A3B")
    experts = 48 * 128 * 3 * 2048 * 768 * 2

    assert qwen.weights_bytes(2, tp=2, ep=4) == pytest.approx(qwen.weights_bytes(2, tp=2) - experts / 4, rel=1e-6)


@pytest.mark.parametrize(
    ("name", "mixers"),
    [
        ("mistralai/Mistral-7B-Instruct-v0.1", {WINDOW: 32}),
        ("mistralai/Mistral-7B-Instruct-v0.3", {FULL: 32}),
        ("google/gemma-2-9b-it", {FULL: 21, WINDOW: 21}),
        ("google/gemma-3-27b-it", {FULL: 10, WINDOW: 52}),
        ("openai/gpt-oss-20b", {FULL: 12, WINDOW: 12}),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", {FULL: 12, RECURRENT: 36}),
        ("ai21labs/AI21-Jamba-Mini-1.5", {FULL: 4, RECURRENT: 28}),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", {FULL: 12, WINDOW: 36}),
        ("Qwen/Qwen2.5-7B-Instruct", {FULL: 28}),
    ],
)
def test_layers_are_told_apart(name: str, mixers: dict[str, int]) -> None:
    found = [layer.mixer for layer in shape(name).layout]

    assert {mixer: found.count(mixer) for mixer in sorted(set(found))} == dict(sorted(mixers.items()))


@pytest.mark.parametrize(
    ("config", "recurrent", "full"),
    [
        ({"hybrid_override_pattern": "M-M*-M-*", "num_hidden_layers": 8}, 3, 2),
        ({"layer_types": ["mamba", "attention"] * 4, "num_hidden_layers": 8}, 4, 4),
        ({"layer_types": ["conv", "full_attention"] * 4, "num_hidden_layers": 8}, 4, 4),
        ({"attn_type_list": [0, 0, 0, 1] * 2, "num_hidden_layers": 8}, 6, 2),
        ({"linear_attn_config": {"full_attn_layers": [4, 8]}, "num_hidden_layers": 8}, 6, 2),
        ({"model_type": "mamba2", "state_size": 128, "num_hidden_layers": 8}, 8, 0),
    ],
)
def test_every_way_of_writing_a_hybrid_is_read(config: dict[str, Any], recurrent: int, full: int) -> None:
    found = read_shape({"hidden_size": 1024, "num_attention_heads": 8, "vocab_size": 1000, **config})

    mixers = [layer.mixer for layer in found.layout]
    assert (mixers.count(RECURRENT), mixers.count(FULL)) == (recurrent, full)
    assert found.why_not_linear
    assert answer(Demand(shape=found, total_gib=24.0)).kv_tokens is None


def test_a_hybrid_is_bounded_and_never_counted() -> None:
    """gpt-oss-20b, 131,072 tokens: 12 layers of 2 × 8 × 64 × 2 bytes hold them all (3 GiB), at most all 24 do (6 GiB)."""
    found = answer(Demand(shape=shape("openai/gpt-oss-20b"), total_gib=79.22, max_model_len=131072))

    low, high = found.intervals["need_gib"]
    assert 3.0 < low < 3.3
    assert high == 6.0
    assert found.intervals["bytes_per_token"] == (24576, 49152)
    assert (found.kv_tokens, found.max_concurrency, found.max_model_len_that_fits) == (None, None, None)
    assert "not linear" in found.reasons[0]


def test_an_old_engine_keeps_every_token_of_a_windowed_layer() -> None:
    given: dict[str, Any] = {"shape": shape("google/gemma-3-27b-it"), "total_gib": 79.22, "max_model_len": 131072}

    assert answer(Demand(**given, version=(0, 32))).verdict == "fits"
    assert answer(Demand(**given, version=(0, 8))).verdict == "does-not-fit"


def test_a_window_that_no_sequence_reaches_does_not_matter() -> None:
    mistral = shape("mistralai/Mistral-7B-Instruct-v0.1")

    assert answer(Demand(shape=mistral, total_gib=79.22, max_model_len=4096)).kv_tokens
    assert answer(Demand(shape=mistral, total_gib=79.22, max_model_len=4097)).kv_tokens is None


def test_where_nothing_can_be_told_the_verdict_is_unknown() -> None:
    sparse = shape("deepseek-ai/DeepSeek-V4-Flash")

    assert answer(Demand(shape=sparse, kv_gib=5.44, max_model_len=30000)).verdict == "unknown"
    assert answer(Demand(shape=sparse, kv_gib=-1.0, max_model_len=30000)).verdict == "does-not-fit"


def test_a_tower_is_bounded_and_named() -> None:
    """The tower of Qwen2.5-VL has 0.68 G parameters: 8.29 G of the hub less 7.62 G of the decoder."""
    found = answer(Demand(shape=shape("Qwen/Qwen2.5-VL-7B-Instruct"), total_gib=44.42)).terms["weights"]

    assert found.low < (8_292_166_656 + 4 * 128000 * 128) * 2 / GIB < found.high
    assert found.high - found.low < 1.2
    assert "tower" in found.source


@pytest.mark.parametrize(
    ("name", "valid"),
    [
        ("Qwen/Qwen2.5-7B-Instruct", (1, 2, 4)),  # 28 heads; 7 would cut the 4 KV heads
        ("meta-llama/Llama-3.1-8B-Instruct", (1, 2, 4, 8, 16, 32)),
        ("Qwen/Qwen2.5-0.5B-Instruct", (1, 2)),  # 14 heads of 2 KV heads; the vocabulary does not split by 7
        ("Qwen/Qwen3-30B-A3B-FP8", (1, 2)),  # 768 / 4 = 192 cuts a block of 128
        ("openai/gpt-oss-20b", (1, 2, 4, 8, 16, 32, 64)),
        ("tiiuae/falcon-7b-instruct", (1, 71)),
    ],
)
def test_valid_splits_are_listed(name: str, valid: tuple[int, ...]) -> None:
    found = valid_tensor_parallel(Demand(shape=shape(name), total_gib=80.0))

    assert found == tuple(size for size in valid if size <= 64)


def test_what_cannot_be_split_is_invalid_and_says_what_can() -> None:
    seven = answer(Demand(shape=shape("Qwen/Qwen2.5-7B-Instruct"), total_gib=80.0, tensor_parallel=7))
    ranks = answer(
        Demand(
            shape=shape("Qwen/Qwen3-30B-A3B"), total_gib=80.0, tensor_parallel=4, data_parallel=3, expert_parallel=True
        )
    )
    stages = answer(Demand(shape=shape("llama-3-8b"), total_gib=80.0, pipeline_parallel=33))

    assert [seven.verdict, ranks.verdict, stages.verdict] == ["invalid"] * 3
    assert "valid --tensor-parallel-size: 1, 2, 4" in seven.reasons[0]
    assert "128 experts cannot be split over 12 ranks" in ranks.reasons[0]
    assert "33 stages" in stages.reasons[0]


@pytest.mark.parametrize(
    ("config", "version", "longest"),
    [
        ({}, (0, 32), 8192),
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, (0, 32), 32768),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, (0, 32), 16384),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, (0, 32), 8192),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192}}, (0, 11), 32768),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192}}, (0, 32), 8192),
        ({"model_max_length": 16384}, (0, 32), 16384),
    ],
)
def test_a_length_beyond_what_positions_and_scaling_give_is_invalid(
    config: dict[str, Any], version: tuple[int, int], longest: int
) -> None:
    """`_get_and_verify_max_len` of vLLM 0.11, 0.20 and 0.32."""
    llama = shape("llama-3-8b", **config)

    def verdict(length: int) -> str:
        return answer(Demand(shape=llama, kv_gib=50.0, max_model_len=length, version=version)).verdict

    assert (verdict(longest), verdict(longest + 1)) == ("fits", "invalid")


def test_a_checkpoint_with_scales_for_an_fp8_cache_uses_one() -> None:
    scheme = {"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 8, "type": "float"}}

    assert Demand(shape=shape("llama-3-8b", quantization_config=scheme), kv_gib=1.0).bytes_per_token == 65536


@pytest.mark.parametrize("name", [model.names[0] for model in known_models()])
@pytest.mark.parametrize("cards", [1, 2])
def test_plan_and_twin_agree_to_the_byte_on_every_known_model(name: str, cards: int) -> None:
    """Both ask one `ModelShape`, and both take activation and the rest from one place."""
    known, profile = shape(name), DEVICES["H200"]
    twin = DeviceModel(profile, known, dtype_bytes=2, kv_dtype_bytes=2, cards=cards)
    pool = twin.kv_pool_bytes(twin.requested_bytes(0.9, 0), 4096, graphs=True)

    found = answer(
        Demand(
            shape=known,
            total_gib=profile.total_bytes / GIB,
            utilization=0.9,
            max_num_batched_tokens=4096,
            tensor_parallel=cards,
            kv_cache_dtype="bfloat16",
        )
    )

    if found.verdict == "invalid":
        assert (cards, "heads cannot be split over 2 cards" in found.reasons[0]) == (2, True)
        return
    assert found.terms["KV pool"].gib * GIB == pytest.approx(pool, abs=2)
    if found.kv_tokens is not None:
        assert found.kv_tokens == max(0, pool // (twin.kv_bytes_per_token * 16) * 16)


def test_names_are_found_as_people_type_them() -> None:
    typed = ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b", "Llama-3.1-8B-Instruct", "META-LLAMA/llama-3.1-8b")
    found = [find_model(name) for name in typed]

    assert {model.names[0] for model in found if model} == {"meta-llama/Llama-3.1-8B-Instruct"}
    assert None not in found
    bundled = find_model("llama-3-8b")
    assert bundled is not None
    assert bundled.names == ("llama-3-8b",)
    assert find_model("nobody/knows-it") is None
    assert "Qwen/Qwen3-8B" in nearest_names("Qwen/Qwen3-9B")


def test_at_least_25_popular_models_need_no_file_and_each_names_its_source() -> None:
    assert len(known_models()) > 60
    assert all(model.source for model in known_models())
    names = [name.lower() for model in known_models() for name in model.names]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"hidden_size": "4096"}, "hidden_size"),
        ({"hidden_size": float("nan")}, "hidden_size"),
        ({"hidden_size": True}, "hidden_size"),
        ({"hidden_size": 0}, "hidden_size"),
        ({"hidden_size": 16}, "hidden_size"),
        ({"num_hidden_layers": -1}, "num_hidden_layers"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"num_hidden_layers": {}}, "num_hidden_layers"),
        ({"num_attention_heads": None}, "num_attention_heads"),
        ({"num_attention_heads": 10**30}, "num_attention_heads"),
        ({"num_key_value_heads": "8"}, "num_key_value_heads"),
        ({"head_dim": "128"}, "head_dim"),
        ({"vocab_size": 1.5}, "vocab_size"),
        ({"text_config": "llama"}, "text_config"),
        ({"max_position_embeddings": float("inf")}, "max_position_embeddings"),
        ({"vision_config": {"hidden_size": "x", "depth": 3}}, "hidden_size"),
    ],
)
def test_nonsense_in_a_config_is_named(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        shape("llama-3-8b", **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"layer_types": "full"},
        {"layer_types": [1, None]},
        {"rope_scaling": "linear"},
        {"rope_scaling": {"factor": "x", "type": "yarn", "original_max_position_embeddings": "y"}},
        {"rope_scaling": {"factor": float("nan"), "type": "linear"}},
        {"quantization_config": "fp8"},
        {"quantization_config": {"quant_method": None}},
        {"quantization_config": {"quant_method": "awq", "bits": "4", "group_size": "128"}},
        {"quantization_config": {"quant_method": "fp8", "weight_block_size": [0, 0]}},
        {"quantization_config": {"quant_method": "compressed-tensors", "config_groups": {"g": None}, "ignore": [None]}},
        {"moe_layer_freq": "x"},
        {"hybrid_override_pattern": 5},
        {"linear_attn_config": []},
        {"vision_config": 5},
        {"torch_dtype": 16},
        {"tie_word_embeddings": "yes"},
        {"sliding_window": None},
        {"mamba_dt_rank": "auto"},
    ],
)
def test_nonsense_beside_the_sizes_is_no_traceback(changes: dict[str, Any]) -> None:
    with suppress(ConfigError):
        assert shape("llama-3-8b", **changes).weights_bytes(2, tp=2, pp=2) > 0
