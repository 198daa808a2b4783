"""What no amount of memory would make work: splits that do not come out even, and lengths beyond the model's own."""

from shakedown.engine.memory.demand import Demand
from shakedown.engine.shape import ModelShape

WIDEST = 64
YARN_UNTIL = (0, 21)
"""Releases before multiply the original positions of a YaRN config by its factor; later ones do not."""


def invalid_reasons(demand: Demand) -> tuple[str, ...]:
    """Empty when the engine would accept the configuration."""
    found = [reason for reason in (_sequences_reason(demand),) if reason]
    shape = demand.shape
    if shape is None:
        return tuple(found)
    if reason := split_reason(shape, demand.tensor_parallel, demand.expert_parallel):
        sizes = ", ".join(map(str, valid_tensor_parallel(demand)))
        found.append(f"{reason}; valid --tensor-parallel-size: {sizes}")
    ranks = demand.expert_parallel_size
    if ranks and shape.experts and shape.experts % ranks:
        valid = ", ".join(str(size) for size in range(1, WIDEST + 1) if shape.experts % size == 0)
        found.append(
            f"{shape.experts} experts cannot be split over {ranks} ranks; valid expert-parallel sizes: {valid}"
        )
    if demand.pipeline_parallel > shape.layers:
        found.append(f"{shape.layers} layers cannot be split into {demand.pipeline_parallel} stages")
    longest = longest_length(demand)
    if demand.max_model_len and longest and demand.max_model_len > longest:
        found.append(f"--max-model-len {demand.max_model_len} is beyond the model's own {longest} positions")
    return tuple(found)


def longest_length(demand: Demand) -> int:
    """0 when the config does not say."""
    shape = demand.shape
    if shape is None:
        return 0
    return max(shape.max_positions, shape.yarn_positions) if demand.version < YARN_UNTIL else shape.max_positions


def default_length(demand: Demand) -> int | None:
    """What `--max-model-len` is when nobody says it."""
    return longest_length(demand) or None


def valid_tensor_parallel(demand: Demand) -> tuple[int, ...]:
    """Sizes that divide what a card must get a whole share of."""
    assert demand.shape is not None
    return tuple(size for size in range(1, WIDEST + 1) if not split_reason(demand.shape, size, demand.expert_parallel))


def split_reason(shape: ModelShape, cards: int, experts_apart: bool = False) -> str:
    """Why a model cannot be split over that many cards; empty when it can."""
    if shape.heads % cards:
        return f"{shape.heads} attention heads cannot be split over {cards} cards"
    heads = shape.cached_heads
    if not shape.latent_dim and (heads % cards if heads >= cards else cards % heads):
        return f"{heads} KV heads can be neither split nor repeated evenly over {cards} cards"
    if shape.padded_vocab % cards:
        return f"the vocabulary of {shape.vocab} cannot be split over {cards} cards"
    if experts_apart and shape.experts:
        return ""
    if shape.intermediate % cards:
        return f"a feed-forward of width {shape.intermediate} cannot be split over {cards} cards"
    block = shape.quantization.block if shape.quantization else 0
    if block and cards > 1 and (shape.intermediate // cards) % block:
        return f"a feed-forward of width {shape.intermediate} cannot be split over {cards} cards in blocks of {block}"
    return ""


def _sequences_reason(demand: Demand) -> str:
    step, sequences = demand.max_num_batched_tokens, demand.max_num_seqs
    if step is not None and sequences is not None and step < sequences:
        return f"--max-num-batched-tokens {step} cannot hold one token for each of --max-num-seqs {sequences}"
    return ""
