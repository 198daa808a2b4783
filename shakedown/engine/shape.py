"""A model's size from its Hugging Face config. Standard library only: the twin reads it in the engine's environment.

Configs differ in their words, not in what they say: `SPELLINGS` lists the names each quantity goes by.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

NEEDED = ("num_hidden_layers", "hidden_size", "num_attention_heads")
SPELLINGS = {
    "num_hidden_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "hidden_size": ("hidden_size", "n_embd", "d_model", "dim"),
    "num_attention_heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "num_key_value_heads": ("num_key_value_heads", "num_kv_heads", "multi_query_group_num", "n_head_kv"),
    "intermediate_size": ("intermediate_size", "ffn_hidden_size", "n_inner", "ffn_dim"),
    "vocab_size": ("vocab_size", "padded_vocab_size"),
    "positions": ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length"),
    "experts": ("num_local_experts", "n_routed_experts", "num_experts", "moe_num_experts"),
    "experts_per_token": ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k"),
    "expert_intermediate": ("moe_intermediate_size", "expert_ffn_hidden_size", "intermediate_size"),
}
TEXT_PARTS = ("text_config", "llm_config", "language_config", "thinker_config")
"""Where a multimodal config keeps its decoder."""
UNGATED = ("gpt2", "gpt_neo", "gpt_neox", "gptj", "opt", "phi", "falcon", "bloom", "mpt", "starcoder2", "gpt_bigcode")
"""Model types whose feed-forward has two matrices, not three."""
LEARNED_POSITIONS = ("gpt2", "gpt_neo", "opt", "gpt_bigcode")
ROTARY_SHARE = {"phi": 0.5, "gpt_neox": 0.25}
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
    "gguf": 4,
}
"""Bits of a weight where the config names the method and not the bits."""
EXPERTS_ONLY = ("mxfp4", "experts_int8")
SCALES_PER_WEIGHT_BYTES = 2.5 / 128
"""A 16-bit scale and a 4-bit zero point for each group of 128 weights."""
FULL_KINDS = ("full_attention", "attention", "full", "global", "hybrid")
WINDOW_KINDS = ("sliding_attention", "chunked_attention", "local_attention", "sliding", "local")
RECURRENT_KEYS = (
    "mamba_d_state",
    "mamba_num_heads",
    "hybrid_override_pattern",
    "full_attention_interval",
    "ssm_cfg",
    "ssm_state_size",
    "state_size",
    "linear_num_key_heads",
    "linear_attn_config",
    "attn_layer_period",
    "block_types",
)
INDEXED_KEYS = ("index_head_dim", "compress_ratios", "compress_ratio", "sliding_window_compress")
"""Sparse attention keeps an index, or a compressed copy, beside the cache."""
VOCAB_PADDING = 64


class ConfigError(ValueError):
    """A config.json that lacks what memory depends on; the message names the keys."""


@dataclass(frozen=True)
class ModelShape:
    """What memory and step time depend on, of a decoder."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    tied_embeddings: bool
    attention_bias: bool
    dtype: str = "bfloat16"
    max_positions: int = 0
    """0 when the config does not say."""
    latent_dim: int = 0
    """Multi-head latent attention: width of the one cached vector a token and layer; 0 without it."""
    q_latent_dim: int = 0
    latent_rope_dim: int = 0
    """The part of a latent vector, and of every query head, that carries positions."""
    latent_head_dims: tuple[int, int] = (0, 0)
    """Key (without positions) and value width of a head that a latent vector is unfolded to."""
    experts: int = 0
    experts_per_token: int = 0
    shared_intermediate: int = 0
    """Width of the experts that every token passes."""
    expert_intermediate: int = 0
    dense_layers: int = 0
    """Layers without experts, in a model that has some."""
    gated: bool = True
    learned_positions: bool = False
    rotary_dim: int = 0
    window: int = 0
    """Tokens that a windowed layer keeps; 0 without such layers."""
    window_layers: int = 0
    hybrid: str = ""
    """Why a token has no fixed price, in words; empty when it has one at any length."""
    attention_layers: int = 0
    """Layers that keep keys and values of every token: the least that a hybrid needs."""
    quantization: str = ""
    weight_bits: int = 0
    experts_only_quantized: bool = False
    vision_parameters: int = 0
    """Bounded by the tower's width and depth; 0 without a tower."""

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "ModelShape":
        """Read a config.json. Raises ConfigError naming the keys that are missing or make no sense."""
        text = _decoder_of(config)
        _check(text)
        kind = str(text.get("model_type", config.get("model_type", "")))
        layers = _count(text, "num_hidden_layers")
        heads, hidden = _count(text, "num_attention_heads"), _count(text, "hidden_size")
        head_dim = text.get("head_dim") or hidden // heads
        window, window_layers = _windows(text, layers)
        hybrid = _why_hybrid(text, config, window, window_layers, layers)
        return cls(
            layers=layers,
            hidden=hidden,
            heads=heads,
            kv_heads=_kv_heads(text, heads),
            head_dim=head_dim,
            intermediate=_dense_intermediate(text, hidden),
            vocab=_count(text, "vocab_size"),
            tied_embeddings=_is_tied(config, text, kind),
            attention_bias=bool(text.get("attention_bias", kind in ("qwen2", "qwen2_moe", "qwen2_vl", "qwen2_5_vl"))),
            dtype=_dtype(config, text),
            max_positions=_count(text, "positions"),
            **_latent(text),
            **_experts(text, layers),
            gated=kind not in UNGATED,
            learned_positions=kind in LEARNED_POSITIONS,
            rotary_dim=_rotary(text, kind, head_dim),
            window=window,
            window_layers=window_layers,
            hybrid=hybrid,
            attention_layers=_attention_layers(text, layers, window_layers, hybrid),
            **_quantized(config, text),
            vision_parameters=_tower(config.get("vision_config")),
        )

    @property
    def linear(self) -> bool:
        """Whether every token costs the same at any length."""
        return not self.hybrid

    def is_linear_up_to(self, tokens: int | None) -> bool:
        """Whether every token costs the same in sequences of that length: a window nobody reaches does not matter."""
        if self.linear:
            return True
        only_windows = self.window > 0 and self.window_layers == self.layers
        return only_windows and tokens is not None and tokens <= self.window

    @property
    def parameters(self) -> int:
        """Weights of the whole model, norms included."""
        return self.matrix_parameters + self.embedding_parameters + (2 * self.layers + 1) * self.hidden

    @property
    def embedding_parameters(self) -> int:
        """Tables outside the layers; a vision tower counts here, since quantisation mostly leaves both alone."""
        positions = self.max_positions * self.hidden if self.learned_positions else 0
        return self.vocab * self.hidden * (1 if self.tied_embeddings else 2) + positions + self.vision_parameters

    @property
    def matrix_parameters(self) -> int:
        """Attention and feed-forward matrices: what quantisation shrinks."""
        return self.layers * self.attention_parameters + self.feed_forward_parameters

    @property
    def feed_forward_parameters(self) -> int:
        dense = (3 if self.gated else 2) * self.hidden * self.intermediate
        if not self.experts:
            return self.layers * dense
        shared = 3 * self.hidden * self.shared_intermediate + self.hidden * self.experts
        return self.dense_layers * dense + (self.layers - self.dense_layers) * shared + self.expert_parameters

    @property
    def expert_parameters(self) -> int:
        """Routed experts of all layers."""
        layers_with_experts = self.layers - self.dense_layers if self.experts else 0
        return layers_with_experts * self.experts * 3 * self.hidden * self.expert_intermediate

    @property
    def attention_parameters(self) -> int:
        """Of one layer."""
        if self.latent_dim:
            return self._latent_attention
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return self.hidden * (q + 2 * kv) + q * self.hidden + (q + 2 * kv if self.attention_bias else 0)

    @property
    def _latent_attention(self) -> int:
        key, value = self.latent_head_dims
        q = self.heads * (key + self.latent_rope_dim)
        query = self.hidden * self.q_latent_dim + self.q_latent_dim * q if self.q_latent_dim else self.hidden * q
        unfolded = (self.latent_dim - self.latent_rope_dim) * self.heads * (key + value)
        return query + self.hidden * self.latent_dim + unfolded + self.heads * value * self.hidden

    def weights_bytes(self, dtype_bytes: float, tp: int = 1, pp: int = 1) -> float:
        """Bytes on the card that holds most: heads, feed-forward and vocabulary are split over `tp` cards, layers over
        `pp` stages; norms and the table of rotary positions are on every card. The first stage also holds the
        embedding, the last one the output.
        """
        layers = -(-self.layers // pp)
        matrices = self._matrix_bytes(dtype_bytes) * layers / self.layers / tp
        replicated = max(0, tp - self.kv_heads) / tp * 2 * self.hidden * self.head_dim * layers * dtype_bytes
        norms = (2 * layers + 1) * self.hidden * dtype_bytes
        split_tables = pp > 1 and not self.tied_embeddings
        outside = self.embedding_parameters - (self.vocab * self.hidden if split_tables else 0)
        rotary = 0 if self.learned_positions else self.max_positions * self.rotary_dim
        return matrices + replicated * (not self.latent_dim) + norms + (outside / tp + rotary) * dtype_bytes

    def _matrix_bytes(self, dtype_bytes: float) -> float:
        if not self.weight_bits:
            return self.matrix_parameters * dtype_bytes
        width = self.weight_bits / 8 + (SCALES_PER_WEIGHT_BYTES if self.weight_bits < 8 else 0)
        narrow = self.expert_parameters if self.experts_only_quantized else self.matrix_parameters
        return narrow * width + (self.matrix_parameters - narrow) * dtype_bytes

    def kv_bytes_per_token(self, kv_dtype_bytes: float, tp: int = 1, pp: int = 1) -> float:
        """Bytes of keys and values of a token on each card of the fullest stage.

        Heads fewer than cards are replicated; a latent vector is not split at all; stages split layers.
        """
        return -(-self.layers // pp) * self.kv_bytes_per_token_and_layer(kv_dtype_bytes, tp)

    def kv_bytes_per_token_and_layer(self, kv_dtype_bytes: float, tp: int = 1) -> float:
        """Of one layer that attends."""
        if self.latent_dim:
            return self.latent_dim * kv_dtype_bytes
        return 2 * max(1, self.kv_heads // tp) * self.head_dim * kv_dtype_bytes

    def kv_need_bytes(self, tokens: int, step_tokens: int, kv_dtype_bytes: float, tp: int = 1) -> tuple[float, float]:
        """The least and the most that one sequence of that length keeps on a card.

        The least: windowed layers hold their window and the tokens of a running step, recurrent ones nothing. The
        most: every layer keeps every token, as in engines that do not know the difference.
        """
        price = self.kv_bytes_per_token_and_layer(kv_dtype_bytes, tp)
        windowed = min(tokens, self.window + step_tokens) * self.window_layers
        return price * (tokens * self.attention_layers + windowed), price * tokens * self.layers

    def padded_vocab(self) -> int:
        """The vocabulary as engines pad it before they split it over cards."""
        return -(-self.vocab // VOCAB_PADDING) * VOCAB_PADDING


def _decoder_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    for part in TEXT_PARTS:
        inner = config.get(part)
        if isinstance(inner, Mapping):
            return _decoder_of(inner)
    return config


def _value(config: Mapping[str, Any], name: str) -> Any:
    return next((config[key] for key in SPELLINGS[name] if config.get(key) is not None), None)


def _count(config: Mapping[str, Any], name: str) -> int:
    """0 when the config does not say."""
    value = _value(config, name)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _check(text: Mapping[str, Any]) -> None:
    missing = [key for key in NEEDED if _value(text, key) is None]
    if missing:
        raise ConfigError(f"the config lacks {', '.join(missing)}")
    for name, keys in SPELLINGS.items():
        for key in keys:
            value = text.get(key)
            wrong = isinstance(value, bool) or not isinstance(value, (int, type(None)))
            if (wrong and name in NEEDED) or (isinstance(value, int) and value < (1 if name in NEEDED else 0)):
                raise ConfigError(f"{key} must be a positive whole number, not {value!r}")
    head_dim = text.get("head_dim")
    if head_dim is not None and (isinstance(head_dim, bool) or not isinstance(head_dim, int) or head_dim < 1):
        raise ConfigError(f"head_dim must be a positive whole number, not {head_dim!r}")


def _kv_heads(text: Mapping[str, Any], heads: int) -> int:
    if text.get("multi_query") is True and not text.get("new_decoder_architecture"):
        return 1
    return _count(text, "num_key_value_heads") or heads


def _dense_intermediate(text: Mapping[str, Any], hidden: int) -> int:
    return text.get("intermediate_size_mlp") or _count(text, "intermediate_size") or 4 * hidden


def _is_tied(config: Mapping[str, Any], text: Mapping[str, Any], kind: str) -> bool:
    default = kind.startswith(("gemma", "gpt2", "opt", "gpt_bigcode"))
    return bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", default)))


def _dtype(config: Mapping[str, Any], text: Mapping[str, Any]) -> str:
    found = (part.get(key) for part in (text, config) for key in ("dtype", "torch_dtype"))
    return str(next((value for value in found if value), "bfloat16")).removeprefix("torch.")


def _latent(text: Mapping[str, Any]) -> dict[str, Any]:
    rank = text.get("kv_lora_rank") or 0
    if not rank:
        return {}
    rope = text.get("qk_rope_head_dim") or 0
    return {
        "latent_dim": rank + rope,
        "q_latent_dim": text.get("q_lora_rank") or 0,
        "latent_rope_dim": rope,
        "latent_head_dims": (text.get("qk_nope_head_dim") or 128, text.get("v_head_dim") or 128),
    }


def _experts(text: Mapping[str, Any], layers: int) -> dict[str, Any]:
    experts = _count(text, "experts")
    if experts < 2:
        return {}
    expert = _count(text, "expert_intermediate")
    shared = text.get("shared_expert_intermediate_size") or (text.get("n_shared_experts") or 0) * expert
    if text.get("intermediate_size_mlp"):
        shared = expert
    return {
        "experts": experts,
        "experts_per_token": _count(text, "experts_per_token") or 1,
        "expert_intermediate": expert,
        "shared_intermediate": shared,
        "dense_layers": _dense_layers(text, layers),
    }


def _dense_layers(text: Mapping[str, Any], layers: int) -> int:
    named = text.get("mlp_only_layers") or ()
    first = int(text.get("first_k_dense_replace") or 0)
    every = text.get("decoder_sparse_step") or text.get("interleave_moe_layer_step") or text.get("moe_layer_freq") or 1
    if not isinstance(every, int):
        return layers - sum(1 for flag in every if flag)
    return layers - sum(1 for layer in range(first, layers) if layer not in named and (layer + 1) % every == 0)


def _rotary(text: Mapping[str, Any], kind: str, head_dim: int) -> int:
    if text.get("kv_lora_rank"):
        return int(text.get("qk_rope_head_dim") or 0)
    share = text.get("partial_rotary_factor") or text.get("rotary_pct") or ROTARY_SHARE.get(kind, 1.0)
    return int(head_dim * share)


def _layer_kinds(text: Mapping[str, Any]) -> Sequence[str]:
    kinds = text.get("layer_types") or text.get("layers_block_type") or ()
    return [str(kind) for kind in kinds] if isinstance(kinds, Sequence) and not isinstance(kinds, str) else []


def _windows(text: Mapping[str, Any], layers: int) -> tuple[int, int]:
    """Size of the window and how many layers have one."""
    size = text.get("sliding_window") or text.get("attention_chunk_size") or 0
    if not isinstance(size, int) or not size or text.get("use_sliding_window", True) is False:
        return 0, 0
    if kinds := _layer_kinds(text):
        count = sum(1 for kind in kinds if kind in WINDOW_KINDS)
    elif pattern := text.get("sliding_window_pattern"):
        count = layers - layers // int(pattern) if isinstance(pattern, int) else str(pattern).count("L")
    elif text.get("attention_chunk_size"):
        count = layers - layers // 4
    elif text.get("use_sliding_window"):
        count = layers - min(layers, text.get("max_window_layers") or 0)
    elif str(text.get("model_type", "")).startswith("gemma2"):
        count = layers // 2
    else:
        count = layers
    return (size, count) if count else (0, 0)


def _why_hybrid(
    text: Mapping[str, Any], config: Mapping[str, Any], window: int, window_layers: int, layers: int
) -> str:
    other = set(_layer_kinds(text)) - set(FULL_KINDS) - set(WINDOW_KINDS)
    if other or any(text.get(key) for key in RECURRENT_KEYS) or text.get("attn_type_list"):
        return "recurrent layers beside attention"
    if any(text.get(key) for key in INDEXED_KEYS):
        return "sparse attention with an index or a compressed copy of the cache"
    if text.get("num_kv_shared_layers"):
        return "layers that share their cache"
    if config.get("is_encoder_decoder"):
        return "a cache for the encoder's output beside the decoder's"
    if window_layers:
        return f"{window_layers} of {layers} layers keep a window of {window} tokens"
    return ""


def _attention_layers(text: Mapping[str, Any], layers: int, window_layers: int, hybrid: str) -> int:
    if not hybrid or window_layers:
        return layers - window_layers
    if kinds := _layer_kinds(text):
        return sum(1 for kind in kinds if kind in FULL_KINDS)
    for key in ("full_attention_interval", "attn_layer_period"):
        if isinstance(text.get(key), int) and text[key] > 0:
            return int(layers // text[key])
    pattern = text.get("hybrid_override_pattern")
    if isinstance(pattern, str):
        return pattern.count("*")
    return 0 if hybrid.startswith("recurrent") else layers - int(text.get("num_kv_shared_layers") or 0)


def _quantized(config: Mapping[str, Any], text: Mapping[str, Any]) -> dict[str, Any]:
    found = config.get("quantization_config") or text.get("quantization_config") or {}
    if not isinstance(found, Mapping) or not found:
        return {}
    method = str(found.get("quant_method") or found.get("quant_algo") or "unknown").lower()
    return {
        "quantization": method,
        "weight_bits": _bits(found, method),
        "experts_only_quantized": method in EXPERTS_ONLY,
    }


def _bits(found: Mapping[str, Any], method: str) -> int:
    for key in ("bits", "w_bit", "weight_bits"):
        if isinstance(found.get(key), int):
            return int(found[key])
    groups = found.get("config_groups")
    if isinstance(groups, Mapping):
        for group in groups.values():
            weights = group.get("weights") if isinstance(group, Mapping) else None
            if isinstance(weights, Mapping) and isinstance(weights.get("num_bits"), int):
                return int(weights["num_bits"])
    if method == "bitsandbytes" and found.get("load_in_8bit"):
        return 8
    if "FP4" in str(found.get("quant_algo", "")).upper():
        return 4
    return METHOD_BITS.get(method, 8)


def _tower(vision: Any) -> int:
    """Parameters of a vision transformer of that width and depth: attention 4 h², feed-forward 2 h × intermediate."""
    if not isinstance(vision, Mapping):
        return 0
    sizes = {"hidden": ("hidden_size", "width", "embed_dim"), "depth": ("num_hidden_layers", "depth", "layers")}
    found = {
        name: next((vision[key] for key in keys if isinstance(vision.get(key), int)), 0) for name, keys in sizes.items()
    }
    if isinstance(vision.get("embed_dim"), int) and vision.get("depth"):
        found["hidden"] = vision["embed_dim"]
    wide = vision.get("intermediate_size") or 4 * found["hidden"]
    return int(found["depth"] * (4 * found["hidden"] ** 2 + 2 * found["hidden"] * wide))
