"""Both clocks in one place: wall time joins records of different sources, monotonic time measures durations."""

import time
from typing import Protocol


class Clock(Protocol):
    """What the harness needs to know about time; tests hand in one that does not run by itself."""

    def now(self) -> float:
        """Seconds since the Unix epoch."""
        ...

    def elapsed(self) -> float:
        """Seconds of a monotonic clock with an arbitrary origin."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def now(self) -> float:
        return time.time()

    def elapsed(self) -> float:
        return time.monotonic()


SYSTEM_CLOCK = SystemClock()
