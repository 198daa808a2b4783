"""Exact percentiles. No sketch: a judgement must not depend on an approximation."""

import math
from collections.abc import Iterable


def percentile(values: Iterable[float], q: float) -> float | None:
    """The q-th percentile (0..100), linear between closest ranks as numpy's default; None of nothing.

    Infinity is a legal value (something that never came) and stays infinity. Raises ValueError for q out of range.
    """
    if not 0 <= q <= 100:
        raise ValueError(f"a percentile lies between 0 and 100, not at {q:g}")
    ordered = sorted(values)
    if not ordered:
        return None
    rank = (len(ordered) - 1) * q / 100
    below, fraction = int(rank), rank - int(rank)
    if fraction == 0:
        return ordered[below]
    low, high = ordered[below], ordered[below + 1]
    if math.isinf(high):
        return high
    return low + (high - low) * fraction
