"""What Kubernetes did meanwhile: each pod's transitions, and the warnings it uttered, as marks on the timeline."""

from typing import Protocol

from shakedown.clock import SYSTEM_CLOCK, Clock
from shakedown.cluster.objects import Event, Pod
from shakedown.errors import HarnessError
from shakedown.evidence.beat import Beat
from shakedown.evidence.bundle import ScenarioBundle
from shakedown.judge.records import MarkKind

CREATED = "created"
FIRST_SEEN = "already there"
READY = "ready"
NOT_READY = "not ready"
RESTARTED = "restarted"
BEING_DELETED = "being deleted"
DELETED = "deleted"
WARNING = "Warning"
"""First words of a mark's text; the timeline draws pod phases from them."""

EVENT_CLOCK_S = 1.0
"""Kubernetes counts whole seconds, so an event may seem older than the scenario by that much."""


class ClusterView(Protocol):
    """What is watched."""

    async def pods(self, namespace: str, selector: str = "") -> tuple[Pod, ...]: ...

    async def events(self, namespace: str) -> tuple[Event, ...]: ...


class EventsCollector(Beat):
    """Writes a mark per pod transition and per Warning event of a namespace. Identity is the uid, not the name."""

    def __init__(
        self,
        bundle: ScenarioBundle,
        cluster: ClusterView,
        namespace: str,
        *,
        selector: str = "",
        every_s: float = 1.0,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        super().__init__(every_s)
        self._bundle, self._cluster, self._clock = bundle, cluster, clock
        self._namespace, self._selector = namespace, selector
        self._since = clock.now()
        self._pods: dict[str, Pod] | None = None
        self._counts: dict[tuple[str, str, str], int] = {}
        self._blind = False

    async def tick(self) -> None:
        try:
            pods = await self._cluster.pods(self._namespace, self._selector)
            events = await self._cluster.events(self._namespace)
        except HarnessError as error:
            if not self._blind:
                self._blind = True
                self._mark(f"the API server does not answer: {error}", "API server", MarkKind.NOTE)
            return
        if self._blind:
            self._blind = False
            self._mark("the API server answers again", "API server", MarkKind.NOTE)
        self._compare({pod.uid: pod for pod in pods})
        self._hear(events)

    def _compare(self, now: dict[str, Pod]) -> None:
        before = self._pods
        for uid, pod in now.items():
            known = before.get(uid) if before is not None else None
            for text in _arrival(pod, before is None) if known is None else _transitions(known, pod):
                self._mark(text, pod.name)
        for uid, pod in (before or {}).items():
            if uid not in now:
                self._mark(DELETED, pod.name)
        self._pods = now

    def _hear(self, events: tuple[Event, ...]) -> None:
        for event in events:
            key = (event.involved_uid, event.reason, event.message)
            if event.type != WARNING or event.at < self._since - EVENT_CLOCK_S:
                continue
            if event.count > self._counts.get(key, 0):
                self._counts[key] = event.count
                times = f" (seen {event.count} times)" if event.count > 1 else ""
                text = f"{WARNING} {event.reason}: {event.message}{times}"
                self._bundle.mark(max(event.at, self._since), MarkKind.KUBERNETES, text, event.involved_name)

    def _mark(self, text: str, subject: str, kind: MarkKind = MarkKind.KUBERNETES) -> None:
        self._bundle.mark(self._clock.now(), kind, text, subject)


def _arrival(pod: Pod, at_the_start: bool) -> list[str]:
    where = f" on {pod.node}" if pod.node else ""
    texts = [f"{FIRST_SEEN if at_the_start else CREATED}{where}"]
    return [*texts, READY] if pod.ready else texts


def _transitions(before: Pod, now: Pod) -> list[str]:
    texts = []
    if now.restarts > before.restarts:
        texts.append(f"{RESTARTED}{_how_it_ended(now)}")
    if now.deletion_requested_at is not None and before.deletion_requested_at is None:
        texts.append(BEING_DELETED)
    if now.ready != before.ready and not (BEING_DELETED in texts and not now.ready):
        texts.append(READY if now.ready else NOT_READY)
    return texts


def _how_it_ended(pod: Pod) -> str:
    ends = [container.last_termination for container in pod.containers if container.last_termination]
    told = f" after {ends[-1].reason or 'an end'}, exit code {ends[-1].exit_code}" if ends else ""
    return f"{told} ({pod.restarts} so far)"
