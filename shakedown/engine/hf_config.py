"""Reads a Hugging Face config.json as a `ModelShape`. Standard library only: the twin does so beside the engine.

Configs differ in their words, not in what they say: `SPELLINGS` lists the names each quantity goes by. What a family
does not write down is what its class in `transformers` has by default.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shakedown.engine.quantization import quantization_of
from shakedown.engine.shape import DENSE, EXPERTS, FULL, NOTHING, RECURRENT, WINDOW, Layer, ModelShape

SPELLINGS = {
    "num_hidden_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "hidden_size": ("hidden_size", "n_embd", "d_model", "dim"),
    "num_attention_heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "num_key_value_heads": ("num_key_value_heads", "num_kv_heads", "multi_query_group_num", "n_head_kv", "kv_n_heads"),
    "intermediate_size": ("intermediate_size", "ffn_hidden_size", "n_inner", "ffn_dim"),
    "vocab_size": ("vocab_size", "padded_vocab_size"),
    "max_position_embeddings": (
        "max_position_embeddings",
        "n_positions",
        "max_seq_len",
        "seq_length",
        "max_sequence_length",
        "max_seq_length",
        "seq_len",
    ),
    "num_experts": ("num_local_experts", "n_routed_experts", "num_experts", "moe_num_experts"),
    "moe_intermediate_size": ("moe_intermediate_size", "expert_ffn_hidden_size"),
    "num_shared_experts": ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts"),
    "shared_intermediate_size": (
        "shared_expert_intermediate_size",
        "shared_intermediate_size",
        "moe_shared_expert_intermediate_size",
    ),
    "first_expert_layer": ("first_k_dense_replace", "moe_layer_start_index"),
}
TEXT_PARTS = ("text_config", "llm_config", "language_config", "thinker_config")
"""Where a multimodal config keeps its decoder."""
PARTS_WITH_SIZES = ("attn_config", "ffn_config")
TIE = "tie_word_embeddings"
TOWERS = ("vision_config", "audio_config", "vision_tower", "visual")
GEMMA3 = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "vocab_size": 262208,
    "max_position_embeddings": 131072,
    "sliding_window": 4096,
}
LLAMA = {
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "intermediate_size": 11008,
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
}
DEFAULTS: dict[str, dict[str, int]] = {
    "gemma3_text": GEMMA3,
    "llama": LLAMA,
    "mistral": {**LLAMA, "num_key_value_heads": 8},
}
"""Of the classes in transformers, for decoders inside a multimodal config, which write down what differs only."""
PURE_RECURRENT = ("mamba", "mamba2", "falcon_mamba", "rwkv")
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
WINDOW_KINDS = ("sliding_attention", "chunked_attention", "local_attention", "sliding", "local")
RECURRENT_WORDS = re.compile("linear|mamba|recurrent|conv|rwkv|ssm|delta|kda")
"""In the name of a layer that keeps a state; any other attends to every token."""
RECURRENT_KEYS = (
    *("mamba_d_state", "mamba_num_heads", "hybrid_override_pattern", "full_attention_interval", "ssm_cfg"),
    *("ssm_state_size", "state_size", "linear_num_key_heads", "linear_attn_config", "attn_layer_period"),
    *("block_types", "attn_type_list"),
)
COMPRESSED_KEYS = ("index_head_dim", "index_topk", "compress_ratios", "compress_ratio")
LARGEST = 10**10
"""No size in any config comes near it; larger ones are slips."""
MOST_LAYERS = 10_000
YARN = ("yarn", "deepseek_yarn")
UNSCALED_ROPE = ("su", "longrope", "llama3", "deepseek_llama_scaling", "default", "mrope", "proportional", *YARN)


class ConfigError(ValueError):
    """A config.json that lacks what memory depends on, or has nonsense in its place; the message names the keys."""


@dataclass(frozen=True)
class Text:
    """The decoder's part of a config, asked for numbers."""

    keys: Mapping[str, Any]
    family: str

    def count(self, name: str, default: int = 0) -> int:
        """By any of its spellings. Raises ConfigError for what is not a whole number that a size can have."""
        for key in SPELLINGS.get(name, (name,)):
            value = self.keys.get(key)
            if isinstance(value, Sequence) and not isinstance(value, str) and value:
                value = value[0]
            if value is None or value is False:
                continue
            if isinstance(value, float) and value.is_integer():
                value = int(value)
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= LARGEST:
                raise ConfigError(f"{key} must be a whole number of 0 or more, not {_shown(value)}")
            return value
        return default

    def needed(self, name: str) -> int:
        """Raises ConfigError for 0 too."""
        value = self.count(name)
        if value < 1:
            key = next((key for key in SPELLINGS.get(name, (name,)) if self.keys.get(key) is not None), None)
            said = f"{key} must be a positive whole number, not {_shown(self.keys[key])}" if key else f"lacks {name}"
            raise ConfigError(said if key else f"the config {said}")
        return value

    def share(self, name: str) -> float | None:
        value = self.keys.get(name)
        if value is None or isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            return None
        return float(value)

    def names(self, *keys: str) -> list[str]:
        """The first list of words under any of these keys."""
        for key in keys:
            value = self.keys.get(key)
            if isinstance(value, Sequence) and not isinstance(value, str) and value:
                return [str(item) for item in value]
        return []

    def has(self, *keys: str) -> bool:
        return any(self.keys.get(key) for key in keys)


