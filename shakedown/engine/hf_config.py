"""Reads a Hugging Face config.json as a `ModelShape`. Standard library only: the twin does so beside the engine.

What a family does not write down is what its class in `transformers` has by default.
"""

import math
from collections.abc import Mapping
from typing import Any

from shakedown.engine.config_text import LARGEST, SPELLINGS, ConfigError, Text, spelled, text_of
from shakedown.engine.layers import COMPRESSED_KEYS, PURE_RECURRENT, layout_of, why_not_linear
from shakedown.engine.quantization import quantization_of
from shakedown.engine.shape import RECURRENT, ModelShape

TIE = "tie_word_embeddings"
TOWERS = ("vision_config", "audio_config", "vision_tower", "visual")
UNGATED = (
    *("gpt2", "gpt_neo", "gpt_neox", "gptj", "opt", "phi", "falcon", "bloom", "mpt", "starcoder2", "gpt_bigcode"),
    *("nemotron", "nemotron_h"),
)
"""Model types whose feed-forward has two matrices, not three."""
BIASED = ("gpt2", "gpt_neo", "gpt_neox", "opt", "phi", "bloom", "starcoder2", "gpt_bigcode")
BIASED_QKV = ("qwen2", "qwen2_moe", "qwen2_vl", "qwen2_5_vl", "qwen2_5_vl_text", "qwen2_vl_text", "chatglm")
LEARNED_POSITIONS = ("gpt2", "gpt_neo", "opt", "gpt_bigcode")
TIED = ("gemma", "gpt2", "opt", "gpt_bigcode", "bloom", "mpt", "falcon", "starcoder2", "cohere")
ROTARY_SHARE = {"phi": 0.5, "gpt_neox": 0.25}
NORMS = {"gemma2": 4, "gemma3_text": 4, "phi": 2, "gpt2": 4, "opt": 4, "cohere": 1, "cohere2": 1}
"""Vectors of the hidden size a layer, where it is not two."""
MROPE_TABLE = 4
"""vLLM's table of rotary positions in three dimensions is that many times as long."""
MOST_LAYERS = 10_000
YARN = ("yarn", "deepseek_yarn")
UNSCALED_ROPE = ("su", "longrope", "llama3", "deepseek_llama_scaling", "default", "mrope", "proportional", *YARN)


def read_shape(config: Mapping[str, Any]) -> ModelShape:
    """Raises ConfigError naming the keys that are missing or make no sense."""
    text = text_of(config)
    if text.family in PURE_RECURRENT:
        text = Text({"num_attention_heads": 1, **text.keys}, text.family)
    missing = [key for key in ("num_hidden_layers", "hidden_size", "num_attention_heads") if not spelled(text, key)]
    if missing:
        raise ConfigError(f"the config lacks {', '.join(missing)}")
    layers, hidden, heads = (text.needed(key) for key in ("num_hidden_layers", "hidden_size", "num_attention_heads"))
    if layers > MOST_LAYERS:
        raise ConfigError(f"num_hidden_layers is {layers}, and no model has that many")
    layout, window = layout_of(text, layers)
    why, bounded = why_not_linear(config, text, layout, window)
    vision = sum(_tower(config.get(part)) for part in TOWERS)
    quantization, quantization_unknown = quantization_of(_quantization_part(config, text), layers)
    recurrent = any(layer.mixer == RECURRENT for layer in layout)
    approximate = recurrent or text.has(*COMPRESSED_KEYS)
    estimated = quantization_unknown or ("recurrent or sparse layers from their widths" if approximate else "")
    yarn = _yarn_positions(text)
    return ModelShape(
        layout=layout,
        hidden=hidden,
        heads=heads,
        kv_heads=_kv_heads(text, heads),
        head_dim=_head_dim(text, hidden, heads),
        vocab=text.count("vocab_size"),
        **_attention(text, hidden, heads),
        **_feed_forward(text, hidden),
        tied_embeddings=_is_tied(config, text),
        small=_small(text, hidden, heads),
        latent_dim=_latent_dim(text),
        recurrent=_recurrent(text, hidden) if recurrent else 0,
        window=window,
        tables=_tables(text, hidden, heads, yarn),
        vision=vision,
        dtype=_dtype(config, text),
        max_positions=_positions(text),
        yarn_positions=yarn,
        quantization=quantization,
        kv_dtype=_kv_dtype(_quantization_part(config, text)),
        why_not_linear=why,
        bounded=bounded,
        estimated=estimated,
        family=text.family,
    )


