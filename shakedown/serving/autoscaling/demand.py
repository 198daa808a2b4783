"""A load as a curve of its arrival rate, and the arrivals that follow it."""

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from shakedown.errors import UsageError


@dataclass(frozen=True, slots=True)
class Demand:
    """Arrival rate in requests a second at ascending times in seconds, in straight lines between them.

    Two points at the same time are a step.
    """

    points: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        if len(self.points) < 2 or any(later[0] < earlier[0] for earlier, later in itertools.pairwise(self.points)):
            raise UsageError("a load curve needs two points or more, in the order of time")
        if any(not (math.isfinite(rate) and rate >= 0 and math.isfinite(t_s)) for t_s, rate in self.points):
            raise UsageError("the rates of a load curve are 0 or more, and all its numbers finite")

    @property
    def duration_s(self) -> float:
        return self.points[-1][0] - self.points[0][0]

    @property
    def requests(self) -> float:
        """How many arrive, on average."""
        pairs = itertools.pairwise(self.points)
        return sum((rate + next_rate) / 2 * (next_s - t_s) for (t_s, rate), (next_s, next_rate) in pairs)

    def divided(self, factor: float) -> "Demand":
        """The same curve with rates that are as much lower."""
        return Demand(tuple((t_s, rate / factor) for t_s, rate in self.points))

    def arrivals(self, seed: int = 0) -> tuple[float, ...]:
        """Independent users (Poisson), in seconds from the first point."""
        return tuple(self.times(seed))

    def times(self, seed: int = 0) -> Iterator[float]:
        """The same, one after the other: unit exponential gaps in the integral of the rate, mapped back to time."""
        dice, begin_s = random.Random(seed), self.points[0][0]
        due = dice.expovariate(1.0)
        for (t_s, rate), (next_s, next_rate) in itertools.pairwise(self.points):
            slope = (next_rate - rate) / (next_s - t_s) if next_s > t_s else 0.0
            area = (rate + next_rate) / 2 * (next_s - t_s)
            while due < area:
                yield t_s - begin_s + _time_at(due, rate, slope)
                due += dice.expovariate(1.0)
            due -= area


def _time_at(area: float, rate: float, slope: float) -> float:
    """When rate × t + slope × t² ÷ 2 reaches an area."""
    return 2 * area / (rate + math.sqrt(max(rate * rate + 2 * slope * area, 0.0)))


def hill(base: float, peak: float, growth_per_s: float, hold_s: float) -> Demand:
    """A calm, a climb to the peak at a given growth, a hold, the way down, and a calm again."""
    climb_s = (peak - base) / growth_per_s if growth_per_s > 0 else 0.0
    times_s = tuple(itertools.accumulate((0.0, hold_s / 2, climb_s, hold_s, climb_s, hold_s)))
    return Demand(tuple(zip(times_s, (base, base, peak, peak, base, base), strict=True)))
