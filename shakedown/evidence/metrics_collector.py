"""Scrapes every engine pod once a second: Prometheus' own interval is too coarse for a queue that fills in three."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Self

import httpx

from shakedown.clock import SYSTEM_CLOCK, Clock
from shakedown.errors import HarnessError
from shakedown.evidence.beat import Beat
from shakedown.evidence.bundle import ScenarioBundle
from shakedown.judge.records import MarkKind, MetricSample

SCRAPE_LIMIT_S = 2.0
PREFIX = "vllm:"
NOT_KEPT = ("_bucket", "_created")
"""Buckets are ten times all the rest, and no judgement reads them."""


class MetricsCollector(Beat):
    """Writes a MetricSample per pod and second; a pod that does not answer is one mark per outage."""

    def __init__(
        self,
        bundle: ScenarioBundle,
        targets: Callable[[], Awaitable[Mapping[str, str]]],
        parse: Callable[[str], Mapping[str, float]],
        *,
        every_s: float = 1.0,
        clock: Clock = SYSTEM_CLOCK,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """`targets`: pod name → base URL (or URL of its metrics) of the pods to scrape now.

        `parse`: exposition text → value by metric name.
        """
        super().__init__(every_s)
        self._bundle, self._targets, self._parse, self._clock = bundle, targets, parse, clock
        self._transport = transport
        self._client: httpx.AsyncClient | None = None
        self._silent: set[str] = set()

    async def __aenter__(self) -> Self:
        self._client = httpx.AsyncClient(timeout=SCRAPE_LIMIT_S, trust_env=False, transport=self._transport)
        return await super().__aenter__()

    async def __aexit__(self, *_: object) -> None:
        try:
            await super().__aexit__()
        finally:
            if self._client is not None:
                await self._client.aclose()

    async def tick(self) -> None:
        try:
            targets = await self._targets()
        except HarnessError as error:
            self._note_silence("the list of engine pods", str(error))
            return
        self._silent.discard("the list of engine pods")
        await asyncio.gather(*(self._scrape(pod, url) for pod, url in targets.items()))

    async def _scrape(self, pod: str, url: str) -> None:
        assert self._client is not None
        try:
            answer = await self._client.get(url if url.endswith("/metrics") else f"{url.rstrip('/')}/metrics")
            answer.raise_for_status()
            values = self._parse(answer.text)
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            self._note_silence(pod, str(error) or type(error).__name__)
            return
        if pod in self._silent:
            self._silent.discard(pod)
            self._bundle.mark(self._clock.now(), MarkKind.NOTE, "metrics answer again", pod)
        kept = {name: value for name, value in values.items() if _is_kept(name) and math.isfinite(value)}
        self._bundle.sample(MetricSample(at=self._clock.now(), pod=pod, values=kept))

    def _note_silence(self, subject: str, why: str) -> None:
        if subject not in self._silent:
            self._silent.add(subject)
            self._bundle.mark(self._clock.now(), MarkKind.NOTE, f"metrics cannot be read: {why}", subject)


def _is_kept(name: str) -> bool:
    return name.startswith(PREFIX) and not name.endswith(NOT_KEPT)
