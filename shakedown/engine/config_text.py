"""The decoder's part of a Hugging Face config.json, whatever words it uses. Standard library only.

Configs differ in their words, not in what they say: `SPELLINGS` lists the names each quantity goes by.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
LARGEST = 10**10
"""No size in any config comes near it; larger ones are slips."""


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
                raise ConfigError(f"{key} must be a whole number of 0 or more, not {shown(value)}")
            return value
        return default

    def needed(self, name: str) -> int:
        """Raises ConfigError for 0 too."""
        value = self.count(name)
        if value < 1:
            key = next((key for key in SPELLINGS.get(name, (name,)) if self.keys.get(key) is not None), None)
            said = f"{key} must be a positive whole number, not {shown(self.keys[key])}" if key else f"lacks {name}"
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


def text_of(config: Mapping[str, Any]) -> Text:
    """The innermost decoder, sizes of its parts beside its own; raises ConfigError when a part is not an object."""
    part: Mapping[str, Any] = config
    nested = False
    for _ in range(4):
        key = next((key for key in TEXT_PARTS if part.get(key) is not None), None)
        if key is None:
            break
        if not isinstance(part[key], Mapping):
            raise ConfigError(f"{key} must be an object, not {shown(part[key])}")
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


def spelled(text: Text, name: str) -> bool:
    return any(text.keys.get(key) is not None for key in SPELLINGS[name])


def shown(value: object) -> str:
    return repr(value)[:40]
