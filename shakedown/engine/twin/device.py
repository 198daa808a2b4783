"""The device as arithmetic: how long a step takes, and what fits.

Step time is the roofline of the data sheet: a step cannot be faster than its arithmetic at peak FLOP/s nor than
reading the weights and the batch's keys and values at peak bandwidth. Efficiency factors and the constant per step
make it a real card's; `tests/engine/test_device.py` states the error against published measurements.
"""

from dataclasses import dataclass
from functools import cached_property

from shakedown.engine.devices import GIB, DeviceProfile
from shakedown.engine.shape import ModelShape

COMPUTE_EFFICIENCY = 0.55
"""Share of peak BF16 that prefill reaches; published MFU of vLLM prefill on A100 is 0.5 to 0.6."""
BANDWIDTH_EFFICIENCY = 0.80
"""Share of peak bandwidth that decode reaches; 0.77 is published for vLLM 0.23 on an A100, constant included."""
STEP_OVERHEAD_S = 0.0008
"""Launches and sampling."""
ALL_REDUCE_S = 0.000015
"""One all-reduce of a decode batch over NVLink; two per layer when the model is split over cards."""
ACTIVATION_GIB_AT_8192 = 1.26
"""Activation peak measured for Llama 3 8B with 8192 batched tokens; proportional to the tokens and the hidden size."""
MEASURED_HIDDEN = 4096
NON_TORCH_GIB = 0.25
"""CUDA context and libraries outside the allocator, on one card."""
NON_TORCH_SPLIT_GIB = 2.1
"""The same when the model is split over cards: NCCL's buffers, 2.07 to 2.13 measured for 2 and 4 cards."""
GRAPHS_GIB = 0.3
"""CUDA graphs, counted in the budget since vLLM 0.21."""
SAMPLER_COPIES = 6
"""Buffers of max_num_seqs × vocabulary floats alive at once when the sampler warms up."""


def activation_gib(batched_tokens: int, hidden: int) -> float:
    """Peak of one profiling step of that many tokens."""
    return ACTIVATION_GIB_AT_8192 * batched_tokens / 8192 * hidden / MEASURED_HIDDEN


def non_torch_gib(cards: int) -> float:
    """On each of the cards that a layer is split over."""
    return NON_TORCH_GIB if cards == 1 else NON_TORCH_SPLIT_GIB


class DeviceOutOfMemory(Exception):
    """The modelled memory is exhausted; the executor raises torch's own error from it."""


@dataclass(frozen=True)
class DeviceModel:
    """One model on one device, or split over several."""

    profile: DeviceProfile
    shape: ModelShape
    dtype_bytes: int
    kv_dtype_bytes: int
    cards: int = 1

    @cached_property
    def weights_bytes(self) -> int:
        """On each card."""
        return int(self.shape.weights_bytes(self.dtype_bytes, self.cards))

    @cached_property
    def kv_bytes_per_token(self) -> int:
        """On each card."""
        return int(self.shape.kv_bytes_per_token(self.kv_dtype_bytes, self.cards))

    @cached_property
    def parameters(self) -> int:
        return self.shape.parameters

    def step_s(self, tokens: int, context_tokens: int) -> float:
        """Seconds of one step over `tokens` scheduled tokens that attend to `context_tokens` cached ones."""
        flops_per_s = self.profile.flops_bf16_per_s * COMPUTE_EFFICIENCY * self.cards
        arithmetic_s = 2 * self.parameters * tokens / flops_per_s
        read_bytes = self.weights_bytes + context_tokens * self.kv_bytes_per_token
        reading_s = read_bytes / (self.profile.bandwidth_bytes_per_s * BANDWIDTH_EFFICIENCY)
        exchange_s = 2 * self.shape.layers * ALL_REDUCE_S if self.cards > 1 else 0.0
        return max(arithmetic_s, reading_s) + exchange_s + STEP_OVERHEAD_S

    def requested_bytes(self, utilization: float, other_tenant_bytes: int) -> int:
        """What the engine may take of the total. Raises ValueError in vLLM's words when another tenant has it."""
        total, wanted = self.profile.total_bytes, int(self.profile.total_bytes * utilization)
        free = total - other_tenant_bytes
        if free < wanted:
            raise ValueError(
                f"Free memory on device cuda:0 ({free / GIB:.2f}/{total / GIB:.2f} GiB) on startup is less than "
                f"desired GPU memory utilization ({utilization}, {wanted / GIB:.2f} GiB). Decrease GPU memory "
                "utilization or reduce GPU memory used by other processes."
            )
        return wanted

    def load_weights(self, other_tenant_bytes: int) -> None:
        """Raises DeviceOutOfMemory when the weights alone do not fit; utilisation has no say in that."""
        free = self.profile.total_bytes - other_tenant_bytes
        if self.weights_bytes > free:
            raise DeviceOutOfMemory(self._oom_text(self.weights_bytes, free))

    def kv_pool_bytes(self, requested_bytes: int, batched_tokens: int, graphs: bool) -> int:
        """What is left for keys and values after a profiling run; may be negative."""
        taken_gib = activation_gib(batched_tokens, self.shape.hidden) + non_torch_gib(self.cards)
        return int(requested_bytes - self.weights_bytes - (taken_gib + (GRAPHS_GIB if graphs else 0)) * GIB)

    def warm_up_sampler(self, unbudgeted_bytes: int, max_num_seqs: int, vocab: int) -> None:
        """Raises DeviceOutOfMemory when what utilisation leaves free does not hold the sampler's buffers."""
        needed = max_num_seqs * vocab * 4 * SAMPLER_COPIES
        if needed > unbudgeted_bytes:
            raise DeviceOutOfMemory(self._oom_text(needed, unbudgeted_bytes))

    def hold(self, overrun_bytes: int, unbudgeted_bytes: int) -> None:
        """A step that needs more than its profile said takes it from outside the budget.

        Raises DeviceOutOfMemory when there is not that much.
        """
        if overrun_bytes > unbudgeted_bytes:
            raise DeviceOutOfMemory(self._oom_text(overrun_bytes, unbudgeted_bytes))

    def _oom_text(self, wanted_bytes: int, free_bytes: int) -> str:
        return (
            f"CUDA out of memory. Tried to allocate {wanted_bytes / GIB:.2f} GiB. GPU 0 has a total capacity of "
            f"{self.profile.total_bytes / GIB:.2f} GiB of which {max(0, free_bytes) / GIB:.2f} GiB is free."
        )
