"""Each broken link of a live autoscaling loop is named, the first one first, and a sound loop is not accused."""

import copy
import json
from collections.abc import Callable, Mapping
from typing import Any, cast

import pytest
import yaml
from kubernetes.aio.client import ApiClient

from shakedown.chaos import Access
from shakedown.cli.main import _exit_code
from shakedown.cluster.api import ApiRefusal, Cluster
from shakedown.errors import NotAllowed, UsageError
from shakedown.serving.live_loop import find_loop
from shakedown.serving.loop_diagnosis import Link, trace_loop
from shakedown.serving.rendering import MANIFESTS

QUERY = 'sum(vllm:num_requests_waiting{namespace="llm-serving", model_name="m"})'
EXPORTED = 'vllm:num_requests_waiting{model_name="m"} 0.0\nvllm:num_requests_running{model_name="m"} 0.0\n'
SERVING, SCALED = "/api/v1/namespaces/llm-serving", "/apis/keda.sh/v1alpha1/namespaces/llm-serving/scaledobjects"
HPAS = "/apis/autoscaling/v2/namespaces/llm-serving/horizontalpodautoscalers"
METRICS = f"{SERVING}/pods/vllm-0:8000/proxy/metrics"
PROMETHEUS = "/api/v1/namespaces/monitoring/services/prometheus:9090/proxy/api/v1/query"
EXTERNAL = "/apis/external.metrics.k8s.io/v1beta1/namespaces/llm-serving/s0-prometheus"
ENGINE = {"name": "vllm", "image": "vllm/vllm-openai:v0.32.0", "args": ["--model", "m", "--max-num-seqs", "16"]}
POD = {
    "metadata": {"name": "vllm-0", "namespace": "llm-serving", "uid": "u", "labels": {"app": "vllm"}},
    "spec": {"nodeName": "n"},
    "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}], "containerStatuses": []},
}
PENDING = {**POD, "metadata": {**POD["metadata"], "name": "vllm-1"}, "status": {"phase": "Pending"}}  # type: ignore[dict-item]
RESOURCES = {
    "/api/v1": (("Pod", "pods"), ("Event", "events")),
    "/apis/apps/v1": (("Deployment", "deployments"), ("StatefulSet", "statefulsets")),
    "/apis/keda.sh/v1alpha1": (("ScaledObject", "scaledobjects"),),
    "/apis/autoscaling/v2": (("HorizontalPodAutoscaler", "horizontalpodautoscalers"),),
}


class Canned(Cluster):
    """A cluster that answers what the test says, by path, and Prometheus's proxy by query."""

    def __init__(self) -> None:
        super().__init__(cast(ApiClient, None))
        scaler = yaml.safe_load((MANIFESTS / "autoscaling" / "scaledobject.yaml").read_text())
        scaler["metadata"].update(name="vllm", namespace="llm-serving")
        scaler["spec"]["scaleTargetRef"]["name"] = "vllm"
        scaler["spec"]["triggers"][0]["metadata"].update(
            query=QUERY, threshold="5", serverAddress="http://prometheus.monitoring.svc:9090"
        )
        self.scaler = scaler
        meta = {"name": "keda-hpa-vllm", "namespace": "llm-serving", "ownerReferences": [{"kind": "ScaledObject"}]}
        target = {"kind": "Deployment", "name": "vllm"}
        self.hpa: dict[str, Any] = {
            "metadata": meta,
            "spec": {"scaleTargetRef": target, "metrics": []},
            "status": {
                "currentReplicas": 1,
                "desiredReplicas": 1,
                "conditions": [{"type": "ScalingActive", "status": "True"}],
            },
        }
        deployment = {
            "metadata": {"name": "vllm", "namespace": "llm-serving"},
            "spec": {
                "selector": {"matchLabels": {"app": "vllm"}},
                "template": {"metadata": {"labels": {"app": "vllm"}}, "spec": {"containers": [ENGINE]}},
            },
        }
        self.paths: dict[str, Any] = {
            SCALED: {"items": [scaler]},
            HPAS: {"items": [self.hpa]},
            f"{HPAS}/keda-hpa-vllm": self.hpa,
            "/apis/apps/v1/namespaces/llm-serving/deployments/vllm": deployment,
            f"{SERVING}/pods": {"items": [POD]},
            f"{SERVING}/events": {"items": []},
            METRICS: EXPORTED,
            EXTERNAL: {"items": [{"value": "3"}]},
        }
        for path, kinds in RESOURCES.items():
            named = [{"name": plural, "kind": kind, "namespaced": True} for kind, plural in kinds]
            self.paths[path] = {"resources": named}
        self.samples = {"up": 4, 'up{namespace="llm-serving"} == 1': 1, QUERY: 1}
        self.samples['vllm:num_requests_waiting{namespace="llm-serving"}'] = 1

    async def close(self) -> None: ...

    async def _request_text(
        self,
        verb: str,
        path: str,
        *,
        query: Mapping[str, str | None] | None = None,
        body: dict[str, Any] | None = None,
        content_type: str = "application/json",
    ) -> str:
        if path == PROMETHEUS and path not in self.paths:
            found = self.samples.get(str((query or {})["query"]), 0)
            return json.dumps({"status": "success", "data": {"result": [{"value": [0, "1"]}] * found}})
        answer = self.paths.get(path, 404)
        if isinstance(answer, int):
            raise ApiRefusal(verb, path, answer, "so says the test")
        return answer if isinstance(answer, str) else json.dumps(answer)

    def ask(self, **metadata: str) -> None:
        """Change what the trigger says."""
        self.scaler["spec"]["triggers"][0]["metadata"].update(metadata)


