"""Records that cannot be true. A verdict on such records would be a verdict on our own bugs."""

from collections.abc import Sequence
from itertools import pairwise

from shakedown.judge.records import Outcome, RequestRecord

CLOCK_TOLERANCE_S = 0.005
"""Wall times are derived from a monotonic clock by one offset, so only rounding can turn them round."""
NAMED_AT_MOST = 3


def contradictions(records: Sequence[RequestRecord]) -> tuple[str, ...]:
    """One sentence for each kind of impossible record, with the first ids that show it."""
    kinds: dict[str, list[str]] = {}
    for record in records:
        for kind in _contradictions_of(record):
            kinds.setdefault(kind, []).append(record.id)
    return tuple(
        f"{len(ids)} request{'s' if len(ids) > 1 else ''} {kind} (such as {', '.join(ids[:NAMED_AT_MOST])})"
        for kind, ids in kinds.items()
    )


def _contradictions_of(record: RequestRecord) -> list[str]:
    instants = [record.due_at, record.sent_at]
    instants += [record.first_byte_at] if record.first_byte_at is not None else []
    instants += [*record.token_times, record.finished_at]
    found = []
    if any(later < earlier - CLOCK_TOLERANCE_S for earlier, later in pairwise(instants)):
        found.append("ran backwards in time")
    if record.outcome is Outcome.COMPLETED and not record.token_times:
        found.append("completed without a token")
    if record.outcome is Outcome.EMPTY and record.token_times:
        found.append("are called empty and carry tokens")
    return found
