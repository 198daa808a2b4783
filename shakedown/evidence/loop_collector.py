"""Samples every link of an autoscaling loop at once, twice a second, so that a lag has a place."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from shakedown.clock import SYSTEM_CLOCK, Clock
from shakedown.errors import HarnessError
from shakedown.evidence.beat import Beat
from shakedown.evidence.bundle import ScenarioBundle
from shakedown.judge.loop import SCALER
from shakedown.judge.records import MarkKind, MetricSample

EVERY_S = 0.5

Look = Callable[[], Awaitable[Mapping[str, float]]]
"""Values by name; a link that has no answer leaves its name out, or raises HarnessError."""


class LoopCollector(Beat):
    """Writes a MetricSample of the loop each beat; a link that falls silent, or speaks again, is a mark."""

    def __init__(self, bundle: ScenarioBundle, links: Mapping[str, Look], *, clock: Clock = SYSTEM_CLOCK) -> None:
        """`links`: what to look at, by a name for people."""
        super().__init__(EVERY_S)
        self._bundle, self._links, self._clock = bundle, links, clock
        self._silent: set[str] = set()

    async def tick(self) -> None:
        at = self._clock.now()
        looks = await asyncio.gather(*(self._look(name, look) for name, look in self._links.items()))
        values = {key: value for seen in looks for key, value in seen.items()}
        self._bundle.sample(MetricSample(at=at, pod=SCALER, values=values))

    async def _look(self, name: str, look: Look) -> Mapping[str, float]:
        try:
            seen = await look()
        except HarnessError as error:
            self._say(name, f"does not answer: {error}")
            return {}
        if not seen:
            self._say(name, "answers that there is no such series, which is not zero")
        elif name in self._silent:
            self._silent.discard(name)
            self._bundle.mark(self._clock.now(), MarkKind.NOTE, "answers again", name)
        return seen

    def _say(self, name: str, what: str) -> None:
        if name not in self._silent:
            self._silent.add(name)
            self._bundle.mark(self._clock.now(), MarkKind.NOTE, what, name)
