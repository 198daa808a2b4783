"""From a demand to an answer: the pool, its blocks and tokens, whether it fits, why, and what to change."""

import math
from dataclasses import dataclass, replace

from shakedown.engine.devices import GIB
from shakedown.engine.memory import terms
from shakedown.engine.memory.demand import Demand
from shakedown.engine.memory.interval import Amount
from shakedown.engine.twin.device import GRAPHS_GIB, SAMPLER_COPIES
from shakedown.errors import UsageError

FITS, DOES_NOT_FIT, INVALID = "fits", "does-not-fit", "invalid"
PRINTED_UTILIZATION = 0.0005
HUNDREDTHS = 100
V1_SMALL_STEP = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the calculator says. GiB and counts are per card; None where the arithmetic refuses to guess."""

    verdict: str
    bytes_per_token: int
    kv_pool_gib: float | None
    kv_blocks: int | None
    kv_tokens: int | None
    max_concurrency: float | None
    max_model_len_that_fits: int | None
    minimal_utilization: float | None
    reasons: tuple[str, ...]
    suggestions: tuple[str, ...]
    warnings: tuple[str, ...]
    intervals: dict[str, tuple[float, float]]
    terms: dict[str, Amount]


def answer(demand: Demand) -> Answer:
    """Compute. Raises UsageError when a needed term can be neither taken nor estimated."""
    wrong = invalid_reasons(demand)
    known = budget(demand)
    pool = known["KV pool"]
    per_token = demand.bytes_per_token
    if wrong:
        return _answer(demand, INVALID, pool=None, known=known, reasons=wrong, suggestions=_corrections(demand))
    if not demand.is_linear:
        reason = (
            "the model has sliding-window, recurrent or hybrid layers: a token has no fixed price, the maximum length "
            "is not linear in the pool; trust the engine's own estimate"
        )
        verdict = FITS if pool.gib > 0 else DOES_NOT_FIT
        return _answer(demand, verdict, pool=pool, known=known, reasons=(reason,), suggestions=(), priced=False)
    tokens = tokens_in(pool.gib, per_token, demand.block_size)
    reasons = unfit_reasons(demand, known, tokens)
    verdict = DOES_NOT_FIT if reasons else FITS
    suggestions = suggest(demand, known) if reasons else ()
    return _answer(demand, verdict, pool=pool, known=known, reasons=reasons, suggestions=suggestions)


def budget(demand: Demand) -> dict[str, Amount]:
    """Every term and the pool that is left."""
    if demand.kv_gib is not None:
        return {"KV pool": Amount.printed(demand.kv_gib)}
    if demand.total_gib is None:
        raise UsageError("give --device NAME or --total-gib (what the driver reports), or --kv-gib")
    total = Amount.printed(demand.total_gib, "driver-visible total")
    share = demand.used_utilization
    allowed = total.times(share, share - PRINTED_UTILIZATION, share + PRINTED_UTILIZATION, f"total × {share:g}")
    taken = {
        "weights": terms.weights(demand),
        "activation peak": terms.activation(demand),
        "non-torch": terms.non_torch(demand),
        "CUDA graphs": terms.graphs(demand),
    }
    pool = allowed.minus(*taken.values(), source="what is left")
    return {"total": total, "allowed": allowed, **taken, "KV pool": pool}


def tokens_in(pool_gib: float, bytes_per_token: float, block_size: int) -> int:
    """Whole blocks only."""
    return blocks_in(pool_gib, bytes_per_token, block_size) * block_size


def blocks_in(pool_gib: float, bytes_per_token: float, block_size: int) -> int:
    return max(0, math.floor(pool_gib * GIB / (bytes_per_token * block_size)))


def invalid_reasons(demand: Demand) -> tuple[str, ...]:
    """What no amount of memory would make work."""
    shape, reasons = demand.shape, []
    if shape is None:
        return ()
    if shape.heads % demand.tensor_parallel:
        reasons.append(
            f"{shape.heads} attention heads cannot be split over {demand.tensor_parallel} cards; "
            f"valid --tensor-parallel-size: {', '.join(map(str, valid_tensor_parallel(demand)))}"
        )
    if demand.pipeline_parallel > shape.layers:
        reasons.append(f"{shape.layers} layers cannot be split into {demand.pipeline_parallel} stages")
    if demand.max_model_len and shape.max_positions and demand.max_model_len > shape.max_positions:
        reasons.append(
            f"--max-model-len {demand.max_model_len} is beyond the model's own {shape.max_positions} positions"
        )
    return tuple(reasons)


def valid_tensor_parallel(demand: Demand) -> tuple[int, ...]:
    """Sizes up to 16 that divide the attention heads and the vocabulary."""
    assert demand.shape is not None
    heads, vocab = demand.shape.heads, demand.shape.vocab
    return tuple(size for size in range(1, 17) if heads % size == 0 and (not vocab or vocab % size == 0))


def unfit_reasons(demand: Demand, known: dict[str, Amount], tokens: int) -> tuple[str, ...]:
    """Why it does not start; empty when it does."""
    pool, reasons = known["KV pool"], []
    if demand.free_gib is not None and "allowed" in known and demand.free_gib < known["allowed"].gib:
        reasons.append(
            f"{demand.free_gib:g} GiB are free at start and utilisation {demand.used_utilization:g} wants "
            f"{known['allowed'].gib:.2f} GiB: somebody else is on the card, and utilisation is a share of the total"
        )
    if pool.gib <= 0:
        reasons.append(f"nothing is left for the KV cache ({pool.gib:.2f} GiB): No available memory for cache blocks")
    elif demand.max_model_len and tokens < demand.max_model_len:
        need = demand.max_model_len * demand.bytes_per_token / GIB
        reasons.append(
            f"the weights fit and the KV cache does not: one sequence of {demand.max_model_len} tokens needs "
            f"{need:.2f} GiB and {pool.gib:.2f} GiB are there, enough for {tokens} tokens"
        )
    return tuple(reasons)


def suggest(demand: Demand, known: dict[str, Amount]) -> tuple[str, ...]:
    """Changes that make it fit, the cheapest first, each with its price."""
    per_token, block = demand.bytes_per_token, demand.block_size
    found = []
    tokens = tokens_in(known["KV pool"].gib, per_token, block)
    if tokens and demand.max_model_len:
        found.append(f"--max-model-len {tokens}: costs requests longer than that")
    lowest = minimal_utilization(demand, known)
    if lowest is not None and demand.used_utilization < lowest <= 0.95:
        found.append(f"--gpu-memory-utilization {lowest:.2f}: costs the margin for peaks beyond the profile")
    if demand.kv_dtype_bytes > 1 and _fits(replace(demand, kv_cache_dtype="fp8")):
        found.append("--kv-cache-dtype fp8: twice the tokens; costs some accuracy, needs a card that has it")
    if demand.max_num_batched_tokens is None or demand.max_num_batched_tokens > V1_SMALL_STEP:
        smaller = replace(demand, max_num_batched_tokens=V1_SMALL_STEP)
        if demand.activation_gib is None and demand.kv_gib is None and _fits(smaller):
            found.append(f"--max-num-batched-tokens {V1_SMALL_STEP}: a smaller activation peak; costs prefill speed")
    if demand.shape is not None and demand.kv_gib is None:
        wider = (size for size in valid_tensor_parallel(demand) if size > demand.tensor_parallel)
        fitting = next((n for n in wider if _fits(replace(demand, tensor_parallel=n, weights_gib=None))), None)
        if fitting:
            found.append(f"--tensor-parallel-size {fitting}: costs {fitting} cards a replica")
    return tuple(found or ["a card with more memory, a smaller or a quantised model"])


def minimal_utilization(demand: Demand, known: dict[str, Amount]) -> float | None:
    """(weights + activation + the rest + one sequence) ÷ total, rounded up to hundredths; None if not computable."""
    if "total" not in known or not demand.max_model_len or not demand.is_linear:
        return None
    spent = known["allowed"].gib - known["KV pool"].gib
    blocks = -(-demand.max_model_len // demand.block_size)
    need = spent + blocks * demand.block_size * demand.bytes_per_token / GIB
    return math.ceil(need / known["total"].gib * HUNDREDTHS) / HUNDREDTHS


def headroom_warnings(demand: Demand, known: dict[str, Amount]) -> tuple[str, ...]:
    """What the budget does not hold and the rest of the card must: sampler buffers, and graphs before 0.21."""
    if "total" not in known:
        return ()
    outside = known["total"].gib - known["allowed"].gib
    vocab = demand.shape.vocab if demand.shape else 0
    sampler = demand.max_num_seqs * vocab * 4 * SAMPLER_COPIES / GIB
    found = []
    if sampler > outside:
        found.append(
            f"warming up the sampler with {demand.max_num_seqs} sequences takes about {sampler:.2f} GiB and "
            f"{outside:.2f} GiB are outside the budget: lower --max-num-seqs or --gpu-memory-utilization"
        )
    if demand.version < (0, 21) and not demand.enforce_eager and outside < GRAPHS_GIB:
        found.append(f"CUDA graphs are outside the budget before 0.21 and {outside:.2f} GiB may not hold them")
    return tuple(found)


def _fits(demand: Demand) -> bool:
    """Whether a changed demand would start; without advice, which asks this very question."""
    if invalid_reasons(demand):
        return False
    known = budget(demand)
    tokens = tokens_in(known["KV pool"].gib, demand.bytes_per_token, demand.block_size)
    return not unfit_reasons(demand, known, tokens)


def _corrections(demand: Demand) -> tuple[str, ...]:
    shape = demand.shape
    assert shape is not None
    found = []
    if shape.heads % demand.tensor_parallel:
        found.append(
            f"--tensor-parallel-size {max(s for s in valid_tensor_parallel(demand) if s <= demand.tensor_parallel)}"
        )
    if demand.max_model_len and shape.max_positions and demand.max_model_len > shape.max_positions:
        found.append(f"--max-model-len {shape.max_positions}")
    return tuple(found)


def _answer(
    demand: Demand,
    verdict: str,
    *,
    pool: Amount | None,
    known: dict[str, Amount],
    reasons: tuple[str, ...],
    suggestions: tuple[str, ...],
    priced: bool = True,
) -> Answer:
    per_token, block = demand.bytes_per_token, demand.block_size
    count = pool is not None and priced
    blocks = blocks_in(pool.gib, per_token, block) if pool is not None and count else None
    tokens = blocks * block if blocks is not None else None
    length = demand.max_model_len
    intervals: dict[str, tuple[float, float]] = {name: (term.low, term.high) for name, term in known.items()}
    if pool is not None and count:
        low, high = (tokens_in(bound, per_token, block) for bound in (pool.low, pool.high))
        intervals |= {"kv_pool_gib": (pool.low, pool.high), "kv_tokens": (low, high)}
        intervals["kv_blocks"] = (low // block, high // block)
        if length:
            intervals["max_concurrency"] = (low / length, high / length)
    return Answer(
        verdict=verdict,
        bytes_per_token=round(per_token),
        kv_pool_gib=round(pool.gib, 4) if pool is not None else None,
        kv_blocks=blocks,
        kv_tokens=tokens,
        max_concurrency=round(tokens / length, 2) if tokens is not None and length else None,
        max_model_len_that_fits=tokens,
        minimal_utilization=minimal_utilization(demand, known) if verdict != INVALID else None,
        reasons=reasons,
        suggestions=suggestions,
        warnings=headroom_warnings(demand, known),
        intervals=intervals,
        terms=known,
    )
