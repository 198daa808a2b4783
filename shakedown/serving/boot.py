"""Why an engine pod is not Ready, told apart by what Kubernetes itself recorded.

A restart alone says nothing: a container that the kubelet killed because a probe gave up looks like a crash in
`kubectl get pods`. The event and the exit status tell them apart.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from shakedown.cluster.objects import ContainerStatus, Event, Pod

SIGKILL_EXIT = 137
SIGTERM_EXIT = 143


class BootState(StrEnum):
    """Where an engine pod is on its way to Ready."""

    READY = "ready"
    PENDING = "pending"  # no node takes it
    IMAGE = "image"  # the image cannot be had
    LOADING = "loading"  # running, the startup probe has not passed yet
    PROBE_KILL = "probe kill"  # a probe gave up and the kubelet restarted the container
    CRASH = "crash"  # the process ended by itself
    OOM_KILLED = "oom killed"  # the container outgrew its memory limit


@dataclass(frozen=True, slots=True, kw_only=True)
class BootDiagnosis:
    """State of one pod, and a sentence for an on-call engineer."""

    pod: str
    state: BootState
    restarts: int
    sentence: str

    @property
    def is_boot_loop(self) -> bool:
        """True if the container was restarted at least once before it ever got Ready."""
        return self.restarts > 0 and self.state in (BootState.PROBE_KILL, BootState.CRASH, BootState.OOM_KILLED)


def diagnose(pod: Pod, events: Sequence[Event]) -> BootDiagnosis:
    """Read a pod's boot from its status and its events."""
    state, sentence = _state(pod, [event for event in events if event.involved_uid == pod.uid])
    return BootDiagnosis(pod=pod.name, state=state, restarts=pod.restarts, sentence=sentence)


def _state(pod: Pod, events: Sequence[Event]) -> tuple[BootState, str]:
    if pod.ready:
        return BootState.READY, f"pod {pod.name} is Ready"
    if not pod.containers:
        return _unscheduled(pod, events)
    engine = pod.containers[0]
    if engine.waiting_reason in ("ImagePullBackOff", "ErrImagePull", "ErrImageNeverPull", "InvalidImageName"):
        return BootState.IMAGE, f"pod {pod.name} has no image: {engine.waiting_message or engine.waiting_reason}"
    if engine.last_termination or engine.terminated:
        return _restarted(pod, engine, events)
    return BootState.LOADING, f"pod {pod.name} is starting and its startup probe has not passed yet"


def _unscheduled(pod: Pod, events: Sequence[Event]) -> tuple[BootState, str]:
    refusals = [event.message for event in events if event.reason == "FailedScheduling"]
    waiting_for = refusals[-1] if refusals else "the scheduler has not placed it yet"
    return BootState.PENDING, f"pod {pod.name} is Pending: {waiting_for}"


def _restarted(pod: Pod, engine: ContainerStatus, events: Sequence[Event]) -> tuple[BootState, str]:
    end = engine.terminated or engine.last_termination
    assert end is not None
    if end.reason == "OOMKilled":
        return BootState.OOM_KILLED, (
            f"container {engine.name} of pod {pod.name} outgrew its memory limit and was OOM-killed by the kernel; "
            "raise resources.limits.memory"
        )
    probe = _killing_probe(events)
    if probe is not None and end.exit_code in (0, SIGKILL_EXIT, SIGTERM_EXIT, 1):
        return BootState.PROBE_KILL, (
            f"the kubelet restarted container {engine.name} of pod {pod.name} {engine.restart_count} time(s) because "
            f"its {probe} probe gave up while the process was alive (exit {end.exit_code}); it did not crash: "
            f"lengthen the {probe} probe's budget (initialDelaySeconds + periodSeconds × failureThreshold) beyond "
            "the time the weights take to load"
        )
    return BootState.CRASH, (
        f"container {engine.name} of pod {pod.name} ended by itself with exit status {end.exit_code} "
        f"({end.reason}) and was restarted {engine.restart_count} time(s); read its log before the restart"
    )


def _killing_probe(events: Sequence[Event]) -> str | None:
    """The probe that the kubelet names in its Killing event, if one did the killing."""
    for event in events:
        if event.reason == "Killing":
            for probe in ("startup", "liveness"):
                if f"failed {probe} probe" in event.message:
                    return probe
    return None
