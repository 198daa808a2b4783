"""When the requests of `shakedown load` are due, from its options."""

from collections.abc import Callable
from typing import Any

from shakedown.errors import UsageError
from shakedown.load import Arrivals, Burst, ClosedLoop, Constant, Gamma, Poisson, Ramp, Sinusoid, Steps, Trace

KINDS = ("rate", "constant", "users", "burst", "ramp", "steps", "wave", "trace")
"""Options of which one may be given."""
Plan = tuple[Arrivals | ClosedLoop, str]
"""The arrivals of one load, and their name."""


def load_plans(asked: dict[str, Any], sweep: str | None, users_sweep: bool) -> list[Plan]:
    """One for each load that is to run. Raises UsageError."""
    if asked["duration"] <= 0:
        raise UsageError("--duration must be positive")
    given = [f"--{name}" for name in KINDS if asked[name] is not None] + (["--sweep"] if sweep is not None else [])
    if len(given) > 1:
        raise UsageError(f"choose one of {', '.join(given)}: each says when requests are due")
    if sweep is not None:
        return [_plan({**asked, ("users" if users_sweep else "rate"): step}) for step in _levels(sweep, users_sweep)]
    return [_plan(asked)]


def _levels(sweep: str, whole: bool) -> list[float]:
    try:
        return sorted(int(step) if whole else float(step) for step in sweep.split(","))
    except ValueError:
        raise UsageError(f"--sweep takes numbers with commas between, such as 1,2,4; got {sweep!r}") from None


def _plan(asked: dict[str, Any]) -> Plan:
    kind = next((kind for kind in KINDS if asked[kind] is not None), "rate")
    return MAKERS[kind]({**asked, "rate": 1.0 if asked["rate"] is None else asked["rate"]})


def _rate(asked: dict[str, Any]) -> Plan:
    rate, burstiness = asked["rate"], asked["burstiness"]
    if burstiness is not None:
        return Gamma(rate, burstiness, asked["seed"]), f"{rate:g} req/s, burstiness {burstiness:g}"
    return Poisson(rate, asked["seed"]), f"{rate:g} req/s"


def _ramp(asked: dict[str, Any]) -> Plan:
    start, end = _numbers("ramp", asked["ramp"], "2,20", 2)
    return Ramp(start, end, asked["seed"]), f"{start:g} to {end:g} req/s"


def _wave(asked: dict[str, Any]) -> Plan:
    mean, amplitude, period_s = _numbers("wave", asked["wave"], "10,0.8,60", 3)
    return Sinusoid(mean, amplitude, period_s, asked["seed"]), f"{mean:g} req/s ± {amplitude:.0%} every {period_s:g} s"


def _steps(asked: dict[str, Any]) -> Plan:
    steps = tuple(_step(word) for word in asked["steps"].split(","))
    return Steps(steps, asked["seed"]), " then ".join(f"{rate:g}" for rate, _ in steps) + " req/s"


MAKERS: dict[str, Callable[[dict[str, Any]], Plan]] = {
    "rate": _rate,
    "constant": lambda asked: (Constant(asked["constant"]), f"{asked['constant']:g} req/s at equal distances"),
    "users": lambda asked: (ClosedLoop(asked["users"], asked["think_time"]), f"{asked['users']} users"),
    "burst": lambda asked: (Burst(asked["burst"]), f"burst of {asked['burst']}"),
    "ramp": _ramp,
    "steps": _steps,
    "wave": _wave,
    "trace": lambda asked: (Trace(asked["trace"]), f"trace {asked['trace']}"),
}


def _step(word: str) -> tuple[float, float]:
    rate, seconds = _numbers("steps", word.replace(":", ","), "2:30,8:60", 2)
    return rate, seconds


def _numbers(option: str, text: str, example: str, count: int) -> list[float]:
    try:
        numbers = [float(word) for word in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) != count:
        raise UsageError(f"--{option} looks like {example}; got {text!r}")
    return numbers
