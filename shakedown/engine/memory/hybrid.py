"""Models whose tokens have no fixed price: what can still be said, and where only the engine knows."""

from dataclasses import dataclass

from shakedown.engine.devices import GIB
from shakedown.engine.memory.demand import Demand
from shakedown.engine.memory.terms import batched_tokens
from shakedown.engine.shape import FULL, stage_layers

HYBRID_POOL_SINCE = (0, 10)
"""From this release on windowed and recurrent layers hold what they need; before, each holds every token."""


@dataclass(frozen=True, slots=True)
class Said:
    """`fits` is None where nothing can be told; `need` are GiB of one sequence, the least and the most."""

    fits: bool | None
    sentence: str
    need: tuple[float, float] | None = None
    suggestions: tuple[str, ...] = ()


def judge(demand: Demand, pool_gib: float) -> Said:
    """Compare the pool with the least and the most that one sequence may need. No token is counted."""
    shape = demand.shape
    assert shape is not None
    why = (
        f"a token has no fixed price: {shape.why_not_linear}; the maximum length is not linear in the pool, "
        "trust the engine's own estimate"
    )
    shorter = ("a lower --max-model-len: the engine prints the longest that fits; costs longer requests",)
    if demand.need_gib is not None:
        return Said(
            demand.need_gib <= pool_gib,
            f"one sequence needs {demand.need_gib:g} GiB as given and {pool_gib:.2f} GiB are there; {why}",
            (demand.need_gib, demand.need_gib),
            shorter,
        )
    if not shape.bounded:
        return Said(None, f"{why}; {pool_gib:.2f} GiB are there and what a sequence needs is not known", None, shorter)
    length = demand.max_model_len
    if length is None:
        return Said(pool_gib > 0, why)
    least, most = (
        held / GIB
        for held in shape.sequence_bytes(
            length,
            batched_tokens(demand),
            demand.kv_dtype_bytes,
            demand.tensor_parallel,
            demand.pipeline_parallel,
        )
    )
    sentence = (
        f"one sequence of {length} tokens needs {least:.2f} to {most:.2f} GiB and {pool_gib:.2f} GiB are there; {why}"
    )
    fits = pool_gib >= (least if demand.version >= HYBRID_POOL_SINCE else most)
    return Said(fits, sentence, (least, most), shorter)


def bytes_per_token(demand: Demand) -> tuple[float, float]:
    """On a card, the least and the most that one more token costs: beyond every window, and within all of them."""
    assert demand.shape is not None
    price = demand.shape.kv_bytes_per_token_and_layer(demand.kv_dtype_bytes, demand.tensor_parallel)
    stages = stage_layers(demand.shape.layers, demand.pipeline_parallel)
    full = sum(layer.mixer == FULL for layer in demand.shape.layout)
    return price * full / demand.pipeline_parallel, price * max(stages)
