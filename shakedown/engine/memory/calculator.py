"""From a demand to an answer: the pool, its blocks and tokens, whether it fits, why, and what to change."""

import math
from dataclasses import dataclass, replace

from shakedown.engine.devices import GIB
from shakedown.engine.memory import hybrid, terms
from shakedown.engine.memory.advice import corrections, room, suggest
from shakedown.engine.memory.demand import AUTO_LENGTH, Demand
from shakedown.engine.memory.interval import Amount
from shakedown.engine.memory.validity import invalid_reasons
from shakedown.engine.twin.device import GRAPHS_GIB, SAMPLER_COPIES
from shakedown.errors import UsageError

FITS, DOES_NOT_FIT, INVALID, UNKNOWN = "fits", "does-not-fit", "invalid", "unknown"
PRINTED_UTILIZATION = 0.0005
HUNDREDTHS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the calculator says. GiB and counts are per card; None where the arithmetic refuses to guess."""

    verdict: str
    """`unknown` only where not even the least and the most that a sequence keeps can be told."""
    bytes_per_token: int | None
    kv_pool_gib: float | None
    kv_blocks: int | None
    kv_tokens: int | None
    max_concurrency: float | None
    max_model_len: int | None
    """That was asked for, or that the engine would choose."""
    max_model_len_that_fits: int | None
    need_gib: float | None
    """Of one sequence of the full length."""
    overhead_gib: float | None
    """Of a given pool: what is neither weights nor cache. None when the pool is computed."""
    cpu_blocks: int | None
    minimal_utilization: float | None
    reasons: tuple[str, ...]
    suggestions: tuple[str, ...]
    warnings: tuple[str, ...]
    intervals: dict[str, tuple[float, float]]
    terms: dict[str, Amount]


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Every known term, and the pool that is left on the card that decides."""

    terms: dict[str, Amount]
    layers: int = 0
    """Of the stage that decides, the one whose pool holds the fewest tokens; 0 when nobody said how many there are."""

    @property
    def pool(self) -> Amount | None:
        return self.terms.get("KV pool")


def answer(demand: Demand) -> Answer:
    """Compute. Raises UsageError when a needed term can be neither taken nor estimated."""
    if wrong := invalid_reasons(demand):
        return _answer(demand, INVALID, reasons=wrong, suggestions=corrections(demand))
    refused = free_memory_reasons(demand)
    if refused and not (demand.is_priced and (demand.shape or demand.weights_gib is not None)):
        return _answer(demand, DOES_NOT_FIT, Budget(terms=_allowed(demand)), reasons=refused, suggestions=room(demand))
    known = budget(demand)
    demand = _with_chosen_length(demand, known)
    if not demand.is_linear:
        return _hybrid_answer(demand, known, refused)
    if not demand.is_priced:
        return _unpriced_answer(demand, known, refused)
    reasons = refused + unfit_reasons(demand, known)
    suggestions = suggest(demand, tokens_on(demand, known), _fits) if reasons else ()
    return _answer(demand, DOES_NOT_FIT if reasons else FITS, known, reasons=reasons, suggestions=suggestions)


def budget(demand: Demand) -> Budget:
    """Every term and the pool that is left on the stage that decides."""
    layers = max(demand.stages) if demand.is_priced else 0
    if (pool := _given_pool(demand)) is not None:
        return Budget(terms={**_around_given_pool(demand, pool), "KV pool": pool}, layers=layers)
    known = _allowed(demand)
    if "allowed" not in known:
        raise UsageError("give --device NAME or --total-gib (what the driver reports), or --kv-gib")
    rest = {
        "activation peak": terms.activation(demand),
        "non-torch": terms.non_torch(demand),
        "CUDA graphs": terms.graphs(demand),
    }
    budgets = []
    counts = demand.stages if demand.is_priced else (0,) * demand.pipeline_parallel
    for weights, count in zip(terms.weights(demand), counts, strict=True):
        pool = known["allowed"].minus(weights, *rest.values(), source="what is left")
        budgets.append(Budget(terms={**known, "weights": weights, **rest, "KV pool": pool}, layers=count))
    return min(budgets, key=lambda each: each.terms["KV pool"].gib / max(each.layers, 1))


def _allowed(demand: Demand) -> dict[str, Amount]:
    if demand.total_gib is None:
        return {}
    total, share = Amount.printed(demand.total_gib, "driver-visible total"), demand.used_utilization
    allowed = total.times(share, share - PRINTED_UTILIZATION, share + PRINTED_UTILIZATION, f"total × {share:g}")
    return {"total": total, "allowed": allowed}


def _given_pool(demand: Demand) -> Amount | None:
    if demand.kv_gib is not None:
        return Amount.printed(demand.kv_gib)
    if demand.blocks is not None:
        return Amount.exact(demand.blocks * demand.block_size * demand.bytes_per_token / GIB, "given blocks")
    return None


