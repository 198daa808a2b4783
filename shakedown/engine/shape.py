"""A model's size from its Hugging Face config. Standard library only: the twin reads it in the engine's environment."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ModelShape:
    """What memory and step time depend on, of a dense decoder."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    tied_embeddings: bool
    attention_bias: bool

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "ModelShape":
        """Read a config.json."""
        heads = config["num_attention_heads"]
        return cls(
            layers=config["num_hidden_layers"],
            hidden=config["hidden_size"],
            heads=heads,
            kv_heads=config.get("num_key_value_heads", heads),
            head_dim=config.get("head_dim") or config["hidden_size"] // heads,
            intermediate=config["intermediate_size"],
            vocab=config["vocab_size"],
            tied_embeddings=config.get("tie_word_embeddings", False),
            attention_bias=config.get("attention_bias", config.get("model_type") == "qwen2"),
        )

    @property
    def parameters(self) -> int:
        """Weights of the whole model, norms included."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = self.hidden * (q + 2 * kv) + q * self.hidden + (q + 2 * kv if self.attention_bias else 0)
        layer = attention + 3 * self.hidden * self.intermediate + 2 * self.hidden
        embeddings = self.vocab * self.hidden * (1 if self.tied_embeddings else 2)
        return self.layers * layer + embeddings + self.hidden
