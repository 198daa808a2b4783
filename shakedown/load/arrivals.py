"""When requests are due: pure, seeded, lazy. No clock is read here; times count from the start of the load."""

import csv
import heapq
import itertools
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

import msgspec

from shakedown.errors import UsageError

T = TypeVar("T")


class Arrivals(Protocol):
    """An open-loop plan: it never looks at answers."""

    def due_times(self, duration_s: float) -> Iterator[float]:
        """Seconds from the start of the load, ascending, all below `duration_s`."""
        ...


@dataclass(frozen=True, slots=True)
class Constant:
    """`rate` requests a second at equal distances."""

    rate: float

    def __post_init__(self) -> None:
        _demand_positive("rate", self.rate)

    def due_times(self, duration_s: float) -> Iterator[float]:
        return _below(duration_s, (index / self.rate for index in itertools.count()))


@dataclass(frozen=True, slots=True)
class Poisson:
    """Independent users: exponential gaps with mean 1 / `rate`."""

    rate: float
    seed: int = 0

    def __post_init__(self) -> None:
        _demand_positive("rate", self.rate)

    def due_times(self, duration_s: float) -> Iterator[float]:
        dice = random.Random(self.seed)
        return _below(duration_s, itertools.accumulate(dice.expovariate(self.rate) for _ in itertools.count()))


@dataclass(frozen=True, slots=True)
class Gamma:
    """Gaps of a gamma distribution with mean 1 / `rate` and shape `burstiness`.

    1 is Poisson, below 1 is burstier, above 1 is more regular: the meaning `vllm bench serve --burstiness` has.
    """

    rate: float
    burstiness: float
    seed: int = 0

    def __post_init__(self) -> None:
        _demand_positive("rate", self.rate)
        _demand_positive("burstiness", self.burstiness)

    def due_times(self, duration_s: float) -> Iterator[float]:
        dice = random.Random(self.seed)
        scale = 1 / (self.rate * self.burstiness)
        gaps = (dice.gammavariate(self.burstiness, scale) for _ in itertools.count())
        return _below(duration_s, itertools.accumulate(gaps))


@dataclass(frozen=True, slots=True)
class Burst:
    """`count` requests at the same instant."""

    count: int
    at_s: float = 0.0

    def __post_init__(self) -> None:
        _demand_positive("count", self.count)

    def due_times(self, duration_s: float) -> Iterator[float]:
        return _below(duration_s, itertools.repeat(self.at_s, self.count))


@dataclass(frozen=True, slots=True)
class Ramp:
    """Poisson arrivals whose rate goes in a straight line from `start_rate` to `end_rate` over the duration."""

    start_rate: float
    end_rate: float
    seed: int = 0

    def __post_init__(self) -> None:
        _demand_positive("the higher of the two rates", max(self.start_rate, self.end_rate))

    def due_times(self, duration_s: float) -> Iterator[float]:
        def rate_at(t: float) -> float:
            return self.start_rate + (self.end_rate - self.start_rate) * t / duration_s

        return _thinned(rate_at, max(self.start_rate, self.end_rate), duration_s, self.seed)


@dataclass(frozen=True, slots=True)
class Steps:
    """Poisson arrivals in steps of (rate, seconds); the last rate goes on until the end."""

    steps: tuple[tuple[float, float], ...]
    seed: int = 0

    def __post_init__(self) -> None:
        _demand_positive("the number of steps", len(self.steps))
        _demand_positive("the highest rate", max(rate for rate, _ in self.steps))

    def due_times(self, duration_s: float) -> Iterator[float]:
        ends = list(itertools.accumulate(seconds for _, seconds in self.steps))

        def rate_at(t: float) -> float:
            return next((rate for (rate, _), end in zip(self.steps, ends, strict=True) if t < end), self.steps[-1][0])

        return _thinned(rate_at, max(rate for rate, _ in self.steps), duration_s, self.seed)


@dataclass(frozen=True, slots=True)
class Sinusoid:
    """Poisson arrivals whose rate swings by ± `amplitude` (0..1 of the mean) with a period."""

    mean_rate: float
    amplitude: float
    period_s: float
    seed: int = 0

    def __post_init__(self) -> None:
        _demand_positive("mean_rate", self.mean_rate)
        _demand_positive("period_s", self.period_s)
        if not 0 <= self.amplitude <= 1:
            raise UsageError(f"amplitude is a share of the mean rate, from 0 to 1; got {self.amplitude:g}")

    def due_times(self, duration_s: float) -> Iterator[float]:
        def rate_at(t: float) -> float:
            return self.mean_rate * (1 + self.amplitude * math.sin(2 * math.pi * t / self.period_s))

        return _thinned(rate_at, self.mean_rate * (1 + self.amplitude), duration_s, self.seed)


