"""Collectors write what they saw, once, and survive what they watch."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import httpx
import pytest

from shakedown.cluster.objects import Condition, ContainerStatus, Event, Pod, Termination
from shakedown.errors import ClusterUnreachable, HarnessError
from shakedown.evidence.bundle import ScenarioBundle
from shakedown.evidence.events_collector import EventsCollector
from shakedown.evidence.loop_collector import LoopCollector
from shakedown.evidence.metrics_collector import MetricsCollector


class Hands:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.at = 5000.0

    def now(self) -> float:
        return self.at

    def elapsed(self) -> float:
        return self.at


class Stage:
    """A cluster that is whatever the test says it is."""

    def __init__(self) -> None:
        self.pods_now: tuple[Pod, ...] = ()
        self.events_now: tuple[Event, ...] = ()
        self.down = False

    async def pods(self, namespace: str, selector: str = "") -> tuple[Pod, ...]:
        if self.down:
            raise ClusterUnreachable("the API server does not answer")
        return self.pods_now

    async def events(self, namespace: str) -> tuple[Event, ...]:
        return self.events_now


def pod(uid: str, *, ready: bool = True, restarts: int = 0, leaving: bool = False, exit_code: int = 137) -> Pod:
    ended = Termination(exit_code=exit_code, reason="Error") if restarts else None
    return Pod(
        namespace="n",
        name="vllm-0",
        uid=uid,
        node="node-1",
        ip="10.0.0.1",
        phase="Running",
        conditions=(Condition(type="Ready", status=str(ready)),),
        containers=(
            ContainerStatus(name="c", ready=ready, started=True, restart_count=restarts, last_termination=ended),
        ),
        deletion_requested_at=1.0 if leaving else None,
    )


def warning(count: int, at: float = 5000.0) -> Event:
    return Event(
        at=at,
        type="Warning",
        reason="Unhealthy",
        message="Liveness probe failed",
        involved_kind="Pod",
        involved_name="vllm-0",
        involved_uid="a",
        count=count,
    )


async def texts_after(tmp_path: Path, scenes: Sequence[tuple[tuple[Pod, ...], tuple[Event, ...], bool]]) -> list[str]:
    stage, clock = Stage(), Hands()
    with ScenarioBundle(tmp_path) as bundle:
        collector = EventsCollector(bundle, stage, "n", clock=clock)
        for stage.pods_now, stage.events_now, stage.down in scenes:
            await collector.tick()
            clock.at += 1
        return [mark.text for mark in bundle.recorded().marks]


async def test_a_pod_is_followed_from_the_first_sight_to_its_end(tmp_path: Path) -> None:
    texts = await texts_after(
        tmp_path,
        [
            ((pod("a"),), (), False),
            ((pod("a"),), (), False),
            ((pod("a", ready=False),), (), False),
            ((pod("a", ready=False, restarts=1),), (), False),
            ((pod("a", restarts=1, leaving=True),), (), False),
            ((), (), False),
        ],
    )
    assert texts == [
        "already there on node-1",
        "ready",
        "not ready",
        "restarted after Error, exit code 137 (1 so far)",
        "being deleted",
        "deleted",
    ]


async def test_a_namesake_with_another_uid_is_another_pod(tmp_path: Path) -> None:
    texts = await texts_after(tmp_path, [((pod("a"),), (), False), ((pod("b", ready=False),), (), False)])
    assert texts == ["already there on node-1", "ready", "created on node-1", "deleted"]


async def test_a_warning_is_marked_once_and_again_only_when_it_is_repeated(tmp_path: Path) -> None:
    scenes = [((), (warning(count), warning(9, at=100.0)), False) for count in (1, 1, 3)]
    assert await texts_after(tmp_path, scenes) == [
        "Warning Unhealthy: Liveness probe failed",
        "Warning Unhealthy: Liveness probe failed (seen 3 times)",
    ]


async def test_an_api_outage_is_two_marks_and_no_deleted_pods(tmp_path: Path) -> None:
    scenes = [((pod("a"),), (), down) for down in (False, True, True, False)]
    assert (await texts_after(tmp_path, scenes))[2:] == [
        "the API server does not answer: the API server does not answer",
        "the API server answers again",
    ]


def parse(text: str) -> Mapping[str, float]:
    return {name: float(value) for name, value in (line.split() for line in text.splitlines())}


async def test_a_dead_pod_is_one_mark_and_the_others_are_still_scraped(tmp_path: Path) -> None:
    dead = {"b"}

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.host in dead:
            raise httpx.ConnectError("refused")
        return httpx.Response(200, text="vllm:g 1.5\nvllm:h_bucket 2\nvllm:bad nan\npython_info 1")

    async def targets() -> dict[str, str]:
        return {"pod-a": "http://a", "pod-b": "http://b:8000/"}

    with ScenarioBundle(tmp_path) as bundle:
        collector = MetricsCollector(bundle, targets, parse, clock=Hands(), transport=httpx.MockTransport(answer))
        async with collector:
            await collector.tick()
            await collector.tick()
            dead.clear()
            await collector.tick()
        recorded = bundle.recorded()
    assert [(mark.subject, mark.text) for mark in recorded.marks] == [
        ("pod-b", "metrics cannot be read: refused"),
        ("pod-b", "metrics answer again"),
    ]
    assert {sample.pod for sample in recorded.samples} == {"pod-a", "pod-b"}
    assert all(sample.values == {"vllm:g": 1.5} for sample in recorded.samples)


async def test_a_collector_that_breaks_says_so_when_its_block_ends(tmp_path: Path) -> None:
    async def targets() -> dict[str, str]:
        raise KeyError("a bug")

    with ScenarioBundle(tmp_path) as bundle, pytest.raises(KeyError):
        async with MetricsCollector(bundle, targets, parse):
            pass


async def test_a_link_of_the_loop_that_falls_silent_is_one_mark_and_its_return_another(tmp_path: Path) -> None:
    answers: list[Mapping[str, float] | HarnessError] = [
        {"loop:query": 3.0},
        HarnessError("Prometheus did not answer"),
        HarnessError("Prometheus did not answer"),
        {"loop:query": 4.0},
    ]

    async def query() -> Mapping[str, float]:
        answer = answers.pop(0)
        if isinstance(answer, HarnessError):
            raise answer
        return answer

    bundle = ScenarioBundle(tmp_path)
    collector = LoopCollector(bundle, {"Prometheus": query}, clock=Hands())
    for _ in range(4):
        await collector.tick()
    recorded = bundle.recorded()
    assert [mark.text for mark in recorded.marks] == ["does not answer: Prometheus did not answer", "answers again"]
    assert [sample.values for sample in recorded.samples] == [{"loop:query": 3.0}, {}, {}, {"loop:query": 4.0}]


async def test_an_absent_series_is_not_zero_in_the_loop(tmp_path: Path) -> None:
    async def query() -> Mapping[str, float]:
        return {}

    bundle = ScenarioBundle(tmp_path)
    await LoopCollector(bundle, {"Prometheus": query}, clock=Hands()).tick()
    recorded = bundle.recorded()
    assert "which is not zero" in recorded.marks[0].text
    assert recorded.samples[0].values == {}
