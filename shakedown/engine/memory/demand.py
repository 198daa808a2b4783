"""What is asked of the calculator, validated; every term may be given, and a given one is never estimated."""

import math
from dataclasses import dataclass, fields

from shakedown.engine.shape import ModelShape
from shakedown.errors import UsageError

DTYPE_BYTES = {"float32": 4, "float": 4, "bfloat16": 2, "float16": 2, "half": 2}
KV_DTYPE_BYTES = {"fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "fp8_inc": 1, "int8": 1, **DTYPE_BYTES}
FLAGS = {
    "tensor_parallel": "--tensor-parallel-size",
    "pipeline_parallel": "--pipeline-parallel-size",
    "utilization": "--gpu-memory-utilization",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """One configuration. None means: not given, so estimate it or take the engine's default."""

    shape: ModelShape | None = None
    total_gib: float | None = None
    """As the driver reports it."""
    free_gib: float | None = None
    """Free at start, when somebody else is on the card."""
    weights_gib: float | None = None
    activation_gib: float | None = None
    non_torch_gib: float | None = None
    graphs_gib: float | None = None
    kv_gib: float | None = None
    layers: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    dtype: str = "auto"
    kv_cache_dtype: str = "auto"
    block_size: int = 16
    utilization: float | None = None
    max_model_len: int | None = None
    max_num_seqs: int = 256
    max_num_batched_tokens: int | None = None
    enforce_eager: bool = False
    version: tuple[int, int] = (0, 32)

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                continue
            flag = FLAGS.get(field.name, "--" + field.name.replace("_", "-"))
            if not math.isfinite(value):
                raise UsageError(f"{flag} must be a number, not {value}")
            if value < 0 or (value == 0 and isinstance(value, int)):
                raise UsageError(f"{flag} must be positive, not {value:g}")
        if self.utilization is not None and not 0 < self.utilization <= 1:
            raise UsageError(f"--gpu-memory-utilization must be above 0 and at most 1, not {self.utilization:g}")
        for flag, name, known in (
            ("--dtype", self.dtype, DTYPE_BYTES),
            ("--kv-cache-dtype", self.kv_cache_dtype, KV_DTYPE_BYTES),
        ):
            if name not in ("auto", *known):
                raise UsageError(f"{flag} {name!r} is unknown; known: auto, {', '.join(known)}")

    @property
    def used_utilization(self) -> float:
        """Given, or the engine version's own default: 0.90, and 0.92 from 0.20 on."""
        return self.utilization if self.utilization is not None else (0.92 if self.version >= (0, 20) else 0.90)

    @property
    def dtype_bytes(self) -> int:
        name = self.dtype if self.dtype != "auto" else (self.shape.dtype if self.shape else "bfloat16")
        return DTYPE_BYTES.get(name.removeprefix("torch."), 2)

    @property
    def kv_dtype_bytes(self) -> int:
        return self.dtype_bytes if self.kv_cache_dtype == "auto" else KV_DTYPE_BYTES[self.kv_cache_dtype]

    @property
    def bytes_per_token(self) -> float:
        """On each card. Raises UsageError when neither a config nor the three numbers are given."""
        layers = self.layers or (self.shape.layers if self.shape else None)
        kv_heads = self.kv_heads or (self.shape.kv_heads if self.shape else None)
        head_dim = self.head_dim or (self.shape.head_dim if self.shape else None)
        if layers is None or kv_heads is None or head_dim is None:
            raise UsageError("give --config FILE or --model NAME, or all of --layers, --kv-heads and --head-dim")
        if self.shape and self.shape.latent_dim and self.kv_heads is None and self.head_dim is None:
            return self.shape.kv_bytes_per_token(self.kv_dtype_bytes, pp=self.pipeline_parallel)
        heads = max(1, kv_heads // self.tensor_parallel)
        return 2 * -(-layers // self.pipeline_parallel) * heads * head_dim * self.kv_dtype_bytes

    @property
    def is_linear(self) -> bool:
        return self.shape is None or self.shape.linear
