"""What users were promised, and how much of what they sent met it."""

from collections.abc import Sequence
from dataclasses import dataclass

from shakedown.judge.latency import e2e_latency, tpot, ttft
from shakedown.judge.records import Outcome, RequestRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class SLO:
    """Service level objectives of one request, each an upper limit in seconds; None: not promised."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None

    def __str__(self) -> str:
        promised = (("TTFT", self.ttft_s), ("TPOT", self.tpot_s), ("E2E", self.e2e_s))
        return ", ".join(f"{name} ≤ {limit:g} s" for name, limit in promised if limit is not None) or "completion"

    def missed_by(self, record: RequestRecord) -> tuple[str, ...]:
        """Names of the objectives that a completed request missed.

        A quantity that a request does not have, such as the TPOT of a one-token answer, is no miss.
        """
        felt = (
            ("TTFT", ttft(record), self.ttft_s),
            ("TPOT", tpot(record), self.tpot_s),
            ("E2E", e2e_latency(record), self.e2e_s),
        )
        return tuple(name for name, value, limit in felt if value is not None and limit is not None and value > limit)


def is_good(record: RequestRecord, slo: SLO) -> bool:
    """True if it completed and met every objective."""
    return record.outcome is Outcome.COMPLETED and not slo.missed_by(record)


def goodput(records: Sequence[RequestRecord], slo: SLO) -> float | None:
    """Good requests ÷ requests sent, whatever became of them; None if none was sent."""
    return sum(is_good(record, slo) for record in records) / len(records) if records else None


def goodput_rate(records: Sequence[RequestRecord], slo: SLO) -> float | None:
    """Good requests per second, from the first due time to the last end; None without any such time."""
    if not records:
        return None
    lasted_s = max(record.finished_at for record in records) - min(record.due_at for record in records)
    return sum(is_good(record, slo) for record in records) / lasted_s if lasted_s > 0 else None
