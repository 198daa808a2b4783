"""What the API server says, as values: nothing invented for what it leaves out."""

from typing import Any

import pytest

from shakedown.cluster.objects import Condition, Termination
from shakedown.cluster.reading import epoch, read_deployment, read_event, read_node, read_pod

NOON = "2026-01-01T12:00:00Z"
NOON_S = 1767268800.0


def test_times_are_seconds_since_the_epoch_in_every_spelling_of_the_api() -> None:
    assert epoch(NOON) == NOON_S
    assert epoch("2026-01-01T12:00:00.250000Z") == NOON_S + 0.25
    assert epoch("2026-01-01T13:00:00+01:00") == NOON_S
    assert epoch(None) is None


def pod(**status: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "namespace": "llm-serving",
            "name": "vllm-0",
            "uid": "u0",
            "labels": {"app": "vllm-server"},
            "creationTimestamp": NOON,
        },
        "spec": {"nodeName": "node-1"},
        "status": {"phase": "Running", "podIP": "10.244.1.2", **status},
    }


def test_a_pod_is_read_with_its_containers_now_and_before() -> None:
    item = pod(
        conditions=[{"type": "Ready", "status": "True", "lastTransitionTime": NOON}],
        containerStatuses=[
            {
                "name": "vllm-engine",
                "ready": True,
                "started": True,
                "restartCount": 2,
                "state": {"running": {"startedAt": NOON}},
                "lastState": {
                    "terminated": {"exitCode": 137, "reason": "OOMKilled", "startedAt": NOON, "finishedAt": NOON}
                },
            },
            {"name": "sidecar", "restartCount": 1, "state": {"waiting": {"reason": "ErrImagePull", "message": "no"}}},
        ],
    )
    seen = read_pod(item)
    engine, sidecar = seen.containers
    assert (seen.namespace, seen.name, seen.uid, seen.node, seen.ip) == (
        "llm-serving",
        "vllm-0",
        "u0",
        "node-1",
        "10.244.1.2",
    )
    assert seen.conditions == (Condition(type="Ready", status="True", last_transition_at=NOON_S),)
    assert (seen.ready, seen.restarts, seen.created_at, seen.labels) == (True, 3, NOON_S, {"app": "vllm-server"})
    assert (engine.running_since, engine.terminated) == (NOON_S, None)
    assert engine.last_termination == Termination(
        exit_code=137, reason="OOMKilled", started_at=NOON_S, finished_at=NOON_S
    )
    assert (sidecar.ready, sidecar.started, sidecar.waiting_reason, sidecar.waiting_message) == (
        False,
        False,
        "ErrImagePull",
        "no",
    )


def test_a_pod_that_nobody_has_placed_yet_is_read() -> None:
    seen = read_pod({"metadata": {"namespace": "n", "name": "p", "uid": "u"}})
    assert (seen.node, seen.ip, seen.phase, seen.containers, seen.ready) == (None, None, "Unknown", (), False)


def test_a_container_that_has_ended_is_read_with_its_exit_status() -> None:
    ended = {"name": "c", "state": {"terminated": {"exitCode": 0, "signal": 9}}}
    (container,) = read_pod(pod(containerStatuses=[ended])).containers
    assert container.terminated == Termination(exit_code=0, reason="", signal=9)


@pytest.mark.parametrize("status", ["False", "Unknown"])
def test_a_pod_is_ready_only_when_its_condition_says_true(status: str) -> None:
    assert not read_pod(pod(conditions=[{"type": "Ready", "status": status}])).ready
    assert not read_pod(pod(conditions=[{"type": "Initialized", "status": "True"}])).ready


def test_a_pod_on_its_way_out_is_not_ready_whatever_its_condition_says() -> None:
    item = pod(conditions=[{"type": "Ready", "status": "True"}])
    item["metadata"]["deletionTimestamp"] = NOON
    seen = read_pod(item)
    assert seen.deletion_requested_at == NOON_S
    assert not seen.ready