Change = Callable[[Canned], object]


def say(path: str, answer: object) -> Change:
    return lambda cluster: cluster.paths.update({path: answer})


def ask(**metadata: str) -> Change:
    return lambda cluster: cluster.ask(**metadata)


def inactive(cluster: Canned) -> None:
    cluster.hpa["status"]["conditions"] = [{"type": "ScalingActive", "status": "False", "message": "no metrics"}]


def pause(cluster: Canned) -> None:
    cluster.scaler["metadata"]["annotations"] = {"autoscaling.keda.sh/paused": "true"}


async def links(change: Change = lambda _: None) -> tuple[Link, ...]:
    cluster = Canned()
    change(cluster)
    return await trace_loop(await find_loop(cluster, "llm-serving"))


async def test_a_sound_loop_is_not_accused_and_each_link_says_what_is_seen() -> None:
    seen = {link.name: link.seen for link in await links()}
    assert not [link for link in await links() if link.broken]
    assert list(seen) == [
        *("the autoscaler", "the engines", "the target", "Prometheus", "the scrape"),
        *("the query", "the metrics API", "the HPA", "the pods"),
    ]
    assert seen["the engines"] == "1 is Ready and exports vllm:num_requests_waiting"
    assert "it answers 3" in seen["the metrics API"]
    assert seen["the pods"] == "1 are Ready, 0 on the way"


@pytest.mark.parametrize(
    ("change", "name", "says"),
    [
        (pause, "the autoscaler", "autoscaling.keda.sh/paused"),
        (ask(query=QUERY.replace("vllm:", "vllm_")), "the query", "ask Prometheus for vllm:num_requests_waiting"),
        (ask(query="sum(vllm:no_such)"), "the query", "GET /metrics of the engine lists"),
        (
            ask(query=QUERY.replace("waiting", "running"), threshold="16"),
            "the target",
            "never runs more than 16",
        ),
        (say(METRICS, 503), "the engines", "look at that pod's log"),
        (ask(serverAddress="prometheus:9090"), "Prometheus", "set the trigger's serverAddress"),
        (ask(serverAddress=""), "Prometheus", "is not the address of a Prometheus"),
        (say(PROMETHEUS, 503), "Prometheus", "bring Prometheus back"),
        (say(PROMETHEUS, "<html>"), "Prometheus", "is no Prometheus"),
        (ask(serverAddress="http://prometheus.elsewhere.svc:9090"), "Prometheus", "set serverAddress"),
        (lambda cluster: cluster.samples.pop('up{namespace="llm-serving"} == 1'), "the scrape", "0 of 1 Ready engines"),
        (
            ask(query='sum(vllm:num_requests_waiting{kubernetes_namespace="llm-serving"})'),
            "the query",
            "kubernetes_namespace",
        ),
        (lambda cluster: cluster.samples.update({QUERY: 3}), "the query", "put sum(…) around it"),
        (say(EXTERNAL, 404), "the metrics API", "serves no metric"),
        (say(EXTERNAL, 503), "the metrics API", "look at KEDA's operator"),
        (say(f"{HPAS}/keda-hpa-vllm", 404), "the HPA", "KEDA has made no HPA"),
        (inactive, "the HPA", "no metrics"),
        (say(f"{SERVING}/pods", {"items": [POD, PENDING]}), "the pods", "add nodes with free GPUs"),
    ],
)
async def test_the_first_broken_link_is_named(change: Change, name: str, says: str) -> None:
    *sound, last = await links(change)
    assert not [link for link in sound if link.broken]
    assert last.broken
    assert last.name == name
    assert says in f"{last.seen}; {last.fix}"