def _kv_heads(text: Text, heads: int) -> int:
    if text.keys.get("multi_query") is True and not text.keys.get("new_decoder_architecture"):
        return 1
    return text.count("num_key_value_heads") or heads


def _head_dim(text: Text, hidden: int, heads: int) -> int:
    if text.keys.get("head_dim") is not None:
        return text.needed("head_dim")
    if hidden < heads:
        raise ConfigError(f"hidden_size {hidden} is less than num_attention_heads {heads}")
    return hidden // heads


def _latent_dim(text: Text) -> int:
    rank = text.count("kv_lora_rank")
    return rank + text.count("qk_rope_head_dim") if rank else 0


def _attention(text: Text, hidden: int, heads: int) -> dict[str, int]:
    if text.count("kv_lora_rank"):
        return _latent_attention(text, hidden, heads)
    head_dim = _head_dim(text, hidden, heads)
    q, kv = heads * head_dim, _kv_heads(text, heads) * head_dim
    gate = q if text.has("attn_output_gate") or text.family == "qwen3_next" else 0
    return {"attention": hidden * (q + gate + 2 * kv) + q * hidden, "whole_attention": 2 * hidden * kv}


def _latent_attention(text: Text, hidden: int, heads: int) -> dict[str, int]:
    """Multi-head latent attention of DeepSeek V2: https://arxiv.org/abs/2405.04434, section 2.1."""
    rank, rope, q_rank = text.count("kv_lora_rank"), text.count("qk_rope_head_dim"), text.count("q_lora_rank")
    key, value = text.count("qk_nope_head_dim", 128), text.count("v_head_dim", 128)
    q = heads * (key + rope)
    query = q_rank * q if q_rank else hidden * q
    whole = hidden * (rank + rope) + hidden * q_rank
    return {
        "attention": whole + query + rank * heads * (key + value) + heads * value * hidden,
        "whole_attention": whole,
    }


def _feed_forward(text: Text, hidden: int) -> dict[str, int]:
    matrices = 2 if text.family in UNGATED else 3
    inner = text.count("intermediate_size") or 4 * hidden
    dense = matrices * hidden * (text.count("intermediate_size_mlp") or inner)
    experts = text.count("num_experts")
    if experts < 2:
        return {"feed_forward": dense, "intermediate": inner}
    width = text.count("moe_intermediate_size") or inner
    shared = text.count("shared_intermediate_size") or text.count("num_shared_experts") * width
    if text.has("intermediate_size_mlp"):
        shared = width
    return {
        "feed_forward": dense,
        "intermediate": width,
        "experts": experts,
        "expert": matrices * hidden * width + (hidden + 2 * width if text.family == "gpt_oss" else 0),
        "shared_experts": matrices * hidden * shared + hidden * experts,
    }


def _small(text: Text, hidden: int, heads: int) -> int:
    head_dim = _head_dim(text, hidden, heads)
    q, kv = heads * head_dim, 2 * _kv_heads(text, heads) * head_dim
    inner = text.count("intermediate_size") or 4 * hidden
    biases = 0
    if text.family in BIASED:
        biases = q + kv + hidden + inner + hidden
    elif text.has("attention_bias"):
        biases = q + kv + hidden
    elif text.family in BIASED_QKV:
        biases = q + kv
    return NORMS.get(text.family, 2) * hidden + biases


