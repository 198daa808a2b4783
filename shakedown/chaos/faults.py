"""All the faults there are: frozen values that are valid by construction and travel as JSON."""

from typing import Any, TypeAlias

import msgspec

from shakedown.chaos.enginefaults import (
    EngineDeviceError,
    EngineHang,
    EngineMemoryPressure,
    EngineOom,
    EngineSlow,
)
from shakedown.chaos.networkfaults import NetworkPartition
from shakedown.chaos.nodefaults import Cordon, Drain, Scale, Taint
from shakedown.chaos.nodeloss import NodeLoss
from shakedown.chaos.plan import Fault, Plan
from shakedown.chaos.podfaults import ContainerKill, PodEvict, PodKill
from shakedown.chaos.rollout import RolloutRestart
from shakedown.chaos.target import Count, NotExercised, Percent, Target, Victim
from shakedown.errors import UsageError

AnyFault: TypeAlias = (
    PodKill
    | PodEvict
    | ContainerKill
    | EngineHang
    | EngineSlow
    | EngineOom
    | EngineMemoryPressure
    | EngineDeviceError
    | Cordon
    | Drain
    | Taint
    | NodeLoss
    | Scale
    | RolloutRestart
    | NetworkPartition
)
FAULTS: tuple[type[AnyFault], ...] = (
    PodKill,
    PodEvict,
    ContainerKill,
    EngineHang,
    EngineSlow,
    EngineOom,
    EngineMemoryPressure,
    EngineDeviceError,
    Cordon,
    Drain,
    Taint,
    NodeLoss,
    Scale,
    RolloutRestart,
    NetworkPartition,
)
KINDS: dict[str, type[AnyFault]] = {fault.kind: fault for fault in FAULTS}

__all__ = [
    "FAULTS",
    "KINDS",
    "AnyFault",
    "ContainerKill",
    "Cordon",
    "Count",
    "Drain",
    "EngineDeviceError",
    "EngineHang",
    "EngineMemoryPressure",
    "EngineOom",
    "EngineSlow",
    "Fault",
    "NetworkPartition",
    "NodeLoss",
    "NotExercised",
    "Percent",
    "Plan",
    "PodEvict",
    "PodKill",
    "RolloutRestart",
    "Scale",
    "Taint",
    "Target",
    "Victim",
    "build",
    "from_plain",
    "to_plain",
]


def build(kind: str, target: Target, **parameters: Any) -> AnyFault:
    """A fault by its kind. Raises UsageError for an unknown kind, or a parameter that it lacks or does not have."""
    if kind not in KINDS:
        raise UsageError(f"unknown fault {kind!r}; known: {', '.join(KINDS)}")
    known = {field.name: field.required for field in msgspec.structs.fields(KINDS[kind])}
    for name in parameters:
        if name not in known:
            raise UsageError(f"the fault {kind} has no {_option(name)}; it has: {', '.join(map(_option, known))}")
    for name, required in known.items():
        if required and name not in parameters and name != "target":
            raise UsageError(f"the fault {kind} needs {_option(name)}")
    try:
        return from_plain({"type": kind, "target": msgspec.to_builtins(target), **parameters})
    except msgspec.ValidationError as error:
        raise UsageError(f"the fault {kind}: {error}") from error


def to_plain(fault: AnyFault) -> dict[str, Any]:
    """JSON-ready builtins."""
    plain: dict[str, Any] = msgspec.to_builtins(fault)
    return plain


def from_plain(plain: dict[str, Any]) -> AnyFault:
    """What `to_plain` made. Raises msgspec.ValidationError."""
    fault: AnyFault = msgspec.convert(plain, AnyFault)
    return fault


def _option(name: str) -> str:
    return {"duration_s": "--duration", "within_s": "--within"}.get(name, "--" + name.replace("_", "-"))
