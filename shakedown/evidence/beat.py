"""Something done at a steady beat beside a scenario, for as long as its block lasts."""

import asyncio
import contextlib
from abc import ABC, abstractmethod
from typing import Self


class Beat(ABC):
    """`async with` it: `tick` runs at once, then every `every_s`, and one last time when the block ends.

    An error that `tick` does not expect ends the beat and is raised when the block ends: evidence must not go
    missing in silence.
    """

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._over = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @abstractmethod
    async def tick(self) -> None:
        """Look once and write down what was seen."""

    async def __aenter__(self) -> Self:
        self._over.clear()
        self._task = asyncio.create_task(self._run(), name=type(self).__name__)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._over.set()
        if self._task is not None:
            await self._task

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            await self.tick()
            if self._over.is_set():
                return
            due = max(due + self._every_s, loop.time())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._over.wait(), due - loop.time())
