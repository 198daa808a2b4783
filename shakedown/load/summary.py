"""The numbers of a load, from its records alone, by the definitions of `shakedown.judge`; docs/load.md has formulas."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from shakedown.judge.latency import e2e_latency, inter_token_latencies, send_lag, token_count, tpot, ttft
from shakedown.judge.objectives import SLO, goodput
from shakedown.judge.percentiles import percentile
from shakedown.judge.records import Outcome, RequestRecord

SHOWN_PERCENTILES = (50, 90, 99)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How a quantity is spread over requests, in seconds; all None if no request has it."""

    mean_s: float | None = None
    p50_s: float | None = None
    p90_s: float | None = None
    p99_s: float | None = None

    @classmethod
    def of(cls, values: Iterable[float | None]) -> "Spread":
        """Of the values there are."""
        known = [value for value in values if value is not None]
        if not known:
            return cls()
        p50, p90, p99 = (percentile(known, q) for q in SHOWN_PERCENTILES)
        return cls(mean_s=sum(known) / len(known), p50_s=p50, p90_s=p90, p99_s=p99)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSummary:
    """What users got. Latencies are those of completed requests; goodput counts every request sent."""

    sent: int
    outcomes: dict[str, int]
    errors: dict[str, int]
    """The most frequent reasons of what did not complete."""
    lasted_s: float
    """From the first due time to the last end."""
    request_throughput: float
    """Completed requests a second."""
    output_token_throughput: float
    """Tokens a second, of all requests: what arrived, arrived."""
    prompt_tokens: int
    output_tokens: int
    ttft: Spread
    tpot: Spread
    itl: Spread
    e2e: Spread
    send_lag: Spread
    goodput: float | None
    """Completed within the SLO ÷ sent."""
    events_per_read: float | None
    """Above about 1.5 at a low rate, a hop between server and client buffers."""


def summarize(records: Sequence[RequestRecord], slo: SLO | None = None) -> LoadSummary:
    """The numbers of all of `records`; hand in a part of them for a class or a window."""
    completed = [record for record in records if record.outcome is Outcome.COMPLETED]
    lasted_s = _lasted(records)
    output_tokens = sum(token_count(record) for record in records)
    reads = sum(record.reads for record in records)
    return LoadSummary(
        sent=len(records),
        outcomes=dict(Counter(str(record.outcome) for record in records)),
        errors=dict(Counter(record.error for record in records if record.error).most_common(5)),
        lasted_s=lasted_s,
        request_throughput=len(completed) / lasted_s if lasted_s else 0.0,
        output_token_throughput=output_tokens / lasted_s if lasted_s else 0.0,
        prompt_tokens=sum(record.prompt_tokens or 0 for record in records),
        output_tokens=output_tokens,
        ttft=_spread(ttft, completed),
        tpot=_spread(tpot, completed),
        itl=Spread.of(gap for record in completed for gap in inter_token_latencies(record)),
        e2e=_spread(e2e_latency, completed),
        send_lag=_spread(send_lag, records),
        goodput=goodput(records, slo or SLO()),
        events_per_read=sum(record.events for record in records) / reads if reads else None,
    )


def _spread(quantity: Callable[[RequestRecord], float | None], records: Iterable[RequestRecord]) -> Spread:
    return Spread.of(quantity(record) for record in records)


def _lasted(records: Sequence[RequestRecord]) -> float:
    if not records:
        return 0.0
    return max(record.finished_at for record in records) - min(record.due_at for record in records)
