"""What one request felt like. Every quantity is in seconds and counts from the instant the request was due."""

from itertools import pairwise

from shakedown.judge.records import RequestRecord


def ttft(record: RequestRecord) -> float | None:
    """Time to first token, from due; None if none came."""
    return record.token_times[0] - record.due_at if record.token_times else None


def send_lag(record: RequestRecord) -> float:
    """How late our own client sent it. Part of ttft, and a measure of the client, not of the server."""
    return record.sent_at - record.due_at


def token_count(record: RequestRecord) -> int:
    """Tokens that arrived: as the server counts them when it does, since one delta can carry several."""
    return max(len(record.token_times), record.completion_tokens or 0)


def tpot(record: RequestRecord) -> float | None:
    """Mean time per output token after the first; None if fewer than two deltas arrived."""
    if len(record.token_times) < 2:
        return None
    return (record.token_times[-1] - record.token_times[0]) / (token_count(record) - 1)


def inter_token_latencies(record: RequestRecord) -> tuple[float, ...]:
    """Each gap between consecutive deltas."""
    times = record.token_times
    return tuple(later - earlier for earlier, later in pairwise(times))


def longest_gap(record: RequestRecord) -> float | None:
    """The longest that a reader of a begun answer saw nothing happen, the wait for its end included; None unbegun."""
    if not record.token_times:
        return None
    return max((*inter_token_latencies(record), record.finished_at - record.token_times[-1]))


def e2e_latency(record: RequestRecord) -> float:
    """From due to the end, whatever the end was."""
    return record.finished_at - record.due_at
