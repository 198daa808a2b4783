"""What a run writes down while it happens. Frozen, append-only, and all that any judgement may look at.

Every time in a record is wall time in seconds since the Unix epoch, so that records of different sources join.
"""

from dataclasses import dataclass, field
from enum import StrEnum


class Outcome(StrEnum):
    """How one request ended. Exactly one applies."""

    COMPLETED = "completed"
    TRUNCATED = "truncated"  # the stream ended without a finish reason, or without [DONE]
    ERROR_CHUNK = "error_chunk"  # an error object inside a 200
    EMPTY = "empty"  # a finished stream that carried no token
    REFUSED = "refused"  # 429 or 503: the server shed load
    REJECTED = "rejected"  # any other 4xx: the request was wrong
    FAILED = "failed"  # 5xx other than 503, or an unexpected status
    CONNECTION_LOST = "connection_lost"
    TIMED_OUT = "timed_out"  # the whole request outlived its limit
    HUNG = "hung"  # no byte for longer than the silence limit
    ABANDONED = "abandoned"  # we left on purpose


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """What happened to one request."""

    id: str
    traffic_class: str = "default"
    due_at: float
    """When the arrival plan wanted it sent. Latency counts from here."""
    sent_at: float
    first_byte_at: float | None = None
    token_times: tuple[float, ...] = ()
    """One arrival time per content-bearing delta (content, reasoning or tool call), in order."""
    finished_at: float
    outcome: Outcome
    http_status: int | None = None
    finish_reason: str | None = None
    saw_done: bool = False
    prompt_tokens: int | None = None
    """As the server's usage says; None when it said nothing."""
    completion_tokens: int | None = None
    served_by: str | None = None
    """Pod that answered, when the server says so."""
    error: str | None = None
    text: str | None = None
    """The answer, kept only when the scenario compares answers."""
    reads: int = 0
    """Socket reads that carried events; far fewer than events means that a hop buffers."""
    events: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSample:
    """One scrape of one engine pod: gauges and counters by their vLLM name, histograms by _sum and _count."""

    at: float
    pod: str
    values: dict[str, float]


class MarkKind(StrEnum):
    """What kind of moment a mark on the timeline is."""

    LOAD_STARTED = "load_started"
    LOAD_ENDED = "load_ended"
    FAULT_STARTED = "fault_started"
    FAULT_LANDED = "fault_landed"
    FAULT_ENDED = "fault_ended"
    RECOVERED = "recovered"
    KUBERNETES = "kubernetes"  # an event or a pod transition seen through the API
    NOTE = "note"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """One moment on the timeline."""

    at: float
    kind: MarkKind
    text: str
    subject: str = ""
    """Pod, node, fault or other object it is about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One observed value that no stream of records carries, such as a status code or a list of differences."""

    name: str
    value: str | int | float | bool | list[str] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """All the records of one scenario."""

    requests: tuple[RequestRecord, ...] = ()
    samples: tuple[MetricSample, ...] = ()
    marks: tuple[Mark, ...] = ()
    facts: dict[str, Fact] = field(default_factory=dict)
    request_files: tuple[str, ...] = ()
    """Where the requests lie: each load of a scenario that has several writes a file of its own."""