def _around_given_pool(demand: Demand, pool: Amount) -> dict[str, Amount]:
    """What a given pool leaves unexplained, when the total and the weights can be told."""
    known = _allowed(demand)
    if not known or (demand.weights_gib is None and demand.shape is None):
        return known
    weights = max(terms.weights(demand), key=lambda each: each.gib)
    overhead = known["allowed"].minus(weights, pool, source="neither weights nor cache")
    return {**known, "weights": weights, "overhead": overhead}


def _with_chosen_length(demand: Demand, known: Budget) -> Demand:
    """`--max-model-len -1` is the longest that fits, at most the model's own."""
    if demand.max_model_len != AUTO_LENGTH:
        return demand
    own = demand.shape.max_positions if demand.shape else 0
    unlimited = replace(demand, max_model_len=own or None)
    if not unlimited.is_linear or not unlimited.is_priced:
        return unlimited
    tokens = tokens_on(unlimited, known)
    return replace(demand, max_model_len=(min(tokens, own) if own else tokens) or own or None)


def tokens_on(demand: Demand, known: Budget) -> int:
    """Tokens in the pool of the deciding stage."""
    assert known.pool is not None
    if demand.blocks is not None and demand.kv_gib is None:
        return demand.blocks * demand.block_size
    return tokens_in(known.pool.gib, demand.stage_bytes_per_token(known.layers), demand.block_size)


def tokens_in(pool_gib: float, bytes_per_token: float, block_size: int) -> int:
    """Whole blocks only."""
    return blocks_in(pool_gib, bytes_per_token, block_size) * block_size


def blocks_in(pool_gib: float, bytes_per_token: float, block_size: int) -> int:
    return max(0, math.floor(pool_gib * GIB / (bytes_per_token * block_size)))


def free_memory_reasons(demand: Demand) -> tuple[str, ...]:
    """Utilisation is a share of the total, so what somebody else holds refuses the start."""
    known = _allowed(demand)
    if demand.free_gib is None or not known or demand.free_gib >= known["allowed"].gib:
        return ()
    return (
        f"{demand.free_gib:g} GiB are free at start and utilisation {demand.used_utilization:g} wants "
        f"{known['allowed'].gib:.2f} GiB: somebody else is on the card, and utilisation is a share of the total",
    )


def unfit_reasons(demand: Demand, known: Budget) -> tuple[str, ...]:
    """Why it does not start for want of cache; empty when it does."""
    pool = known.pool
    assert pool is not None
    if pool.gib <= 0:
        return (nothing_left(known),)
    tokens, length = tokens_on(demand, known), demand.max_model_len
    if not length or tokens >= length:
        return ()
    need = length * demand.stage_bytes_per_token(known.layers) / GIB
    return (
        f"the weights fit and the KV cache does not: one sequence of {length} tokens needs "
        f"{need:.2f} GiB and {pool.gib:.2f} GiB are there, enough for {tokens} tokens",
    )


def nothing_left(known: Budget) -> str:
    """In the engine's words, and by what."""
    pool, weights, allowed = known.pool, known.terms.get("weights"), known.terms.get("allowed")
    assert pool is not None
    if weights is not None and allowed is not None and weights.gib > allowed.gib:
        return f"the weights alone ({weights.gib:.2f} GiB) are more than the budget of {allowed.gib:.2f} GiB"
    return f"nothing is left for the KV cache ({pool.gib:.2f} GiB): No available memory for the cache blocks"


