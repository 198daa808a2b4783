"""The terms of the budget: given ones as they are, the others from arithmetic or from measured profiles, with bounds.

Sources of the profiles: memory lines that engines printed in public reports. Activation peaks differ by version and
architecture by a factor of two and more, so their bounds are wide on purpose.
"""

from shakedown.engine.devices import GIB
from shakedown.engine.memory.demand import AUTO_LENGTH, LARGEST_CARD_GIB, V1, Demand
from shakedown.engine.memory.interval import Amount
from shakedown.engine.twin.device import GRAPHS_GIB, MEASURED_HIDDEN, activation_gib, non_torch_gib
from shakedown.errors import UsageError

STEP_TOKENS = 2048
"""What a step holds by default, on all but large cards."""
LARGE_CARD_STEP_TOKENS, LARGEST_CARD_STEP_TOKENS = 8192, 16384
CHUNKED_FROM, CHUNK_BEFORE_07 = 32768, 512
"""Engines before 0.8 profile a whole sequence, unless it is longer than that: then they chunk it."""
ACTIVATION_BEFORE_017 = 2.5
"""5.64 GiB before 0.17 and 2.23 GiB from it on, same model, same card."""
SHARE_OF_A_STAGE = 0.6
"""1.1 and 1.05 GiB with two and four stages where one has 1.89 (the planner's accuracy report, vLLM 0.19)."""
LOGITS_COPIES = 4
"""1.89 and 2.23 GiB of activation for vocabularies of 128,256 and 151,936 and 1,024 sequences: 3.9 float tables."""
GRAPHS_IN_BUDGET = (0, 21)
EXACT, QUANTIZED, RECURRENT, GUESSED = 0.003, 0.01, 0.06, 0.6
TOWER_LOW, TOWER_HIGH = 0.8, 1.8
"""Mergers, gates and projectors beside the tower's own width × depth."""


def activation(demand: Demand) -> Amount:
    """Peak of one profiling step."""
    if demand.activation_gib is not None:
        return Amount.printed(demand.activation_gib)
    hidden = demand.shape.hidden if demand.shape else MEASURED_HIDDEN
    tokens = batched_tokens(demand)
    gib = activation_gib(tokens, hidden) * (SHARE_OF_A_STAGE if demand.pipeline_parallel > 1 else 1)
    vocab = demand.shape.vocab if demand.shape else 0
    high = max(gib * 2.5, LOGITS_COPIES * 4 * demand.sequences * vocab / GIB)
    if V1 <= demand.version < (0, 17):
        high = max(high, gib * ACTIVATION_BEFORE_017 * 2)
        return Amount(gib, gib * 0.5, high, "profile of versions before 0.17, very uncertain")
    return Amount(gib, gib * 0.5, high, f"profile at {tokens} batched tokens, hidden size {hidden}")


def batched_tokens(demand: Demand) -> int:
    """Tokens of the profiling step: V0 profiles the model length, V1 what a step may hold (`get_batch_defaults`)."""
    if demand.max_num_batched_tokens is not None:
        return demand.max_num_batched_tokens
    if demand.version < V1:
        length = demand.max_model_len if demand.max_model_len not in (None, AUTO_LENGTH) else STEP_TOKENS
        assert length is not None
        if length > CHUNKED_FROM:
            return CHUNK_BEFORE_07 if demand.version < (0, 7) else STEP_TOKENS
        return max(length, STEP_TOKENS)
    if not demand.is_large_card:
        return STEP_TOKENS
    return LARGEST_CARD_STEP_TOKENS if (demand.total_gib or 0) >= LARGEST_CARD_GIB else LARGE_CARD_STEP_TOKENS


def non_torch(demand: Demand) -> Amount:
    """CUDA context, libraries, and NCCL's buffers once heads are split over cards."""
    if demand.non_torch_gib is not None:
        return Amount.printed(demand.non_torch_gib)
    gib = non_torch_gib(demand.tensor_parallel)
    if demand.tensor_parallel > 1:
        return Amount(gib, 0.3, 2.4, "NCCL over several cards, 2.07 to 2.13 measured on an H100, 0.3 on an L40S")
    return Amount(gib, 0.01, 1.8, "CUDA context, 0.03 to 0.35 measured, 1.79 by an old release")


def graphs(demand: Demand) -> Amount:
    """CUDA graphs: inside the budget since 0.21, outside before. Who gives all other terms has given all there is."""
    if demand.graphs_gib is not None:
        return Amount.printed(demand.graphs_gib)
    if None not in (demand.weights_gib, demand.activation_gib, demand.non_torch_gib):
        return Amount.exact(0.0, "all other terms are given")
    if demand.enforce_eager or demand.version < GRAPHS_IN_BUDGET:
        return Amount.exact(0.0, "not in the budget")
    return Amount(GRAPHS_GIB, 0.0, 1.0, "estimate of CUDA graphs, counted since 0.21")


def weights(demand: Demand) -> tuple[Amount, ...]:
    """On each card, of each stage. Raises UsageError without a config or a given figure."""
    if demand.weights_gib is not None:
        return (Amount.printed(demand.weights_gib),) * demand.pipeline_parallel
    shape = demand.shape
    if shape is None:
        raise UsageError("give --weights-gib, or --config FILE or --model NAME to compute the weights from")
    cards, stages = demand.tensor_parallel, demand.pipeline_parallel
    held = shape.stage_weights_bytes(demand.dtype_bytes, cards, stages, demand.expert_parallel_size)
    tower = shape.vision / cards * demand.dtype_bytes / GIB
    error = EXACT if shape.quantization is None else QUANTIZED
    if shape.estimated:
        error = RECURRENT if shape.estimated.startswith("recurrent") else GUESSED
    source = f"{shape.parameters / 1e9:.2f} G parameters"
    if shape.quantization is not None:
        source += f", {shape.quantization.method} of {shape.quantization.bits:.3g} bits"
    source += f", {shape.estimated}" if shape.estimated else ""
    source += f", {tower:.2f} GiB of them a tower of bounded size" if tower else ""
    return tuple(_bounded(stage / GIB, tower * (index == 0), error, source) for index, stage in enumerate(held))


def _bounded(gib: float, tower: float, error: float, source: str) -> Amount:
    decoder = gib - tower
    return Amount(gib, decoder * (1 - error) + tower * TOWER_LOW, decoder * (1 + error) + tower * TOWER_HIGH, source)