def deployment(*, spec: dict[str, Any] | None = None, **status: Any) -> dict[str, Any]:
    done = {"observedGeneration": 3, "replicas": 2, "updatedReplicas": 2, "availableReplicas": 2}
    return {
        "metadata": {"namespace": "llm-serving", "name": "vllm", "uid": "d0", "generation": 3},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "vllm-server"}}} if spec is None else spec,
        "status": {**done, **status},
    }


def test_a_deployment_is_rolled_out_when_all_it_wants_is_new_and_serves() -> None:
    seen = read_deployment(deployment())
    assert seen.rolled_out
    assert (seen.selector, seen.spec_replicas, seen.generation) == ({"app": "vllm-server"}, 2, 3)


@pytest.mark.parametrize(
    "behind",
    [
        {"observedGeneration": 2},
        {"updatedReplicas": 1},
        {"availableReplicas": 1},
        {"replicas": 3},
    ],
    ids=["the spec has not been seen", "one is old", "one does not serve", "an old one is still there"],
)
def test_a_deployment_that_is_behind_in_anything_is_not_rolled_out(behind: dict[str, Any]) -> None:
    assert not read_deployment(deployment(**behind)).rolled_out


def test_a_deployment_without_a_status_is_not_rolled_out() -> None:
    item = deployment()
    del item["status"]
    assert not read_deployment(item).rolled_out


def test_a_deployment_scaled_to_nothing_is_rolled_out_when_nothing_is_left() -> None:
    item = deployment(spec={"replicas": 0, "selector": {}})
    assert not read_deployment(item).rolled_out
    item["status"] = {"observedGeneration": 3}
    assert read_deployment(item).rolled_out


def test_a_deployment_that_names_no_number_wants_one_replica() -> None:
    assert read_deployment(deployment(spec={"selector": {}})).spec_replicas == 1


def test_a_node_is_read_with_its_taints_as_kubectl_prints_them() -> None:
    seen = read_node(
        {
            "metadata": {"name": "node-1", "uid": "n1"},
            "spec": {
                "unschedulable": True,
                "taints": [
                    {"key": "dedicated", "value": "gpu", "effect": "NoSchedule"},
                    {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"},
                ],
            },
            "status": {
                "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
                "capacity": {"nvidia.com/gpu": "2"},
                "allocatable": {"nvidia.com/gpu": "1"},
                "nodeInfo": {"kubeletVersion": "v1.34.4"},
            },
        }
    )
    assert seen.taints == ("dedicated=gpu:NoSchedule", "node.kubernetes.io/unreachable:NoExecute")
    assert (seen.ready, seen.unschedulable, seen.kubelet_version) == (True, True, "v1.34.4")
    assert (seen.capacity, seen.allocatable) == ({"nvidia.com/gpu": "2"}, {"nvidia.com/gpu": "1"})


def test_a_node_that_says_nothing_is_not_ready() -> None:
    seen = read_node({"metadata": {"name": "node-1", "uid": "n1"}})
    assert (seen.ready, seen.unschedulable, seen.taints) == (False, False, ())


@pytest.mark.parametrize(
    ("times", "at"),
    [
        ({"lastTimestamp": NOON, "eventTime": "2026-01-01T11:00:00Z"}, NOON_S),
        ({"lastTimestamp": None, "eventTime": "2026-01-01T12:00:01.500000Z"}, NOON_S + 1.5),
        ({"lastTimestamp": None, "eventTime": None}, NOON_S + 60),
    ],
    ids=["last seen", "a single event", "only written down"],
)
def test_an_event_happened_when_it_was_last_seen(times: dict[str, str | None], at: float) -> None:
    seen = read_event(
        {
            "metadata": {"creationTimestamp": "2026-01-01T12:01:00Z"},
            "involvedObject": {"kind": "Pod", "name": "vllm-0", "uid": "u0"},
            "type": "Warning",
            "reason": "Unhealthy",
            "message": "Startup probe failed",
            "count": None,
            **times,
        }
    )
    assert (seen.at, seen.count) == (at, 1)
    assert (seen.involved_kind, seen.involved_name, seen.involved_uid) == ("Pod", "vllm-0", "u0")
    assert (seen.type, seen.reason, seen.message) == ("Warning", "Unhealthy", "Startup probe failed")