def read_shape(config: Mapping[str, Any]) -> ModelShape:
    """Raises ConfigError naming the keys that are missing or make no sense."""
    text = _text_of(config)
    if text.family in PURE_RECURRENT:
        text = Text({"num_attention_heads": 1, **text.keys}, text.family)
    missing = [key for key in ("num_hidden_layers", "hidden_size", "num_attention_heads") if not _spelled(text, key)]
    if missing:
        raise ConfigError(f"the config lacks {', '.join(missing)}")
    layers, hidden, heads = (text.needed(key) for key in ("num_hidden_layers", "hidden_size", "num_attention_heads"))
    if layers > MOST_LAYERS:
        raise ConfigError(f"num_hidden_layers is {layers}, and no model has that many")
    layout, window = _layout(text, layers)
    why, bounded = _why_not_linear(config, text, layout, window)
    vision = sum(_tower(config.get(part)) for part in TOWERS)
    quantization, quantization_unknown = quantization_of(_quantization_part(config, text), layers)
    recurrent = any(layer.mixer == RECURRENT for layer in layout)
    estimated = quantization_unknown or ("recurrent layers from their widths" if recurrent else "")
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


def _text_of(config: Mapping[str, Any]) -> Text:
    """The innermost decoder, sizes of its parts beside its own; raises ConfigError when a part is not an object."""
    part: Mapping[str, Any] = config
    nested = False
    for _ in range(4):
        key = next((key for key in TEXT_PARTS if part.get(key) is not None), None)
        if key is None:
            break
        if not isinstance(part[key], Mapping):
            raise ConfigError(f"{key} must be an object, not {_shown(part[key])}")
        part, nested = part[key], True
    family = str(part.get("model_type") or config.get("model_type") or "")
    sizes: dict[str, Any] = {}
    for inner in PARTS_WITH_SIZES:
        if isinstance(part.get(inner), Mapping):
            sizes |= part[inner]
    defaults = DEFAULTS.get(family, {}) if nested else {}
    said = {key: value for key, value in part.items() if value is not None}
    return Text({**sizes, **_unsaid(defaults, said), **said}, family)


def _unsaid(defaults: Mapping[str, int], said: Mapping[str, Any]) -> dict[str, int]:
    return {
        key: value for key, value in defaults.items() if not any(word in said for word in SPELLINGS.get(key, (key,)))
    }


def _spelled(text: Text, name: str) -> bool:
    return any(text.keys.get(key) is not None for key in SPELLINGS[name])


def _shown(value: object) -> str:
    return repr(value)[:40]


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


def _layout(text: Text, layers: int) -> tuple[tuple[Layer, ...], int]:
    """What each layer is, and the tokens that windowed ones keep."""
    pattern = text.keys.get("hybrid_override_pattern")
    if isinstance(pattern, str) and pattern:
        return tuple(_nemotron_layer(letter) for letter in pattern[:layers].ljust(layers, "-")), 0
    mixers, window = _mixers(text, layers)
    sparse = _sparse_layers(text, layers)
    alone = NOTHING if text.family in PURE_RECURRENT else DENSE
    return tuple(Layer(mixer, EXPERTS if sparse[i] else alone) for i, mixer in enumerate(mixers)), window


def _nemotron_layer(letter: str) -> Layer:
    mixers = {"M": RECURRENT, "*": FULL}
    return Layer(mixers.get(letter, NOTHING), {"-": DENSE, "E": EXPERTS}.get(letter, NOTHING))


