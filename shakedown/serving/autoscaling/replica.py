"""A vLLM replica as a queue: slots that are shared, a time in the engine that grows with the batch."""

import heapq
from collections import deque
from dataclasses import dataclass

from shakedown.errors import UsageError

ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaModel:
    """How long a request takes in a batch of one and in a full one; between them in a straight line.

    A decode step costs a constant (reading the weights) plus a part for each sequence, so that the time in the engine
    is about linear in the batch.
    """

    max_num_seqs: int
    full_service_s: float
    """Seconds in the engine when all slots are taken."""
    alone_service_s: float | None = None
    """Seconds in the engine alone; None: as long as in a full batch, which makes the slots the only limit."""
    prefill_s: float = 0.0
    """From a slot to the first token."""

    def __post_init__(self) -> None:
        if self.max_num_seqs < 1:
            raise UsageError(f"max-num-seqs is at least 1, not {self.max_num_seqs}")
        if not 0 < self.alone_s <= self.full_service_s:
            raise UsageError(
                f"a request takes longer in a full batch than alone, and more than 0 s; got {self.full_service_s:g} s "
                f"and {self.alone_s:g} s"
            )
        if self.alone_s * self.max_num_seqs < self.full_service_s * (1 - ROUNDING):
            raise UsageError(
                f"requests of {self.alone_s:g} s alone and {self.full_service_s:g} s among {self.max_num_seqs} are "
                "served faster one by one; the throughput of a replica does not fall with its batch"
            )
        if not self.prefill_s >= 0:
            raise UsageError(f"the prefill takes 0 s or more, not {self.prefill_s:g}")

    @classmethod
    def of_rate(
        cls, requests_per_s: float, max_num_seqs: int, *, alone_service_s: float | None = None, prefill_s: float = 0.0
    ) -> "ReplicaModel":
        """From the highest throughput of a replica, as a load test measures it: Little's law gives the time."""
        if not requests_per_s > 0:
            raise UsageError(f"the service rate must be positive, not {requests_per_s:g}")
        return cls(
            max_num_seqs=max_num_seqs,
            full_service_s=max_num_seqs / requests_per_s,
            alone_service_s=alone_service_s,
            prefill_s=prefill_s,
        )

    @property
    def alone_s(self) -> float:
        return self.full_service_s if self.alone_service_s is None else self.alone_service_s

    @property
    def rate_per_s(self) -> float:
        """Requests a second with all slots taken."""
        return self.max_num_seqs / self.full_service_s

    def service_s(self, batch: float) -> float:
        """Seconds in the engine if the batch stayed as it is."""
        if self.max_num_seqs == 1:
            return self.full_service_s
        share = (batch - 1) / (self.max_num_seqs - 1)
        return self.alone_s + (self.full_service_s - self.alone_s) * share

    def in_flight_at(self, requests_per_s: float) -> float:
        """Requests in the engine when they arrive at a rate that it can serve: rate × time in the engine.

        With time = a + b × batch, Little's law gives batch = rate × (a − b + b × batch).
        """
        per_sequence_s = (self.full_service_s - self.alone_s) / max(self.max_num_seqs - 1, 1)
        return requests_per_s * (self.alone_s - per_sequence_s) / (1 - requests_per_s * per_sequence_s)


class Engine:
    """One replica at work. Requests are numbers; each is one unit of work, and all that run go on at the same speed."""

    def __init__(self, model: ReplicaModel, queue: deque[int]) -> None:
        self.model = model
        self.queue = queue
        self._running: list[tuple[float, int]] = []
        self._progress = 0.0
        self._seen_s = 0.0

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def has_slot(self) -> bool:
        return len(self._running) < self.model.max_num_seqs

    def start(self, request: int, now_s: float) -> None:
        self._advance(now_s)
        heapq.heappush(self._running, (self._progress + 1.0, request))

    def finish_next(self, now_s: float) -> int:
        """Take out the request that is done now."""
        self._advance(now_s)
        end, request = heapq.heappop(self._running)
        self._progress = max(self._progress, end)
        return request

    def next_finish_s(self) -> float | None:
        """When the next request is done if none starts before."""
        if not self._running:
            return None
        left = max(self._running[0][0] - self._progress, 0.0)
        return self._seen_s + left * self.model.service_s(len(self._running))

    def abandon(self) -> tuple[int, ...]:
        """The requests that are lost when the process is killed now."""
        lost = (*(request for _, request in self._running), *self.queue)
        self._running.clear()
        self.queue.clear()
        return lost

    def _advance(self, now_s: float) -> None:
        if self._running:
            self._progress += (now_s - self._seen_s) / self.model.service_s(len(self._running))
        self._seen_s = now_s
