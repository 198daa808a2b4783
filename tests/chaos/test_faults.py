"""What each fault does to a cluster, how it proves that, and how it is taken back."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import pytest
from aiohttp import web

from shakedown.chaos import enginefaults
from shakedown.chaos.faults import (
    Cordon,
    Count,
    Drain,
    EngineHang,
    EngineMemoryPressure,
    EngineSlow,
    NetworkPartition,
    NotExercised,
    Percent,
    PodEvict,
    PodKill,
    RolloutRestart,
    Scale,
    Taint,
    Target,
    build,
)
from shakedown.chaos.podfaults import containers_restarted
from shakedown.chaos.rollout import RESTARTED_AT
from shakedown.chaos.undo import Uncordon, edit_taints, play_all
from shakedown.cluster.api import Cluster
from shakedown.errors import FaultDidNotLand, UsageError
from tests.chaos.fake_kubernetes import FakeKubernetes

ONE = Target(namespace="serving", selector="app=engine", how_many=Count(1))
RUN = "run-1"


@pytest.mark.parametrize(("percent", "total", "hit"), [(50, 4, 2), (50, 3, 1), (1, 3, 1), (100, 3, 3)])
def test_a_share_is_rounded_down_but_hits_at_least_one(percent: int, total: int, hit: int) -> None:
    assert Percent(percent).of(total) == hit


@pytest.mark.parametrize(("namespace", "selector"), [("", "app=engine"), ("serving", "")])
def test_a_target_that_would_mean_everything_is_refused(namespace: str, selector: str) -> None:
    with pytest.raises(UsageError, match="needs a namespace and a label selector"):
        Target(namespace=namespace, selector=selector, how_many=Count(1))


async def test_fewer_ready_pods_than_asked_for_are_not_hit(fake: FakeKubernetes, cluster: Cluster) -> None:
    fake.get("pods", "engine-a")["status"]["conditions"][0]["status"] = "False"
    with pytest.raises(FaultDidNotLand, match="only 1 are Ready"):
        await PodKill(target=Target(namespace="serving", selector="app=engine", how_many=Count(2))).preview(
            cluster, RUN
        )


async def test_a_selector_that_matches_nothing_is_bad_usage(cluster: Cluster) -> None:
    with pytest.raises(UsageError, match="no pod in namespace serving matches app=other"):
        await PodKill(target=Target(namespace="serving", selector="app=other", how_many=Count(1))).preview(cluster, RUN)


async def test_a_namesake_of_the_victim_is_not_killed(fake: FakeKubernetes, cluster: Cluster) -> None:
    fault = PodKill(target=ONE)
    plan = await fault.preview(cluster, RUN)
    namesake = fake.add_pod("engine-a")
    await fault.act(cluster, plan)
    assert fake.get("pods", "engine-a")["metadata"]["uid"] == namesake["metadata"]["uid"]


async def test_an_eviction_is_asked_again_while_a_budget_refuses(
    fake: FakeKubernetes, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shakedown.chaos.podfaults.EVICTION_EVERY_S", 0.0)
    fake.evictions_refused = 2
    fault = PodEvict(target=ONE)
    plan = await fault.preview(cluster, RUN)
    await fault.act(cluster, plan)
    assert "engine-a" in await fault.landed(cluster, plan)
    assert "engine-a" not in fake.names("pods")


async def test_an_eviction_that_a_budget_refuses_for_good_did_not_land(fake: FakeKubernetes, cluster: Cluster) -> None:
    fake.evictions_refused = 1000
    fault = PodEvict(target=ONE, within_s=0.0)
    with pytest.raises(FaultDidNotLand, match="disruption budget"):
        await fault.act(cluster, await fault.preview(cluster, RUN))


async def test_a_container_that_did_not_restart_is_no_landed_kill(fake: FakeKubernetes, cluster: Cluster) -> None:
    victims = (await PodKill(target=ONE).preview(cluster, RUN)).victims
    with pytest.raises(FaultDidNotLand):
        await containers_restarted(cluster, victims, within_s=0.0)
    fake.restart_container("engine-a")
    assert "0 to 1 restarts, Error with exit code 1" in await containers_restarted(cluster, victims, within_s=0.0)


async def test_a_cordon_is_taken_back_only_by_the_run_that_made_it(fake: FakeKubernetes, cluster: Cluster) -> None:
    fault = Cordon(target=ONE, duration_s=1)
    plan = await fault.preview(cluster, RUN)
    await fault.act(cluster, plan)
    assert await fault.landed(cluster, plan) == "node-1 unschedulable"
    await play_all(cluster, (Uncordon(node="node-1", run_id="another-run"),))
    assert fake.get("nodes", "node-1")["spec"]["unschedulable"]
    await play_all(cluster, plan.undo)
    await play_all(cluster, plan.undo)
    assert await fault.gone(cluster, plan) == "node-1 schedulable"


async def test_a_drain_spares_daemonsets_and_other_namespaces(fake: FakeKubernetes, cluster: Cluster) -> None:
    fake.add_pod("agent", "node-1", owner="DaemonSet")
    fake.add_pod("stranger", "node-1", namespace="other")
    fault = Drain(target=ONE, duration_s=1)
    plan = await fault.preview(cluster, RUN)
    await fault.act(cluster, plan)
    assert "1 pods left" in await fault.landed(cluster, plan)
    assert {"agent", "stranger"} <= fake.names("pods")
    assert "engine-a" not in fake.names("pods")
    whole = await Drain(target=ONE, duration_s=1, whole_node=True).preview(cluster, RUN)
    assert {victim.namespace for victim in whole.victims} == {None, "serving"}


async def test_a_drain_of_the_node_that_carries_every_replica_spares_nothing(
    fake: FakeKubernetes, cluster: Cluster
) -> None:
    assert (await Drain(target=ONE, duration_s=1).preview(cluster, RUN)).bystanders == 1
    fake.get("pods", "engine-b")["spec"]["nodeName"] = "node-1"
    assert (await Drain(target=ONE, duration_s=1).preview(cluster, RUN)).bystanders == 0
    assert (await Cordon(target=ONE, duration_s=1).preview(cluster, RUN)).bystanders == 1


async def test_a_drain_that_loses_data_must_be_asked_for(fake: FakeKubernetes, cluster: Cluster) -> None:
    fake.add_pod("cache", "node-1", volumes=[{"name": "scratch", "emptyDir": {}}])
    fake.add_pod("shm", "node-1", volumes=[{"name": "shm", "emptyDir": {"medium": "Memory"}}])
    with pytest.raises(UsageError, match=r"emptyDir data of cache; say --delete-emptydir-data"):
        await Drain(target=ONE, duration_s=1).preview(cluster, RUN)
    plan = await Drain(target=ONE, duration_s=1, delete_emptydir_data=True).preview(cluster, RUN)
    assert "cache" in {victim.name for victim in plan.victims}


async def test_a_rollout_has_landed_when_every_pod_is_another(fake: FakeKubernetes, cluster: Cluster) -> None:
    everybody = Target(namespace="serving", selector="app=engine", how_many=Percent(100))
    fake.add(
        "deployments",
        {
            "metadata": {"name": "engine", "namespace": "serving", "labels": {"app": "engine"}},
            "spec": {"replicas": 2, "template": {}},
        },
    )
    fault = RolloutRestart(target=everybody, within_s=0.0)
    plan = await fault.preview(cluster, RUN)
    await fault.act(cluster, plan)
    template = fake.get("deployments", "engine")["spec"]["template"]
    assert RESTARTED_AT in template["metadata"]["annotations"]
    with pytest.raises(FaultDidNotLand, match="replacement of engine-a, engine-b"):
        await fault.landed(cluster, plan)
    for old, new in (("engine-a", "engine-c"), ("engine-b", "engine-d")):
        del fake.objects["pods", "serving", old]
        fake.add_pod(new, "node-1")
    assert await fault.landed(cluster, plan) == "engine-c, engine-d in place of 2 pods before"


def test_a_rollout_of_some_pods_is_refused() -> None:
    with pytest.raises(UsageError, match="say --percent 100"):
        RolloutRestart(target=ONE)


async def test_a_taint_leaves_other_taints_and_survives_a_conflict(fake: FakeKubernetes, cluster: Cluster) -> None:
    await edit_taints(cluster, "node-1", lambda taints: [*taints, {"key": "theirs", "effect": "NoSchedule"}])
    fault = Taint(target=ONE, duration_s=1)
    plan = await fault.preview(cluster, RUN)
    fake.conflicts = 1
    await fault.act(cluster, plan)
    assert "shakedown.dev/drill=run-1:NoSchedule" in await fault.landed(cluster, plan)
    await play_all(cluster, plan.undo)
    assert [taint["key"] for taint in fake.get("nodes", "node-1")["spec"]["taints"]] == ["theirs"]


@pytest.mark.parametrize(("meanwhile", "after"), [(None, 2), (5, 5)])
async def test_replicas_are_restored_unless_somebody_else_scaled(
    fake: FakeKubernetes, cluster: Cluster, meanwhile: int | None, after: int
) -> None:
    meta = {"name": "engine", "namespace": "serving", "labels": {"app": "engine"}}
    fake.add("deployments", {"metadata": meta, "spec": {"replicas": 2, "selector": {}}})
    fault = Scale(target=ONE, duration_s=1, replicas=1)
    plan = await fault.preview(cluster, RUN)
    await fault.act(cluster, plan)
    assert await fault.landed(cluster, plan) == "engine has 1 replicas"
    if meanwhile is not None:
        fake.get("deployments", "engine")["spec"]["replicas"] = meanwhile
    await play_all(cluster, plan.undo)
    assert fake.get("deployments", "engine")["spec"]["replicas"] == after


async def test_a_partition_is_not_exercised_where_no_cni_would_enforce_it(
    fake: FakeKubernetes, cluster: Cluster
) -> None:
    fault = NetworkPartition(target=ONE, duration_s=1)
    with pytest.raises(NotExercised, match="does not enforce NetworkPolicy"):
        await fault.preview(cluster, RUN)
    fake.add("daemonsets", {"metadata": {"name": "calico-node", "namespace": "kube-system"}})
    plan = await fault.preview(cluster, RUN)
    await fault.act(cluster, plan)
    assert fake.get("pods", "engine-a")["metadata"]["labels"]["shakedown.dev/partition"] == RUN
    await play_all(cluster, plan.undo)
    assert not fake.names("networkpolicies")
    assert fake.get("pods", "engine-a")["metadata"]["labels"] == {"app": "engine"}


def test_a_fault_is_built_from_options_or_refused_in_one_line() -> None:
    assert build("scale", ONE, duration_s=5.0, replicas=1) == Scale(target=ONE, duration_s=5.0, replicas=1)
    for kind, parameters, said in (
        ("pod-killl", {}, "unknown fault 'pod-killl'"),
        ("cordon", {}, "needs --duration"),
        ("pod-kill", {"factor": 2.0}, "has no --factor"),
        ("taint", {"duration_s": 1.0, "effect": "Perhaps"}, "effect"),
        ("engine-slow", {"duration_s": 1.0, "factor": 0.5}, "factor above 1"),
    ):
        with pytest.raises(UsageError, match=said) as refusal:
            build(kind, ONE, **parameters)
        assert "\n" not in str(refusal.value)


@dataclass
class FakeEngine:
    """An engine on loopback whose step takes 1 ms times its slow-down, and whose knobs may be dead."""

    knobs: dict[str, float | bool]
    deaf: bool = False
    tokens: int = 0
    gaps_sum_s: float = 0.0

    async def answer(self, request: web.Request) -> web.Response:
        if request.path == "/knobs":
            if request.method == "PUT" and not self.deaf:
                self.knobs = await request.json()
            return web.json_response(self.knobs)
        if request.path == "/v1/models":
            return web.json_response({"data": [{"id": "model"}]})
        if request.path == "/metrics":
            return web.Response(text=self.metrics())
        if self.knobs["hang"]:
            raise web.HTTPServiceUnavailable
        self.tokens += 16
        self.gaps_sum_s += 15 * 0.001 * self.knobs["step_slowdown"]
        return web.json_response({})

    def metrics(self) -> str:
        return (
            f"# TYPE vllm:generation_tokens counter\nvllm:generation_tokens_total {self.tokens}\n"
            "# TYPE vllm:inter_token_latency_seconds histogram\n"
            f'vllm:inter_token_latency_seconds_bucket{{le="+Inf"}} {self.tokens // 16 * 15}\n'
            f"vllm:inter_token_latency_seconds_sum {self.gaps_sum_s}\n"
            f"vllm:inter_token_latency_seconds_count {self.tokens // 16 * 15}\n"
        )


@pytest.fixture
async def engine(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeEngine]:
    fake_engine = FakeEngine(
        {"step_slowdown": 1.0, "hang": False, "device_error": False, "oom": False, "memory_pressure_gib": 0.0}
    )
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", fake_engine.answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    for port in ("ENGINE_PORT", "KNOBS_PORT"):
        monkeypatch.setattr(enginefaults, port, runner.addresses[0][1])
    monkeypatch.setattr(enginefaults, "SILENCE_S", 0.1)
    monkeypatch.setattr(enginefaults, "SLOW_WITHIN_S", 0.0)
    yield fake_engine
    await runner.cleanup()


async def test_a_hang_is_proven_by_a_flat_token_counter_and_released(cluster: Cluster, engine: FakeEngine) -> None:
    fault = EngineHang(target=ONE, duration_s=1)
    plan = await fault.preview(cluster, RUN)
    await fault.act(cluster, plan)
    assert "token counter flat" in await fault.landed(cluster, plan)
    await play_all(cluster, plan.undo)
    assert engine.knobs["hang"] is False


@pytest.mark.parametrize(
    "order", [lambda: EngineHang(target=ONE, duration_s=1), lambda: EngineSlow(target=ONE, duration_s=1, factor=5)]
)
async def test_a_knob_that_does_nothing_is_no_landed_fault(
    cluster: Cluster, engine: FakeEngine, order: Callable[[], EngineHang | EngineSlow]
) -> None:
    engine.deaf = True
    fault = order()
    plan = await fault.preview(cluster, RUN)
    await fault.act(cluster, plan)
    with pytest.raises(FaultDidNotLand):
        await fault.landed(cluster, plan)


async def test_a_slow_engine_is_proven_by_its_token_gaps(cluster: Cluster, engine: FakeEngine) -> None:
    fault = EngineSlow(target=ONE, duration_s=1, factor=5)
    plan = await fault.preview(cluster, RUN)
    await fault.act(cluster, plan)
    assert await fault.landed(cluster, plan) == "engine-a: 1.0 ms a token before, 5.0 ms now"
    await play_all(cluster, plan.undo)
    assert engine.knobs["step_slowdown"] == 1.0


async def test_engine_knobs_are_not_exercised_on_an_engine_that_has_none(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(enginefaults, "KNOBS_PORT", 9)
    with pytest.raises(NotExercised, match="has no fault knobs"):
        await EngineHang(target=ONE, duration_s=1).preview(cluster, RUN)


async def test_memory_pressure_that_an_engine_bears_is_proven_by_a_step_and_released(
    cluster: Cluster, engine: FakeEngine
) -> None:
    fault = EngineMemoryPressure(target=ONE, duration_s=1, gib=1.6)
    plan = await fault.preview(cluster, RUN)
    await fault.act(cluster, plan)
    assert await fault.landed(cluster, plan) == "engine-a computes although 1.6 GiB more are taken"
    await play_all(cluster, plan.undo)
    assert engine.knobs["memory_pressure_gib"] == 0.0


async def test_memory_pressure_that_was_never_taken_is_no_landed_fault(cluster: Cluster, engine: FakeEngine) -> None:
    engine.deaf = True
    fault = EngineMemoryPressure(target=ONE, duration_s=1, gib=1.6)
    plan = await fault.preview(cluster, RUN)
    await fault.act(cluster, plan)
    with pytest.raises(FaultDidNotLand, match=r"0 GiB taken instead of 1\.6 GiB"):
        await fault.landed(cluster, plan)


def test_memory_pressure_of_nothing_is_bad_usage() -> None:
    with pytest.raises(UsageError, match="more than 0 GiB"):
        EngineMemoryPressure(target=ONE, duration_s=1, gib=0)
