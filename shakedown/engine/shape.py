"""A model's size from its Hugging Face config. Standard library only: the twin reads it in the engine's environment."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

NEEDED = ("num_hidden_layers", "hidden_size", "num_attention_heads")
QUANTIZED_BYTES = {"fp8": 1.0, "fbgemm_fp8": 1.0, "compressed-tensors": 1.0, "modelopt": 1.0, "bitsandbytes": 0.5}
"""Bytes of a quantised weight; 4-bit formats carry scales beside it and are told apart by their bits."""
SCALES_PER_WEIGHT_BYTES = 2.5 / 128
"""A 16-bit scale and a 4-bit zero point for each group of 128 weights."""


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
    experts: int = 0
    shared_experts: int = 0
    expert_intermediate: int = 0
    dense_layers: int = 0
    """Layers before the experts begin."""
    linear: bool = True
    """False for sliding-window, recurrent and hybrid layers: a token has no fixed price there."""
    quantization: str = ""
    weight_bits: int = 0
    vision_parameters: int = 0
    """Bounded by the tower's width and depth; 0 without a tower."""

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "ModelShape":
        """Read a config.json. Raises ConfigError naming the keys that are missing."""
        text: Mapping[str, Any] = config.get("text_config") or config
        missing = [key for key in NEEDED if not isinstance(text.get(key), int)]
        if missing:
            raise ConfigError(f"the config lacks {', '.join(missing)}")
        heads, hidden = text["num_attention_heads"], text["hidden_size"]
        quantization = config.get("quantization_config") or text.get("quantization_config") or {}
        experts = _first(text, "num_local_experts", "n_routed_experts", "num_experts", default=0)
        return cls(
            layers=text["num_hidden_layers"],
            hidden=hidden,
            heads=heads,
            kv_heads=text.get("num_key_value_heads") or heads,
            head_dim=text.get("head_dim") or hidden // heads,
            intermediate=text.get("intermediate_size") or 4 * hidden,
            vocab=text.get("vocab_size") or 0,
            tied_embeddings=bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", False))),
            attention_bias=bool(text.get("attention_bias", text.get("model_type") == "qwen2")),
            dtype=str(_first(text, "dtype", "torch_dtype", default=config.get("torch_dtype") or "bfloat16")),
            max_positions=text.get("max_position_embeddings") or 0,
            latent_dim=(text.get("kv_lora_rank") or 0) and text["kv_lora_rank"] + (text.get("qk_rope_head_dim") or 0),
            q_latent_dim=text.get("q_lora_rank") or 0,
            experts=experts,
            shared_experts=text.get("n_shared_experts") or 0,
            expert_intermediate=text.get("moe_intermediate_size") or text.get("intermediate_size") or 0,
            dense_layers=text.get("first_k_dense_replace") or 0,
            linear=not _is_hybrid(text),
            quantization=str(quantization.get("quant_method", "")),
            weight_bits=_bits(quantization),
            vision_parameters=_tower(config.get("vision_config")),
        )

    @property
    def parameters(self) -> int:
        """Weights of the whole model, norms included."""
        return self.matrix_parameters + self.embedding_parameters + (2 * self.layers + 1) * self.hidden

    @property
    def embedding_parameters(self) -> int:
        return self.vocab * self.hidden * (1 if self.tied_embeddings else 2) + self.vision_parameters

    @property
    def matrix_parameters(self) -> int:
        """Attention and feed-forward matrices: what quantisation shrinks."""
        dense = 3 * self.hidden * self.intermediate
        if not self.experts:
            return self.layers * (self._attention + dense)
        expert = 3 * self.hidden * self.expert_intermediate
        routed = (self.experts + self.shared_experts) * expert + self.hidden * self.experts
        return self.layers * self._attention + self.dense_layers * dense + (self.layers - self.dense_layers) * routed

    @property
    def _attention(self) -> int:
        q = self.heads * self.head_dim
        if self.latent_dim:
            up = self.latent_dim * 2 * q
            query = self.hidden * self.q_latent_dim + self.q_latent_dim * q if self.q_latent_dim else self.hidden * q
            return query + self.hidden * self.latent_dim + up + q * self.hidden
        kv = self.kv_heads * self.head_dim
        return self.hidden * (q + 2 * kv) + q * self.hidden + (q + 2 * kv if self.attention_bias else 0)

    def weights_bytes(self, dtype_bytes: float) -> float:
        """Bytes of all weights, the matrices in their quantised width where the config says so."""
        width = dtype_bytes
        if self.weight_bits:
            width = self.weight_bits / 8 + (SCALES_PER_WEIGHT_BYTES if self.weight_bits < 8 else 0)
        rest = self.parameters - self.matrix_parameters
        return self.matrix_parameters * width + rest * dtype_bytes

    def kv_bytes_per_token(self, kv_dtype_bytes: float, tp: int = 1, pp: int = 1) -> float:
        """Bytes of keys and values of a token on each card of the fullest stage.

        Heads fewer than cards are replicated; a latent vector is not split at all; stages split layers.
        """
        layers = -(-self.layers // pp)
        if self.latent_dim:
            return layers * self.latent_dim * kv_dtype_bytes
        return 2 * layers * max(1, self.kv_heads // tp) * self.head_dim * kv_dtype_bytes


def _first(config: Mapping[str, Any], *keys: str, default: Any) -> Any:
    return next((config[key] for key in keys if config.get(key) is not None), default)


def _is_hybrid(text: Mapping[str, Any]) -> bool:
    kinds = set(text.get("layer_types") or ())
    windowed = bool(text.get("sliding_window")) and text.get("use_sliding_window", True) is not False
    recurrent = any(
        text.get(key) for key in ("mamba_d_state", "hybrid_override_pattern", "full_attention_interval", "ssm_cfg")
    )
    return recurrent or (bool(kinds - {"full_attention"}) if kinds else windowed)


def _bits(quantization: Mapping[str, Any]) -> int:
    method = str(quantization.get("quant_method", "")).lower()
    if not method:
        return 0
    if isinstance(quantization.get("bits"), int):
        return int(quantization["bits"])
    if method in ("awq", "gptq", "mxfp4") or quantization.get("load_in_4bit"):
        return 4
    return round(QUANTIZED_BYTES.get(method, 0.0) * 8)


def _tower(vision: Mapping[str, Any] | None) -> int:
    """Parameters of a vision transformer of that width and depth: attention 4 h², feed-forward 2 h × intermediate."""
    if not vision:
        return 0
    hidden = vision.get("hidden_size") or vision.get("width") or 0
    depth = _first(vision, "num_hidden_layers", "depth", "layers", default=0)
    wide = vision.get("intermediate_size") or 4 * hidden
    return int(depth * (4 * hidden * hidden + 2 * hidden * wide))
