"""The twin's faults turn from outside, and a wrong turn is refused in words."""

from collections.abc import Iterator
from dataclasses import asdict

import httpx
import pytest

from shakedown.engine import knobs
from shakedown.engine.twin import knobs as inside
from shakedown.errors import HarnessError


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[inside.KnobPanel, str]]:
    panel = inside.KnobPanel()
    server = panel.serve(port=0, host="127.0.0.1")
    yield panel, f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def panel(served: tuple[inside.KnobPanel, str]) -> inside.KnobPanel:
    served[0].turn(asdict(inside.Knobs()))
    return served[0]


@pytest.fixture
def url(panel: inside.KnobPanel, served: tuple[inside.KnobPanel, str]) -> str:
    return served[1]


def test_harness_and_twin_mean_the_same_knobs() -> None:
    assert asdict(knobs.Knobs()) == asdict(inside.Knobs())


async def test_a_knob_turned_outside_is_turned_inside(panel: inside.KnobPanel, url: str) -> None:
    wanted = knobs.Knobs(step_slowdown=4.0, hang=True)

    assert await knobs.turn(url, wanted) == wanted
    assert asdict(panel.now) == asdict(wanted)
    assert await knobs.read(url) == wanted


async def test_turning_back_leaves_nothing_wrong(panel: inside.KnobPanel, url: str) -> None:
    await knobs.turn(url, knobs.Knobs(oom=True, memory_pressure_gib=3))
    await knobs.turn(url, knobs.Knobs())

    assert panel.now == inside.Knobs()


async def test_a_refusal_reaches_the_caller_with_its_reason(panel: inside.KnobPanel, url: str) -> None:
    with pytest.raises(HarnessError, match="step_slowdown takes a number above 0"):
        await knobs.turn(url, knobs.Knobs(step_slowdown=0))
    assert panel.now == inside.Knobs()


async def test_an_engine_that_does_not_answer_is_named() -> None:
    with pytest.raises(HarnessError, match=r"knobs at http://127\.0\.0\.1:9 "):
        await knobs.read("http://127.0.0.1:9")


async def test_an_answer_from_something_else_is_not_taken_for_knobs(monkeypatch: pytest.MonkeyPatch) -> None:
    async def something_else(*_: object, **__: object) -> httpx.Response:
        return httpx.Response(200, text="<html>", request=httpx.Request("GET", "http://pod"))

    monkeypatch.setattr(httpx.AsyncClient, "request", something_else)

    with pytest.raises(HarnessError, match=r"knobs at http://pod refused: HTTP 200, '<html>'"):
        await knobs.read("http://pod")


async def test_another_path_is_not_found(url: str) -> None:
    async with httpx.AsyncClient(trust_env=False) as client:
        assert (await client.get(f"{url}/health")).status_code == 404
        assert (await client.put(f"{url}/other", json={"hang": True})).status_code == 404


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"step_slowdwon": 2}, "unknown knob 'step_slowdwon'; known: step_slowdown, hang"),
        ({"hang": 1}, "knob hang takes true or false, not 1"),
        ({"step_slowdown": True}, "knob step_slowdown takes a number"),
        ({"step_slowdown": float("nan")}, "knob step_slowdown takes a number"),
        ({"memory_pressure_gib": -1}, "knob memory_pressure_gib takes a number of 0 or more"),
    ],
)
def test_a_knob_that_cannot_be_is_refused_whole(
    panel: inside.KnobPanel, changes: dict[str, object], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        panel.turn({"oom": True, **changes})
    assert panel.now == inside.Knobs()
