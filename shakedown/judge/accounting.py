"""Nothing is lost from the books: every request sent has exactly one outcome, and those caught by a fault are named."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from shakedown.judge.records import Outcome, RequestRecord
from shakedown.judge.windows import Window


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounting:
    """What became of all requests."""

    recorded: int
    by_outcome: dict[Outcome, int]
    repeated: tuple[str, ...]
    """Ids that more than one record claims."""
    missing: int
    """Requests that the client says it sent and that no record tells the end of; negative if there are too many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caught:
    """A request that was under way when a fault struck."""

    record: RequestRecord
    tokens_before: int
    tokens_after: int


def account(records: Sequence[RequestRecord], sent: int | None = None) -> Accounting:
    """Count each outcome. `sent`: how many the client sent, by its own count."""
    ids = Counter(record.id for record in records)
    return Accounting(
        recorded=len(records),
        by_outcome=dict(Counter(record.outcome for record in records)),
        repeated=tuple(sorted(id_ for id_, count in ids.items() if count > 1)),
        missing=0 if sent is None else sent - len(ids),
    )


def in_flight(records: Sequence[RequestRecord], strike: Window) -> tuple[Caught, ...]:
    """Each request that was under way at some instant of the strike, both ends included, oldest first."""
    caught = []
    for record in sorted(records, key=lambda record: record.sent_at):
        if record.sent_at <= strike.end and record.finished_at > strike.start:
            before = sum(time <= strike.end for time in record.token_times)
            caught.append(Caught(record=record, tokens_before=before, tokens_after=len(record.token_times) - before))
    return tuple(caught)
