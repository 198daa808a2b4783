"""What to change when it does not fit or makes no sense, the cheapest first, each with its price."""

from collections.abc import Callable
from dataclasses import replace

from shakedown.engine.memory.demand import Demand
from shakedown.engine.memory.terms import STEP_TOKENS, batched_tokens
from shakedown.engine.memory.validity import longest_length, split_reason, valid_tensor_parallel

HIGHEST_UTILIZATION = 0.95
Fits = Callable[[Demand], bool]
"""Whether a changed demand would start."""


def suggest(demand: Demand, tokens: int, fits: Fits) -> tuple[str, ...]:
    """Changes that make it fit by the calculator's own arithmetic."""
    ways = (
        *_room_that_fits(demand, fits),
        _length(demand, tokens, fits),
        _utilization(demand, fits),
        _narrow_cache(demand, fits),
        _smaller_steps(demand, fits),
        _more_cards(demand, fits),
    )
    return tuple(way for way in ways if way) or (
        "a card with more memory, a smaller or a quantised model: costs those",
    )


def corrections(demand: Demand) -> tuple[str, ...]:
    """The nearest value that is valid, for each that is not."""
    found = []
    step, sequences, shape = demand.max_num_batched_tokens, demand.max_num_seqs, demand.shape
    if step is not None and sequences is not None and step < sequences:
        found.append(f"--max-num-seqs {step}: costs sequences that run side by side")
    if shape is None:
        return tuple(found)
    if split_reason(shape, demand.tensor_parallel, demand.expert_parallel):
        lower = [size for size in valid_tensor_parallel(demand) if size <= demand.tensor_parallel]
        found.append(f"--tensor-parallel-size {max(lower, default=1)}: costs the memory of the cards left out")
    if demand.expert_parallel_size and shape.experts and shape.experts % demand.expert_parallel_size:
        found.append("leave out --enable-expert-parallel: experts are then split like other matrices")
    longest = longest_length(demand)
    if demand.max_model_len and longest and demand.max_model_len > longest:
        found.append(f"--max-model-len {longest}: costs requests longer than that")
    return tuple(found)


def room(demand: Demand) -> tuple[str, ...]:
    """When somebody else is on the card: the utilisation that takes no more than what is free."""
    free, total = demand.free_gib, demand.total_gib
    if free is None or total is None or free >= total * demand.used_utilization:
        return ()
    alone = "free the card of its other tenant: costs whatever that one did"
    share = int(free / total * 100) / 100
    return (f"--gpu-memory-utilization {share:.2f}: what is free; costs cache", alone) if share > 0 else (alone,)


def _room_that_fits(demand: Demand, fits: Fits) -> tuple[str, ...]:
    free, total = demand.free_gib, demand.total_gib
    ways = room(demand)
    if free is None or total is None or len(ways) < 2 or demand.kv_gib is not None:
        return ways[-1:]
    return ways if fits(replace(demand, utilization=int(free / total * 100) / 100)) else ways[-1:]


def _length(demand: Demand, tokens: int, fits: Fits) -> str:
    length = demand.max_model_len
    if not tokens or not length or tokens >= length or not fits(replace(demand, max_model_len=tokens)):
        return ""
    return f"--max-model-len {tokens}: costs requests longer than that"


def _utilization(demand: Demand, fits: Fits) -> str:
    """The lowest hundredth above the present one that fits, if any is safe."""
    if demand.kv_gib is not None or demand.blocks is not None or demand.total_gib is None:
        return ""
    start = int(demand.used_utilization * 100) + 1
    shares = (hundredths / 100 for hundredths in range(start, int(HIGHEST_UTILIZATION * 100) + 1))
    share = next((share for share in shares if fits(replace(demand, utilization=share))), None)
    return f"--gpu-memory-utilization {share:.2f}: costs the margin for peaks beyond the profile" if share else ""


def _narrow_cache(demand: Demand, fits: Fits) -> str:
    if demand.kv_dtype_bytes == 1 or demand.blocks is not None or not fits(replace(demand, kv_cache_dtype="fp8")):
        return ""
    return "--kv-cache-dtype fp8: twice the tokens; costs some accuracy, needs a card that has it"


def _smaller_steps(demand: Demand, fits: Fits) -> str:
    estimated = demand.activation_gib is None and demand.kv_gib is None
    if not estimated or batched_tokens(demand) <= STEP_TOKENS:
        return ""
    if not fits(replace(demand, max_num_batched_tokens=STEP_TOKENS)):
        return ""
    return f"--max-num-batched-tokens {STEP_TOKENS}: a smaller activation peak; costs prefill speed"


def _more_cards(demand: Demand, fits: Fits) -> str:
    if demand.shape is None or demand.kv_gib is not None or demand.blocks is not None:
        return ""
    wider = (size for size in valid_tensor_parallel(demand) if size > demand.tensor_parallel)
    split = (replace(demand, tensor_parallel=size, weights_gib=None, non_torch_gib=None) for size in wider)
    cards = next((each.tensor_parallel for each in split if fits(each)), None)
    return f"--tensor-parallel-size {cards}: costs {cards} cards a replica" if cards else ""
