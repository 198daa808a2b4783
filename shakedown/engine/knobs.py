"""Turns the twin's faults from outside its pod."""

from dataclasses import asdict, dataclass

import httpx
import msgspec

from shakedown.errors import HarnessError

ANSWER_LIMIT_S = 5.0
REASON_CHARACTERS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Knobs:
    """Faults of the modelled device; as delivered, nothing is wrong. The twin's own copy is `twin.knobs.Knobs`."""

    step_slowdown: float = 1.0
    """Every step takes this many times as long."""
    hang: bool = False
    device_error: bool = False
    oom: bool = False
    memory_pressure_gib: float = 0.0
    """Device memory that somebody took since the start; steps die when utilisation left less than that."""


async def read(url: str) -> Knobs:
    """The knobs of the engine whose control server is at `url`. Raises HarnessError if it does not answer."""
    return await _exchange("GET", url, None)


async def turn(url: str, knobs: Knobs) -> Knobs:
    """Set every knob; returns what the engine now has. Raises HarnessError if it does not answer or refuses."""
    return await _exchange("PUT", url, asdict(knobs))


async def _exchange(verb: str, url: str, body: dict[str, object] | None) -> Knobs:
    try:
        async with httpx.AsyncClient(timeout=ANSWER_LIMIT_S, trust_env=False) as client:
            answer = await client.request(verb, f"{url}/knobs", json=body)
    except httpx.HTTPError as error:
        raise HarnessError(f"the twin's knobs at {url} did not answer: {error or type(error).__name__}") from error
    try:
        content = answer.json()
        if answer.is_success:
            return msgspec.convert(content, Knobs)
        reason = content["error"]
    except (ValueError, KeyError, TypeError):
        reason = f"HTTP {answer.status_code}, {answer.text[:REASON_CHARACTERS]!r}"
    raise HarnessError(f"the twin's knobs at {url} refused: {reason}")
