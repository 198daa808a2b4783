"""The only polling loop: each wait has a name, a deadline and a memory of what it last saw."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from shakedown.clock import SYSTEM_CLOCK, Clock
from shakedown.errors import WaitTimeout

T = TypeVar("T")


async def wait_until(
    what: str,
    observe: Callable[[], Awaitable[T]],
    holds: Callable[[T], bool],
    *,
    within_s: float,
    every_s: float = 0.25,
    tolerate: tuple[type[Exception], ...] = (),
    clock: Clock = SYSTEM_CLOCK,
) -> T:
    """Poll `observe` until `holds` accepts what it saw, and return that.

    Raises WaitTimeout with the last sighting. Errors outside `tolerate` surface at once: forbidden is not "not yet".
    """
    deadline = clock.elapsed() + within_s
    last_seen: object = "nothing yet"
    while True:
        try:
            sighting = await observe()
            if holds(sighting):
                return sighting
            last_seen = sighting
        except tolerate as error:
            last_seen = f"{type(error).__name__}: {error}"
        if clock.elapsed() >= deadline:
            raise WaitTimeout(what, within_s, last_seen)
        await asyncio.sleep(every_s)
