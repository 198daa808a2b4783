"""What a fault would do now: its victims, how each is put back, and what was measured before."""

from collections.abc import Awaitable, Callable
from typing import ClassVar, Protocol, TypeVar

import msgspec

from shakedown.chaos.target import Target, Victim
from shakedown.chaos.undo import UndoStep
from shakedown.cluster.api import Cluster
from shakedown.errors import FaultDidNotLand, WaitTimeout
from shakedown.waiting import wait_until

T = TypeVar("T")


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The resolved form of a fault. It is made once, before anything is touched, and travels as JSON."""

    run_id: str
    victims: tuple[Victim, ...]
    bystanders: int
    """Targets of the same kind that stay unharmed."""
    undo: tuple[UndoStep, ...] = ()
    before: dict[str, float] = {}
    """Numbers measured before the fault, for the proof that it landed."""


class Fault(Protocol):
    """A fault as a value. `preview` touches nothing; `landed` raises FaultDidNotLand."""

    kind: ClassVar[str]
    summary: ClassVar[str]
    """One line for the help."""

    @property
    def target(self) -> Target: ...

    @property
    def duration_s(self) -> float:
        """How long it stays after it has landed; 0 for what happens in an instant."""
        ...

    async def preview(self, cluster: Cluster, run_id: str) -> Plan: ...

    async def act(self, cluster: Cluster, plan: Plan) -> str: ...

    async def landed(self, cluster: Cluster, plan: Plan) -> str: ...

    async def gone(self, cluster: Cluster, plan: Plan) -> str: ...


async def landing(what: str, observe: Callable[[], Awaitable[T]], holds: Callable[[T], bool], within_s: float) -> T:
    """Wait for the proof that a fault landed. Raises FaultDidNotLand with the last sighting."""
    try:
        return await wait_until(what, observe, holds, within_s=within_s)
    except WaitTimeout as error:
        raise FaultDidNotLand(f"the fault had no effect: {error}") from error
