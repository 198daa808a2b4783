"""A page of numbers that the processes of one load share: the parent says when, the workers say how far."""

import mmap
import os
from array import array
from pathlib import Path
from typing import NamedTuple

from shakedown.load.health import WorkerHealth

_HEADER = 2  # start, stop


class WorkerReport(NamedTuple):
    """One worker's line on the board. All floats: a line is written in one go."""

    ready: float = 0.0
    due: float = 0.0
    sent: float = 0.0
    ended: float = 0.0
    completed: float = 0.0
    tokens: float = 0.0
    loop_lag_p99_s: float = 0.0
    loop_lag_max_s: float = 0.0
    cpu_share: float = 0.0
    starved_share: float = 0.0
    wall_s: float = 0.0
    memory_growth_bytes: float = 0.0

    @property
    def health(self) -> WorkerHealth:
        return WorkerHealth(
            loop_lag_p99_s=self.loop_lag_p99_s,
            loop_lag_max_s=self.loop_lag_max_s,
            cpu_share=self.cpu_share,
            starved_share=self.starved_share,
            wall_s=self.wall_s,
            memory_growth_bytes=self.memory_growth_bytes,
        )


_FIELDS = len(WorkerReport._fields)


class Board:
    """Shared memory of doubles, backed by a file."""

    def __init__(self, path: Path, workers: int) -> None:
        size = 8 * (_HEADER + workers * _FIELDS)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.ftruncate(descriptor, size)
            self._memory = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
        self._cells = memoryview(self._memory).cast("d")
        self._workers = workers

    def close(self) -> None:
        self._cells.release()
        self._memory.close()

    @property
    def start(self) -> float:
        """Monotonic time at which all begin; 0 while it is not known."""
        return self._cells[0]

    @start.setter
    def start(self, at: float) -> None:
        self._cells[0] = at

    @property
    def stop(self) -> bool:
        return self._cells[1] != 0

    def order_stop(self) -> None:
        """Tell all workers to abandon what is under way and leave."""
        self._cells[1] = 1.0

    def report(self, worker: int, report: WorkerReport) -> None:
        self._cells[self._row(worker)] = memoryview(array("d", report))

    def reports(self) -> list[WorkerReport]:
        return [WorkerReport(*self._cells[self._row(worker)]) for worker in range(self._workers)]

    def _row(self, worker: int) -> slice:
        start = _HEADER + worker * _FIELDS
        return slice(start, start + _FIELDS)