def _recurrent(text: Text, hidden: int) -> int:
    """One mixer: gated delta net (linear_*), Mamba 2 (mamba_num_heads and the like) or Mamba 1."""
    if keys := text.count("linear_num_key_heads") * text.count("linear_key_head_dim"):
        values = text.count("linear_num_value_heads") * text.count("linear_value_head_dim")
        return hidden * (2 * keys + 2 * values + 2 * text.count("linear_num_value_heads")) + values * hidden
    heads = text.count("mamba_num_heads") or text.count("mamba_n_heads")
    inner = text.count("mamba_expand", 2) * hidden
    if heads:
        inner = heads * (text.count("mamba_head_dim") or text.count("mamba_d_head") or inner // heads)
        state = text.count("ssm_state_size") or text.count("mamba_d_state")
        groups = text.count("n_groups") or text.count("mamba_n_groups", 1)
        return hidden * (2 * inner + 2 * groups * state + heads) + inner * hidden
    inner = (
        text.count("intermediate_size") if text.family in PURE_RECURRENT and text.count("intermediate_size") else inner
    )
    state = text.count("mamba_d_state") or text.count("state_size", 16)
    rank = text.count("mamba_dt_rank") if not isinstance(text.keys.get("mamba_dt_rank"), str) else 0
    rank = rank or -(-hidden // 16)
    return hidden * 2 * inner + inner * (rank + 2 * state) + rank * inner + inner * hidden


def _is_tied(config: Mapping[str, Any], text: Text) -> bool:
    said = next((part[key] for part, key in ((config, TIE), (text.keys, TIE)) if part.get(key) is not None), None)
    return text.family.startswith(TIED) if said is None else bool(said)


def _dtype(config: Mapping[str, Any], text: Text) -> str:
    found = (part.get(key) for part in (text.keys, config) for key in ("dtype", "torch_dtype"))
    return str(next((value for value in found if value), "bfloat16")).removeprefix("torch.")


def _rope(text: Text) -> Mapping[str, Any]:
    found = text.keys.get("rope_parameters") or text.keys.get("rope_scaling")
    if isinstance(found, Mapping) and isinstance(found.get("full_attention"), Mapping):
        found = found["full_attention"]
    return found if isinstance(found, Mapping) else {}


def _rope_type(rope: Mapping[str, Any]) -> str:
    return str(rope.get("rope_type") or rope.get("type") or "default")


def _positions(text: Text) -> int:
    """The smallest of the lengths that a config names, times a linear or dynamic scaling (vLLM's
    `_get_and_verify_max_len`)."""
    said = [text.count(key) for key in SPELLINGS["max_position_embeddings"] if text.count(key)]
    shortest = min(said, default=0)
    rope = _rope(text)
    factor = rope.get("factor")
    scales = _rope_type(rope) not in UNSCALED_ROPE and "gemma3" not in text.family
    if scales and isinstance(factor, int | float) and math.isfinite(factor) and factor > 0:
        shortest = int(shortest * factor)
    return max(shortest, text.count("model_max_length"))


def _yarn_positions(text: Text) -> int:
    rope = _rope(text)
    factor, original = rope.get("factor"), rope.get("original_max_position_embeddings")
    if _rope_type(rope) not in YARN or not isinstance(factor, int | float) or not isinstance(original, int | float):
        return 0
    return int(factor * original) if math.isfinite(factor * original) and 0 < factor * original < LARGEST else 0


def _tables(text: Text, hidden: int, heads: int, yarn: int) -> int:
    positions = _positions(text)
    if text.family in LEARNED_POSITIONS:
        return positions * hidden
    rope = _rope(text)
    share = text.share("partial_rotary_factor") or text.share("rotary_pct") or ROTARY_SHARE.get(text.family, 1.0)
    inner = rope.get("partial_rotary_factor")
    if isinstance(inner, int | float) and 0 < inner <= 1:
        share = inner
    wide = text.count("rotary_dim") or int(_head_dim(text, hidden, heads) * min(share, 1.0))
    if _latent_dim(text):
        wide = text.count("qk_rope_head_dim")
    times = MROPE_TABLE if "mrope_section" in rope else 2 if text.family.startswith("gemma3") else 1
    return (yarn or positions) * wide * times


def _quantization_part(config: Mapping[str, Any], text: Text) -> Mapping[str, Any]:
    for part in (config, text.keys):
        for key in ("quantization_config", "compression_config"):
            if isinstance(part.get(key), Mapping):
                found: Mapping[str, Any] = part[key]
                return found
    return {}


def _kv_dtype(quantization: Mapping[str, Any]) -> str:
    """Checkpoints of modelopt and compressed-tensors carry scales for an fp8 cache, and engines then use one."""
    scheme = quantization.get("kv_cache_scheme")
    if isinstance(scheme, Mapping) and scheme.get("num_bits") == 8 and scheme.get("type", "float") == "float":
        return "fp8"
    return "fp8" if str(quantization.get("kv_cache_quant_algo") or "").upper() == "FP8" else "auto"


def _tower(part: Any) -> int:
    """Parameters of a transformer of that width and depth: attention 4 h², feed-forward 2 h × intermediate."""
    if not isinstance(part, Mapping):
        return 0
    tower = Text(part, "")
    hidden = tower.count("hidden_size") or tower.count("width") or tower.count("d_model")
    if part.get("depth") and tower.count("embed_dim"):
        hidden = tower.count("embed_dim")
    depth = tower.count("num_hidden_layers") or tower.count("depth") or tower.count("layers")
    depth = depth or tower.count("encoder_layers")
    inner = tower.count("intermediate_size") or tower.count("encoder_ffn_dim") or 4 * hidden
    return depth * (4 * hidden * hidden + 2 * hidden * inner)