def _mixers(text: Text, layers: int) -> tuple[list[str], int]:
    window = text.count("sliding_window") or text.count("attention_chunk_size")
    windows_off = text.keys.get("use_sliding_window", True) is False
    window = 0 if windows_off else window
    if text.family in PURE_RECURRENT:
        return [RECURRENT] * layers, 0
    named = text.names("layer_types", "layers_block_type", "block_types")
    if named:
        kinds = [_named_mixer(named[index % len(named)], windows_off) for index in range(layers)]
        return kinds, window if WINDOW in kinds else 0
    if (attends := _attending(text, layers)) is not None:
        return [FULL if index in attends else RECURRENT for index in range(layers)], 0
    if not window:
        return [FULL] * layers, 0
    kinds = [WINDOW if _is_windowed(text, index) else FULL for index in range(layers)]
    return kinds, window if WINDOW in kinds else 0


def _named_mixer(name: str, windows_off: bool) -> str:
    if name in WINDOW_KINDS:
        return FULL if windows_off else WINDOW
    return RECURRENT if RECURRENT_WORDS.search(name) else FULL


def _attending(text: Text, layers: int) -> set[int] | None:
    """Layers of a hybrid that attend to every token; None for a model whose layers are all alike."""
    if every := text.count("full_attention_interval"):
        return {index for index in range(layers) if (index + 1) % every == 0}
    if period := text.count("attn_layer_period"):
        return {index for index in range(layers) if index % period == text.count("attn_layer_offset")}
    flags = text.names("attn_type_list")
    if flags:
        return {index for index, flag in enumerate(flags) if flag == "1"}
    linear = text.keys.get("linear_attn_config")
    if isinstance(linear, Mapping) and isinstance(linear.get("full_attn_layers"), Sequence):
        return {index - 1 for index in linear["full_attn_layers"] if isinstance(index, int)}
    indices = text.names("attn_layer_indices")
    return {int(index) for index in indices if index.isdigit()} if indices else None


def _is_windowed(text: Text, index: int) -> bool:
    pattern = text.keys.get("sliding_window_pattern") or text.keys.get("_sliding_window_pattern")
    if text.family.startswith("gemma3") and pattern is None:
        pattern = 6
    if isinstance(pattern, int) and not isinstance(pattern, bool) and pattern > 0:
        return (index + 1) % pattern != 0
    if isinstance(pattern, str) and pattern:
        return pattern[index % len(pattern)] == "L"
    if text.has("attention_chunk_size"):
        return (index + 1) % 4 != 0
    if text.family == "gemma2":
        return index % 2 == 0
    if text.has("use_sliding_window") and text.keys.get("max_window_layers") is not None:
        return index >= text.count("max_window_layers")
    return True


def _sparse_layers(text: Text, layers: int) -> list[bool]:
    if text.count("num_experts") < 2:
        return [False] * layers
    every = text.keys.get("moe_layer_freq")
    if isinstance(every, Sequence) and not isinstance(every, str):
        return [bool(every[index]) if index < len(every) else True for index in range(layers)]
    first, dense = text.count("first_expert_layer"), set(text.names("mlp_only_layers"))
    if period := text.count("expert_layer_period"):
        offset = text.count("expert_layer_offset")
        return [index % period == offset for index in range(layers)]
    named = text.names("moe_layers")
    if named:
        return [str(index) in named for index in range(layers)]
    step = text.count("decoder_sparse_step") or text.count("interleave_moe_layer_step")
    step = step or text.count("moe_layer_freq") or text.count("moe_layer_interval") or 1
    return [index >= first and str(index) not in dense and (index + 1) % step == 0 for index in range(layers)]


def _why_not_linear(config: Mapping[str, Any], text: Text, layout: Sequence[Layer], window: int) -> tuple[str, bool]:
    """In words, and whether bounds can still be told."""
    if text.has(*COMPRESSED_KEYS):
        return "sparse attention keeps an index or a compressed copy beside the cache", False
    if text.has("num_kv_shared_layers"):
        return "some layers share their cache", True
    if text.has("block_configs"):
        return "its layers differ in their heads", False
    if config.get("is_encoder_decoder") is True:
        return "the encoder's output is cached beside the decoder's", False
    recurrent = sum(layer.mixer == RECURRENT for layer in layout)
    if recurrent:
        return f"{recurrent} of {len(layout)} layers are recurrent and keep a state of fixed size", True
    if text.has(*RECURRENT_KEYS) or text.family == "falcon_h1":
        return "it has recurrent layers, which keep a state of fixed size", True
    windowed = sum(layer.mixer == WINDOW for layer in layout)
    if windowed:
        size = f"a window of {window} tokens" if window else "a window"
        return f"{windowed} of {len(layout)} layers keep {size}", True
    return "", True


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
