"""What is asked of the calculator, validated; every term may be given, and a given one is never estimated."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields

from shakedown.engine.shape import ModelShape, stage_layers
from shakedown.errors import UsageError

DTYPE_BYTES = {"float32": 4, "float": 4, "bfloat16": 2, "float16": 2, "half": 2}
KV_DTYPE_BYTES = {"fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "fp8_inc": 1, "int8": 1, **DTYPE_BYTES}
FLAGS = {
    "tensor_parallel": "--tensor-parallel-size",
    "pipeline_parallel": "--pipeline-parallel-size",
    "data_parallel": "--data-parallel-size",
    "utilization": "--gpu-memory-utilization",
    "blocks": "--num-gpu-blocks-override",
    "swap_gib": "--swap-space",
}
AUTO_LENGTH = -1
"""`--max-model-len -1`: the longest that fits."""
BLOCK_SIZE_STEP = 8
"""No attention kernel takes blocks of any other size but 1."""
LARGEST = 10**12
V1 = (0, 8)
NEW_DEFAULT_UTILIZATION = (0, 20)
LARGE_CARD_GIB, LARGEST_CARD_GIB = 70, 160
"""From that much on vLLM takes larger steps and more sequences by default, but not on an A100."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """One configuration. None means: not given, so estimate it or take the engine's default."""

    shape: ModelShape | None = None
    card: str = ""
    """Its name, on which defaults of vLLM depend."""
    total_gib: float | None = None
    """As the driver reports it."""
    free_gib: float | None = None
    """Free at start, when somebody else is on the card."""
    weights_gib: float | None = None
    activation_gib: float | None = None
    non_torch_gib: float | None = None
    graphs_gib: float | None = None
    kv_gib: float | None = None
    need_gib: float | None = None
    """What one sequence of the full length needs, as the engine says it."""
    blocks: int | None = None
    swap_gib: float | None = None
    """Host memory for swapped-out blocks, which engines before 0.8 print as CPU blocks."""
    layers: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    latent_dim: int | None = None
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    data_parallel: int = 1
    expert_parallel: bool = False
    dtype: str = "auto"
    kv_cache_dtype: str = "auto"
    block_size: int = 16
    utilization: float | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    enforce_eager: bool = False
    version: tuple[int, int] = (0, 32)

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int | float) and not isinstance(value, bool):
                _check_number(field.name, value)
        if self.utilization is not None and not 0 < self.utilization <= 1:
            meant = f"; as a share that is {self.utilization / 100:g}" if 10 <= self.utilization <= 100 else ""
            raise UsageError(f"--gpu-memory-utilization must be above 0 and at most 1, not {self.utilization:g}{meant}")
        if self.block_size != 1 and self.block_size % BLOCK_SIZE_STEP:
            raise UsageError(f"--block-size must be 1 or a multiple of {BLOCK_SIZE_STEP}, not {self.block_size}")
        _check_name("--dtype", self.dtype, DTYPE_BYTES)
        _check_name("--kv-cache-dtype", self.kv_cache_dtype, KV_DTYPE_BYTES)

    @property
    def used_utilization(self) -> float:
        """Given, or the engine version's own default: 0.90, and 0.92 from 0.20 on."""
        if self.utilization is not None:
            return self.utilization
        return 0.92 if self.version >= NEW_DEFAULT_UTILIZATION else 0.90

    @property
    def dtype_bytes(self) -> int:
        """Of a weight that is not quantised. Engines narrow a float32 checkpoint unless they are told not to."""
        return 2 if self.dtype == "auto" else DTYPE_BYTES[self.dtype]

    @property
    def kv_dtype_bytes(self) -> int:
        name = self.kv_cache_dtype
        if name == "auto" and self.shape is not None:
            name = self.shape.kv_dtype
        return self.dtype_bytes if name == "auto" else KV_DTYPE_BYTES[name]

    @property
    def expert_parallel_size(self) -> int:
        """0 when experts are split like all other matrices."""
        return self.tensor_parallel * self.data_parallel if self.expert_parallel else 0

    @property
    def is_priced(self) -> bool:
        """Whether a token's bytes can be told."""
        if self.shape is not None or (self.layers is not None and self.latent_dim is not None):
            return True
        return None not in (self.layers, self.kv_heads, self.head_dim)

    @property
    def bytes_per_token(self) -> float:
        """On each card of the fullest stage. Raises UsageError when neither a config nor the numbers are given."""
        return self.stage_bytes_per_token(max(self.stages))

    @property
    def stages(self) -> tuple[int, ...]:
        """Layers of each pipeline stage."""
        layers = self.layers or (self.shape.layers if self.shape else None)
        if layers is None or not self.is_priced:
            raise UsageError(
                "give --config FILE or --model NAME, or all of --layers, --kv-heads and --head-dim "
                "(with latent attention --layers and --latent-dim)"
            )
        return tuple(stage_layers(layers, self.pipeline_parallel))

    def stage_bytes_per_token(self, layers: int) -> float:
        """On each card of a stage with that many layers."""
        by_hand = self.kv_heads is not None or self.head_dim is not None
        latent = self.latent_dim or (self.shape.latent_dim if self.shape and not by_hand else 0)
        if latent:
            return layers * latent * self.kv_dtype_bytes
        kv_heads = self.kv_heads or (self.shape.kv_heads if self.shape else 1)
        head_dim = self.head_dim or (self.shape.head_dim if self.shape else 1)
        return 2 * layers * max(1, kv_heads // self.tensor_parallel) * head_dim * self.kv_dtype_bytes

    @property
    def is_large_card(self) -> bool:
        return (self.total_gib or 0) >= LARGE_CARD_GIB and "a100" not in self.card.lower()

    @property
    def sequences(self) -> int:
        """`--max-num-seqs`, or the engine's default for the card."""
        if self.max_num_seqs is not None:
            return self.max_num_seqs
        return 1024 if self.version >= V1 and self.is_large_card else 256

    @property
    def is_linear(self) -> bool:
        """Whether every token costs the same in sequences of the length that is asked for."""
        length = self.max_model_len if self.max_model_len != AUTO_LENGTH else None
        return self.shape is None or self.shape.is_linear_up_to(length)


def _check_number(name: str, value: float) -> None:
    flag = FLAGS.get(name, "--" + name.replace("_", "-"))
    if not math.isfinite(value):
        raise UsageError(f"{flag} must be a number, not {value}")
    if name == "max_model_len" and value == AUTO_LENGTH:
        return
    may_be_0 = isinstance(value, float) and name != "total_gib"
    if name != "kv_gib" and (value < 0 or (value == 0 and not may_be_0)):
        raise UsageError(f"{flag} must be positive, not {value:g}")
    if abs(value) > LARGEST:
        raise UsageError(f"{flag} {value:g} is more than anything has")


def _check_name(flag: str, name: str, known: Mapping[str, int]) -> None:
    if name not in ("auto", *known):
        raise UsageError(f"{flag} {name[:40]!r} is unknown; known: auto, {', '.join(known)}")
