"""Each broken link of an autoscaling loop is named, the first one first, and a sound loop is not accused."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shakedown.errors import HarnessError
from shakedown.serving import loop_diagnosis
from shakedown.serving.loop_diagnosis import diagnose_loop
from shakedown.serving.scaling import Autoscaling, HpaView, ScaledDeployment

EXPORTED = 'vllm:num_requests_waiting{model_name="m"} 0.0\nvllm:num_requests_running{model_name="m"} 0.0\n'
SOUND = 'sum(vllm:num_requests_waiting{namespace="ns"})'
HERE = "http://prometheus.llm-monitoring.svc:9090"
COMPUTES = HpaView(current=1, desired=1, metric=0.0, active=True)


class Loop:
    """A loop that is whatever the test says it is."""

    def __init__(self, query: str = SOUND, **wanted: Any) -> None:
        self.query, self.name, self.wanted = query, "vllm-llama3", Autoscaling(**{"threshold": 5.0, **wanted})
        self.series = {"up", 'up{namespace="ns"} == 1', SOUND, 'vllm:num_requests_waiting{namespace="ns"}'}
        self.prometheus, self.engine = self, self
        self.address, self.namespace = HERE, "ns"
        self.served: float | None = 0.0
        self.seen: HpaView | None = COMPUTES
        self.away = False
        container = {"args": ["--max-num-seqs", "16"]}
        deployment = {"spec": {"template": {"spec": {"containers": [container]}}}}
        self.rendered = SimpleNamespace(deployment=deployment)

    async def ready_engine_urls(self) -> dict[str, str]:
        return {"pod": "http://pod"}

    async def ready_pods(self) -> tuple[str, ...]:
        return ("pod",)

    async def count(self, promql: str) -> int:
        if self.away:
            raise HarnessError("Prometheus did not answer")
        return int(promql in self.series)

    async def metrics_api(self) -> float | None:
        return self.served

    async def hpa(self) -> HpaView | None:
        return self.seen


def change(**attributes: Any) -> Callable[[], Loop]:
    def made() -> Loop:
        loop = Loop()
        for name, value in attributes.items():
            setattr(loop, name, value)
        return loop

    return made


@pytest.fixture(autouse=True)
def exported(monkeypatch: pytest.MonkeyPatch) -> None:
    async def exposition(_: str) -> str:
        return EXPORTED

    monkeypatch.setattr(loop_diagnosis, "exposition", exposition)


async def broken(loop: Loop) -> tuple[str, str] | None:
    found = await diagnose_loop(cast(ScaledDeployment, loop))
    return (found.link, f"{found.sentence}; {found.fix}") if found else None


async def test_a_sound_loop_is_not_accused() -> None:
    assert await broken(Loop()) is None


@pytest.mark.parametrize(
    ("made", "link", "says"),
    [
        (lambda: Loop(SOUND.replace("vllm:", "vllm_")), "the query", "ask Prometheus for vllm:num_requests_waiting"),
        (lambda: Loop("sum(vllm:no_such)"), "the query", "GET /metrics of the engine lists"),
        (lambda: Loop(SOUND.replace("waiting", "running"), threshold=16.0), "the target", "never runs more than 16"),
        (change(away=True), "Prometheus", "bring Prometheus back"),
        (lambda: change(served=None)(), "the metrics API", "serves no metric"),
        (change(series={"up"}), "the scrape", "0 of 1 Ready engines"),
        (
            lambda: Loop('sum(vllm:num_requests_waiting{kubernetes_namespace="ns"})'),
            "the query",
            "kubernetes_namespace",
        ),
        (change(seen=None), "the HPA", "KEDA has made no HPA"),
        (change(seen=HpaView(current=1, desired=1, metric=None, active=False, why_inactive="no")), "the HPA", "no"),
    ],
)
async def test_the_first_broken_link_is_named(made: Callable[[], Loop], link: str, says: str) -> None:
    found = await broken(made())
    assert found is not None
    assert found[0] == link
    assert says in found[1]


async def test_a_prometheus_elsewhere_is_told_by_the_metrics_api() -> None:
    elsewhere = Loop(server="http://prometheus.monitoring.svc:9090")
    assert await broken(elsewhere) is None
    elsewhere.served = None
    found = await broken(elsewhere)
    assert found is not None
    assert f"set serverAddress to {HERE}" in found[1]
