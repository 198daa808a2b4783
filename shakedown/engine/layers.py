"""What each layer of a config does: attend to everything, to a window, or keep a state; and where experts are."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from shakedown.engine.config_text import Text
from shakedown.engine.shape import DENSE, EXPERTS, FULL, NOTHING, RECURRENT, WINDOW, Layer

PURE_RECURRENT = ("mamba", "mamba2", "falcon_mamba", "rwkv")
WINDOW_KINDS = ("sliding_attention", "chunked_attention", "local_attention", "sliding", "local")
RECURRENT_WORDS = re.compile("linear|mamba|recurrent|conv|rwkv|ssm|delta|kda")
"""In the name of a layer that keeps a state; any other attends to every token."""
RECURRENT_KEYS = (
    *("mamba_d_state", "mamba_num_heads", "hybrid_override_pattern", "full_attention_interval", "ssm_cfg"),
    *("ssm_state_size", "state_size", "linear_num_key_heads", "linear_attn_config", "attn_layer_period"),
    *("block_types", "attn_type_list"),
)
COMPRESSED_KEYS = ("index_head_dim", "index_topk", "compress_ratios", "compress_ratio")


def layout_of(text: Text, layers: int) -> tuple[tuple[Layer, ...], int]:
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


def why_not_linear(config: Mapping[str, Any], text: Text, layout: Sequence[Layer], window: int) -> tuple[str, bool]:
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