@pytest.mark.parametrize("path", [PROMETHEUS, METRICS, EXTERNAL])
async def test_a_link_that_we_may_not_ask_is_not_accused(path: str) -> None:
    with pytest.raises(NotAllowed):
        await links(say(path, 403))


async def test_a_loop_without_a_ready_engine_is_asked_all_the_same() -> None:
    waking = await links(say(f"{SERVING}/pods", {"items": []}))
    assert not waking[-1].broken
    assert "none is Ready" in waking[1].seen


async def test_an_adapters_hpa_is_asked_for_what_it_knows() -> None:
    cluster = Canned()
    metric = {"type": "External", "external": {"metric": {"name": "waiting", "selector": {"matchLabels": {"m": "x"}}}}}
    plain = copy.deepcopy(cluster.hpa)
    plain["metadata"] = {"name": "vllm", "namespace": "llm-serving"}
    plain["spec"]["metrics"] = [metric]
    cluster.paths |= {SCALED: {"items": []}, HPAS: {"items": [plain]}, f"{HPAS}/vllm": plain}
    external = EXTERNAL.replace("s0-prometheus", "waiting")
    assert (await trace_loop(await find_loop(cluster, "llm-serving", "vllm")))[-1].name == "the metrics API"
    cluster.paths[external] = {"items": [{"value": "2"}]}
    found = await trace_loop(await find_loop(cluster, "llm-serving", "vllm"))
    assert [link.name for link in found] == ["the autoscaler", "the metrics API", "the HPA", "the pods"]


@pytest.mark.parametrize(
    ("change", "name", "complaint"),
    [
        (say(SCALED, {"items": []}), None, "has no ScaledObject and no Horizontal"),
        (lambda _: None, "another", "named another or scales it; there are: ScaledObject vllm"),
        (say(HPAS, {"items": [{"metadata": {"name": "b"}, "spec": {}}]}), None, "several autoscalers: .*; name one"),
        (lambda cluster: cluster.scaler["spec"].update(triggers=[{"type": "cpu"}]), None, "no trigger that asks"),
        (say("/apis/apps/v1/namespaces/llm-serving/deployments/vllm", 404), None, "which is not there"),
    ],
)
async def test_what_is_no_loop_is_said_in_one_line(change: Change, name: str | None, complaint: str) -> None:
    cluster = Canned()
    change(cluster)
    with pytest.raises(UsageError, match=complaint) as refused:
        await trace_loop(await find_loop(cluster, "llm-serving", name))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("change", "code", "says"),
    [
        (lambda _: None, 0, "every link answers"),
        (say(EXTERNAL, 404), 1, "broken: the metrics API"),
        (ask(ignoreNullValues="true"), 1, "null-is-zero"),
        (say(PROMETHEUS, 403), 2, ""),
        (say(SCALED, {"items": []}), 4, ""),
    ],
)
def test_the_command_ends_with_what_it_found(
    change: Change, code: int, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def connect(_: Access) -> Cluster:
        cluster = Canned()
        change(cluster)
        return cluster

    monkeypatch.setattr(Access, "connect", connect)
    assert _exit_code(["loop", "vllm", "-n", "llm-serving"]) == code
    assert says in capsys.readouterr().out
    if code < 2:
        assert _exit_code(["loop", "-n", "llm-serving", "--json"]) == code
        assert json.loads(capsys.readouterr().out)["sound"] is (code == 0)
