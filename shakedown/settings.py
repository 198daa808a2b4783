"""Everything a run may vary, frozen; built once at the edge and handed to the scenarios as a file."""

import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

import msgspec

from shakedown.errors import UsageError

CLUSTERS = ("embedded", "current")
ENGINES = ("twin", "cpu", "gpu")
TWIN_VERSIONS = ("0.32.0",)
"""Releases of vLLM whose worker the twin can stand in for."""
PROFILES = ("smoke", "nightly", "certify")
DEFAULT_TIME_SCALE = {"smoke": 0.2, "nightly": 0.2, "certify": 0.2}
WHOLE_SECONDS_TOLERANCE = 1e-9


def cache_root() -> Path:
    """Where builds and environments are kept between runs, outside any checkout."""
    if explicit := os.environ.get("SHAKEDOWN_CACHE"):
        return Path(explicit)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shakedown"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """The options of one run."""

    run_dir: str
    """Folder of the run's bundle."""
    profile: str = "smoke"
    cluster: str = "embedded"
    cluster_name: str = "shakedown"
    """Which embedded cluster, when several run side by side."""
    kubeconfig: str | None = None
    context: str | None = None
    kubectl: tuple[str, ...] = ("kubectl",)
    """Command prefix that runs kubectl on this cluster."""
    engine: str = "twin"
    engine_version: str = "0.32.0"
    time_scale: float = 0.2
    """Factor on probe times and load times alike; 1 is the truth."""
    seed: int = 7
    service_url: str | None = None
    """Base URL of the serving endpoint, when it cannot be reached by its cluster address."""

    @property
    def kubeconfig_path(self) -> Path | None:
        """None means the user's own."""
        return Path(self.kubeconfig) if self.kubeconfig else None

    def __post_init__(self) -> None:
        for field, known in (("profile", PROFILES), ("cluster", CLUSTERS), ("engine", ENGINES)):
            if getattr(self, field) not in known:
                raise UsageError(f"unknown {field} {getattr(self, field)!r}; known: {', '.join(known)}")
        if self.engine == "twin" and self.engine_version not in TWIN_VERSIONS:
            raise UsageError(
                f"the twin stands in for a worker of vLLM {', '.join(TWIN_VERSIONS)}, not {self.engine_version}; "
                "older engines run as --engine cpu"
            )
        if not 0 < self.time_scale <= 1:
            raise UsageError(f"the time scale must be above 0 and at most 1, not {self.time_scale:g}")

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` wrote. Raises UsageError for a file that is not that."""
        try:
            return msgspec.convert(msgspec.json.decode(path.read_bytes()), cls)
        except (OSError, msgspec.DecodeError, msgspec.ValidationError) as error:
            raise UsageError(f"{path} is not the settings of a run: {error}") from error

    def save(self, path: Path) -> None:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(asdict(self)), indent=2))

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return tuple(field.name for field in fields(cls))

    def scaled_whole_s(self, seconds: float, what: str) -> int:
        """Seconds of a Kubernetes field at this run's time scale.

        Kubernetes counts whole seconds, and rounding would scale one time and not another: raises UsageError then.
        """
        scaled = seconds * self.time_scale
        if abs(scaled - round(scaled)) > WHOLE_SECONDS_TOLERANCE or (seconds > 0 and round(scaled) < 1):
            raise UsageError(
                f"time scale {self.time_scale:g} turns {what} of {seconds:g} s into {scaled:g} s, and Kubernetes "
                "counts whole seconds; take a scale that keeps every probe time whole, such as 0.2, 0.4 or 1"
            )
        return round(scaled)


def as_plain(value: Any) -> Any:
    """A frozen value as JSON-ready builtins."""
    return msgspec.to_builtins(value)
