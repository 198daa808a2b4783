"""Why a pod is not Ready: a probe that gave up is no crash, and a crash is no probe's doing."""

from dataclasses import replace

import pytest

from shakedown.cluster.objects import Condition, ContainerStatus, Event, Pod, Termination
from shakedown.serving.boot import BootState, diagnose

FRESH = ContainerStatus(name="vllm-engine", ready=False, started=False, restart_count=0, running_since=100.0)


def pod(*containers: ContainerStatus, ready: bool = False) -> Pod:
    return Pod(
        namespace="llm-serving",
        name="vllm-0",
        uid="uid-0",
        node="node-1",
        ip=None,
        phase="Running" if containers else "Pending",
        conditions=(Condition(type="Ready", status="True"),) if ready else (),
        containers=containers,
    )


def restarted(exit_code: int, reason: str = "Error") -> ContainerStatus:
    return replace(FRESH, restart_count=2, last_termination=Termination(exit_code=exit_code, reason=reason))


def event(reason: str, message: str, uid: str = "uid-0") -> Event:
    return Event(
        at=1.0,
        type="Warning",
        reason=reason,
        message=message,
        involved_kind="Pod",
        involved_name="vllm-0",
        involved_uid=uid,
    )


def killing(probe: str, uid: str = "uid-0") -> Event:
    return event("Killing", f"Container vllm-engine failed {probe} probe, will be restarted", uid)


NO_GPU = event("FailedScheduling", "0/2 nodes are available: 2 Insufficient nvidia.com/gpu.")
NO_IMAGE = replace(FRESH, running_since=None, waiting_reason="ImagePullBackOff", waiting_message="manifest unknown")


@pytest.mark.parametrize(
    ("seen", "events", "state", "words"),
    [
        (pod(replace(FRESH, ready=True), ready=True), [], BootState.READY, "is Ready"),
        (pod(), [NO_GPU], BootState.PENDING, "2 Insufficient nvidia.com/gpu"),
        (pod(), [], BootState.PENDING, "the scheduler has not placed it yet"),
        (pod(NO_IMAGE), [], BootState.IMAGE, "manifest unknown"),
        (pod(FRESH), [], BootState.LOADING, "startup probe has not passed yet"),
        (pod(restarted(137)), [killing("startup")], BootState.PROBE_KILL, "startup probe gave up"),
        (pod(restarted(143)), [killing("startup")], BootState.PROBE_KILL, "exit 143"),
        (pod(restarted(0, "Completed")), [killing("startup")], BootState.PROBE_KILL, "exit 0"),
        (pod(restarted(137)), [killing("liveness")], BootState.PROBE_KILL, "lengthen the liveness probe's budget"),
        (pod(restarted(1)), [], BootState.CRASH, "exit status 1"),
        (pod(restarted(0, "Completed")), [], BootState.CRASH, "exit status 0 (Completed)"),
        (pod(restarted(137)), [], BootState.CRASH, "exit status 137"),
        (pod(restarted(137, "OOMKilled")), [], BootState.OOM_KILLED, "raise resources.limits.memory"),
        (pod(restarted(137, "OOMKilled")), [killing("startup")], BootState.OOM_KILLED, "outgrew its memory limit"),
    ],
    ids=[
        "ready",
        "no node takes it",
        "not placed yet",
        "no image",
        "loading",
        "startup kill by SIGKILL",
        "startup kill by SIGTERM",
        "startup kill with a clean exit",
        "liveness kill",
        "crash",
        "ended by itself with 0",
        "killed, but by no probe",
        "out of memory",
        "out of memory during a probe kill",
    ],
)
def test_a_boot_is_told_apart_by_events_and_exit_status(
    seen: Pod, events: list[Event], state: BootState, words: str
) -> None:
    diagnosis = diagnose(seen, events)
    assert (diagnosis.state, diagnosis.pod) == (state, "vllm-0")
    assert words in diagnosis.sentence


def test_events_of_a_namesake_explain_nothing() -> None:
    assert diagnose(pod(restarted(137)), [killing("startup", uid="another")]).state is BootState.CRASH


def test_a_container_that_has_just_ended_counts_as_well_as_one_that_was_restarted() -> None:
    ended = replace(FRESH, running_since=None, terminated=Termination(exit_code=1, reason="Error"))
    assert diagnose(pod(ended), []).state is BootState.CRASH


@pytest.mark.parametrize(
    ("seen", "events", "loops"),
    [
        (pod(restarted(137)), [killing("startup")], True),
        (pod(restarted(1)), [], True),
        (pod(restarted(137, "OOMKilled")), [], True),
        (pod(FRESH), [], False),
        (pod(), [NO_GPU], False),
        (pod(replace(restarted(1), ready=True), ready=True), [], False),
        (pod(replace(FRESH, terminated=Termination(exit_code=1, reason="Error"))), [], False),
    ],
    ids=["probe kill", "crash", "out of memory", "loading", "pending", "ready after restarts", "first end"],
)
def test_a_boot_loop_is_a_restart_before_the_pod_was_ever_ready(seen: Pod, events: list[Event], loops: bool) -> None:
    assert diagnose(seen, events).is_boot_loop is loops
