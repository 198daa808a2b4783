"""How long each phase of a start takes: said as it ends, and kept."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from shakedown.clock import SYSTEM_CLOCK, Clock


class Phases:
    """Phases of one start. Several may be under way at once."""

    def __init__(self, report: Callable[[str], None], clock: Clock = SYSTEM_CLOCK) -> None:
        self._report, self._clock = report, clock
        self._began = clock.elapsed()
        self.seconds: dict[str, float] = {}

    @property
    def elapsed_s(self) -> float:
        return self._clock.elapsed() - self._began

    @contextlib.contextmanager
    def measured(self, name: str) -> Iterator[None]:
        """Measure the block; one that fails is not counted as done."""
        began = self._clock.elapsed()
        yield
        self.seconds[name] = round(self._clock.elapsed() - began, 2)
        self._report(f"{name}: {self.seconds[name]:.1f} s (at {self.elapsed_s:.1f} s)")

    def reached(self, name: str) -> None:
        """Note a moment, counted from the start."""
        self.seconds[name] = round(self.elapsed_s, 2)
        self._report(f"{name} after {self.seconds[name]:.1f} s")


async def together(*steps: Coroutine[Any, Any, None]) -> None:
    """Run steps side by side; the first failure ends the others and is raised as itself."""
    try:
        async with asyncio.TaskGroup() as group:
            for step in steps:
                group.create_task(step)
    except BaseExceptionGroup as several:
        raise several.exceptions[0] from several.exceptions[0].__cause__
