"""One way through a gateway to a backend, whoever the gateway is: what the rules about streams need to know."""

from dataclasses import dataclass

from shakedown.serving.lint.world import Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a gateway waits before it gives up."""

    setting: str
    """What the gateway calls it."""
    seconds: float | None
    """Infinity for no limit; None where only the implementation knows."""
    given: bool
    """Whether somebody chose it; a default otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One route, defaults filled in."""

    place: Place
    buffers: str
    """What says that answers are held back; empty where they are passed on as they come."""
    patience: Patience
    repeats: str
    """What says that a generation may be asked for twice; empty where it may not."""
    ignores_abort: bool = False
    connecting: Patience | None = None
    """The same for a connection to the backend; None where only the implementation knows."""
