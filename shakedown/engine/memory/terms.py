"""The terms of the budget: given ones as they are, the others from arithmetic or from measured profiles, with bounds.

Sources of the profiles: memory lines that engines printed in public reports. Activation peaks differ by version and
architecture by a factor of two and more, so their bounds are wide on purpose.
"""

from shakedown.engine.devices import GIB
from shakedown.engine.memory.demand import Demand
from shakedown.engine.memory.interval import Amount
from shakedown.engine.twin.device import ACTIVATION_GIB_AT_8192, GRAPHS_GIB, NON_TORCH_GIB, NON_TORCH_SPLIT_GIB
from shakedown.errors import UsageError

LLAMA_8B_HIDDEN = 4096
V0_DEFAULT_BATCHED_TOKENS = 2048
V1_DEFAULT_BATCHED_TOKENS = 2048
ACTIVATION_BEFORE_017 = 2.5
"""5.64 GiB before 0.17 and 2.23 GiB from it on, same model, same card."""


def activation(demand: Demand) -> Amount:
    """Peak of one profiling step."""
    if demand.activation_gib is not None:
        return Amount.printed(demand.activation_gib)
    hidden = demand.shape.hidden if demand.shape else LLAMA_8B_HIDDEN
    tokens = batched_tokens(demand)
    gib = ACTIVATION_GIB_AT_8192 * tokens / 8192 * hidden / LLAMA_8B_HIDDEN / demand.pipeline_parallel
    if (0, 8) <= demand.version < (0, 17):
        return Amount(
            gib, gib * 0.5, gib * ACTIVATION_BEFORE_017 * 2, "profile of versions before 0.17, very uncertain"
        )
    return Amount(gib, gib * 0.5, gib * 2.5, f"profile at {tokens} batched tokens, hidden size {hidden}")


def batched_tokens(demand: Demand) -> int:
    """Tokens of the profiling step: V0 profiles the model length, V1 what a step may hold."""
    if demand.max_num_batched_tokens is not None:
        return demand.max_num_batched_tokens
    if demand.version < (0, 8):
        return max(demand.max_model_len or 0, V0_DEFAULT_BATCHED_TOKENS)
    return V1_DEFAULT_BATCHED_TOKENS


def non_torch(demand: Demand) -> Amount:
    """CUDA context, libraries, and NCCL's buffers once heads are split over cards."""
    if demand.non_torch_gib is not None:
        return Amount.printed(demand.non_torch_gib)
    if demand.tensor_parallel > 1:
        return Amount(NON_TORCH_SPLIT_GIB, 1.8, 2.4, "NCCL over several cards, 2.07 to 2.13 measured")
    return Amount(NON_TORCH_GIB, 0.03, 0.6, "CUDA context, 0.03 to 0.35 measured")


def graphs(demand: Demand) -> Amount:
    """CUDA graphs: inside the budget since 0.21, outside before."""
    if demand.graphs_gib is not None:
        return Amount.printed(demand.graphs_gib)
    if demand.enforce_eager or demand.version < (0, 21) or demand.kv_gib is not None:
        return Amount.exact(0.0, "not in the budget")
    return Amount(GRAPHS_GIB, 0.0, 1.0, "estimate of CUDA graphs, counted since 0.21")


def weights(demand: Demand) -> Amount:
    """On the card that holds most. Raises UsageError without a config or a given figure."""
    if demand.weights_gib is not None:
        return Amount.printed(demand.weights_gib)
    if demand.shape is None:
        raise UsageError("give --weights-gib, or --config FILE or --model NAME to compute the weights from")
    cards = demand.tensor_parallel * demand.pipeline_parallel
    gib = demand.shape.weights_bytes(demand.dtype_bytes) / GIB / cards
    uncertain = 0.3 if demand.shape.vision_parameters else 0.06 if demand.shape.weight_bits else 0.003
    if demand.pipeline_parallel > 1:
        return Amount(gib, gib * (1 - uncertain), gib * (1.15 + uncertain), "parameters × bytes; stages are uneven")
    return Amount.estimated(gib, uncertain, f"{demand.shape.parameters / 1e9:.2f} G parameters")