@dataclass(frozen=True, slots=True)
class Together:
    """Several plans at once: a burst on top of a steady stream."""

    parts: tuple[Arrivals, ...]

    def due_times(self, duration_s: float) -> Iterator[float]:
        return heapq.merge(*(part.due_times(duration_s) for part in self.parts))


class TraceRow(NamedTuple):
    """One request of a recorded trace."""

    due_s: float
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Trace:
    """Replay of a recorded trace, with the lengths it recorded; `speed` 2 replays it twice as fast.

    Reads two public formats, told apart by their first line: the Azure LLM inference trace (CSV:
    TIMESTAMP,ContextTokens,GeneratedTokens) and Mooncake's (JSON lines: timestamp in milliseconds, input_length,
    output_length). The first row is due at once.
    """

    path: Path
    speed: float = 1.0

    def __post_init__(self) -> None:
        _demand_positive("speed", self.speed)

    def due_times(self, duration_s: float) -> Iterator[float]:
        return (row.due_s for row in self.rows(duration_s))

    def rows(self, duration_s: float) -> Iterator[TraceRow]:
        """The rows due below `duration_s`. Raises UsageError with the line that makes no sense."""
        origin: float | None = None
        latest = 0.0
        for line_number, (at_s, prompt_tokens, output_tokens) in self._raw_rows():
            origin = at_s if origin is None else origin
            due_s = (at_s - origin) / self.speed
            if due_s < latest:
                raise UsageError(f"{self.path}:{line_number}: the trace goes back in time")
            if due_s >= duration_s:
                return
            latest = due_s
            yield TraceRow(due_s, prompt_tokens, output_tokens)

    def _raw_rows(self) -> Iterator[tuple[int, tuple[float, int, int]]]:
        try:
            with self.path.open(encoding="utf-8", newline="") as file:
                parse = _mooncake_row if file.readline().lstrip().startswith("{") else _azure_row
                file.seek(0)
                for line_number, line in enumerate(file, start=1):
                    if line.strip() and not (line_number == 1 and parse is _azure_row):
                        yield line_number, _parsed(parse, line, self.path, line_number)
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"the trace {self.path} cannot be read: {error}") from error


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """`users` who each wait for their answer, then think. Hides overload; use it to find throughput, not latency."""

    users: int
    think_time_s: float = 0.0

    def __post_init__(self) -> None:
        _demand_positive("users", self.users)


class _MooncakeRow(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int


def _mooncake_row(line: str) -> tuple[float, int, int]:
    row = msgspec.json.decode(line, type=_MooncakeRow)
    return row.timestamp / 1000, row.input_length, row.output_length


def _azure_row(line: str) -> tuple[float, int, int]:
    timestamp, context_tokens, generated_tokens = next(csv.reader([line]))[:3]
    return datetime.fromisoformat(timestamp).timestamp(), int(context_tokens), int(generated_tokens)


def _parsed(parse: Callable[[str], T], line: str, path: Path, line_number: int) -> T:
    try:
        return parse(line)
    except ValueError as error:  # msgspec's errors are ValueErrors too
        raise UsageError(f"{path}:{line_number}: not a row of an Azure or Mooncake trace: {error}") from error


def _below(duration_s: float, times: Iterator[float]) -> Iterator[float]:
    return itertools.takewhile(lambda t: t < duration_s, times)


def _thinned(rate_at: Callable[[float], float], highest: float, duration_s: float, seed: int) -> Iterator[float]:
    """A Poisson process of a changing rate: candidates at the highest rate, each kept with probability rate/highest."""
    dice = random.Random(seed)
    candidates = itertools.accumulate(dice.expovariate(highest) for _ in itertools.count())
    return (t for t in _below(duration_s, candidates) if dice.random() * highest < rate_at(t))


def _demand_positive(name: str, value: float) -> None:
    if not value > 0 or math.isinf(value):
        raise UsageError(f"{name} must be positive and finite; got {value:g}")