def minimal_utilization(demand: Demand, known: Budget) -> float | None:
    """(weights + activation + the rest + one sequence) ÷ total, rounded up to hundredths; None if not computable."""
    found = known.terms
    if "allowed" not in found or known.pool is None or not demand.max_model_len:
        return None
    if not demand.is_linear or not demand.is_priced:
        return None
    spent = found["allowed"].gib - known.pool.gib
    blocks = -(-demand.max_model_len // demand.block_size)
    need = spent + blocks * demand.block_size * demand.stage_bytes_per_token(known.layers) / GIB
    return math.ceil(need / found["total"].gib * HUNDREDTHS) / HUNDREDTHS


def headroom_warnings(demand: Demand, known: Budget) -> tuple[str, ...]:
    """What the budget does not hold and the rest of the card must: sampler buffers, and graphs before 0.21."""
    found = known.terms
    if "total" not in found:
        return ()
    outside = found["total"].gib - found["allowed"].gib
    vocab = demand.shape.vocab if demand.shape else 0
    sampler = demand.sequences * vocab * 4 * SAMPLER_COPIES / GIB
    said = []
    if sampler > outside:
        said.append(
            f"warming up the sampler with {demand.sequences} sequences takes about {sampler:.2f} GiB and "
            f"{outside:.2f} GiB are outside the budget: lower --max-num-seqs or --gpu-memory-utilization"
        )
    if demand.version < terms.GRAPHS_IN_BUDGET and not demand.enforce_eager and outside < GRAPHS_GIB:
        said.append(f"CUDA graphs are outside the budget before 0.21 and {outside:.2f} GiB may not hold them")
    if "overhead" in found and found["overhead"].gib > found["allowed"].gib / 4:
        said.append(
            f"{found['overhead'].gib:.1f} GiB above the weights are not cache: a profile peak, or what is prefetched"
        )
    return tuple(said)


def _hybrid_answer(demand: Demand, known: Budget, refused: tuple[str, ...]) -> Answer:
    assert known.pool is not None
    if known.pool.gib <= 0:
        refused = (*refused, nothing_left(known))
    said = hybrid.judge(demand, known.pool.gib)
    verdict = DOES_NOT_FIT if refused else {True: FITS, False: DOES_NOT_FIT, None: UNKNOWN}[said.fits]
    suggestions = () if verdict == FITS else said.suggestions
    return _answer(demand, verdict, known, reasons=(*refused, said.sentence), suggestions=suggestions, need=said.need)


def _unpriced_answer(demand: Demand, known: Budget, refused: tuple[str, ...]) -> Answer:
    """Without the sizes of a token only GiB can be compared: what is needed, if given, with what is left."""
    pool = known.pool
    assert pool is not None
    reasons = refused
    if pool.gib <= 0:
        reasons = (*reasons, nothing_left(known))
    elif demand.need_gib is not None and demand.need_gib > pool.gib:
        reasons = (*reasons, f"one sequence needs {demand.need_gib:g} GiB and {pool.gib:.2f} GiB are there")
    elif demand.max_model_len is not None and demand.need_gib is None:
        raise UsageError("give --config, --model, or --layers, --kv-heads and --head-dim to price a token")
    return _answer(demand, DOES_NOT_FIT if reasons else FITS, known, reasons=reasons)


def _fits(demand: Demand) -> bool:
    """Whether a changed demand would start; without advice, which asks this very question."""
    if invalid_reasons(demand):
        return False
    return not free_memory_reasons(demand) and not unfit_reasons(demand, budget(demand))


def _answer(
    demand: Demand,
    verdict: str,
    known: Budget | None = None,
    *,
    reasons: tuple[str, ...] = (),
    suggestions: tuple[str, ...] = (),
    need: tuple[float, float] | None = None,
) -> Answer:
    known = known or Budget(terms={})
    pool, length = known.pool, demand.max_model_len if demand.max_model_len != AUTO_LENGTH else None
    priced = demand.is_priced and demand.is_linear
    per_token = demand.stage_bytes_per_token(known.layers) if priced and known.layers else None
    if per_token is None and priced and demand.is_priced:
        per_token = demand.bytes_per_token
    tokens = tokens_on(demand, known) if pool is not None and per_token else None
    intervals: dict[str, tuple[float, float]] = {name: (term.low, term.high) for name, term in known.terms.items()}
    if pool is not None:
        intervals["kv_pool_gib"] = (pool.low, pool.high)
    if pool is not None and per_token:
        low, high = (tokens_in(bound, per_token, demand.block_size) for bound in (pool.low, pool.high))
        intervals |= {"kv_tokens": (low, high), "kv_blocks": (low // demand.block_size, high // demand.block_size)}
        if length:
            intervals["max_concurrency"] = (low / length, high / length)
    if need is not None:
        intervals["need_gib"] = need
    if demand.shape is not None and not priced and demand.shape.bounded:
        intervals["bytes_per_token"] = hybrid.bytes_per_token(demand)
    needed = length * per_token / GIB if length and per_token else demand.need_gib
    overhead = known.terms.get("overhead")
    return Answer(
        verdict=verdict,
        bytes_per_token=round(per_token) if per_token else None,
        kv_pool_gib=round(pool.gib, 4) if pool is not None else None,
        kv_blocks=tokens // demand.block_size if tokens is not None else None,
        kv_tokens=tokens,
        max_concurrency=round(tokens / length, 2) if tokens is not None and length else None,
        max_model_len=length,
        max_model_len_that_fits=tokens,
        need_gib=round(needed, 4) if needed is not None else None,
        overhead_gib=round(overhead.gib, 4) if overhead is not None else None,
        cpu_blocks=blocks_in(demand.swap_gib, per_token, demand.block_size) if demand.swap_gib and per_token else None,
        minimal_utilization=minimal_utilization(demand, known) if verdict != INVALID else None,
        reasons=reasons,
        suggestions=suggestions,
        warnings=headroom_warnings(demand, known),
        intervals=intervals,
        terms=known.terms,
    )
