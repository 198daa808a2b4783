"""The workload that is scaled: pods that wait for a GPU, load, serve and drain, and where each request goes."""

import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from shakedown.errors import UsageError
from shakedown.serving.autoscaling.calculator import PodSample, PodState
from shakedown.serving.autoscaling.metric_path import PodGauges
from shakedown.serving.autoscaling.replica import Engine, ReplicaModel


class Routing(StrEnum):
    """Which replica gets a request."""

    RANDOM = "random"
    """A Service with kube-proxy, a connection per request."""
    ROUND_ROBIN = "round-robin"
    LEAST_LOADED = "least-loaded"
    """A router that counts what each replica has in flight."""
    SHARED_QUEUE = "shared-queue"
    """Requests wait in front of the replicas and go to the first free slot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterModel:
    """What a new replica waits for, and what an old one is given."""

    load_s: float = 300.0
    """From the container's start to the weights being served."""
    schedule_s: float = 2.0
    """From the new scale to the container's start, with a free GPU."""
    ready_lag_s: float = 5.0
    """From the weights being served to the first request: readiness probe, endpoints, kube-proxy."""
    drain_s: float = 60.0
    """terminationGracePeriodSeconds: after it, what still runs or waits in the replica is lost."""
    gpus: int | None = None
    """All GPUs there are for this workload; None for no limit."""
    gpus_per_replica: int = 1
    routing: Routing = Routing.RANDOM
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.load_s, self.schedule_s, self.ready_lag_s, self.drain_s) < 0:
            raise UsageError("load, schedule, readiness and drain times are 0 s or more")
        if self.gpus_per_replica < 1 or (self.gpus is not None and self.gpus < self.gpus_per_replica):
            raise UsageError(f"{self.gpus} GPUs do not hold one replica of {self.gpus_per_replica}")

    @property
    def places(self) -> float:
        """Replicas that find a GPU."""
        return float("inf") if self.gpus is None else self.gpus // self.gpus_per_replica


class Phase(StrEnum):
    """A pod's life."""

    UNSCHEDULED = "unscheduled"
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"


@dataclass(slots=True, eq=False)
class Pod:
    """One replica of the workload."""

    number: int
    engine: Engine
    phase: Phase = Phase.UNSCHEDULED
    generation: int = 0
    """Grows whenever the batch changes: a finish that was foreseen before is void."""


Schedule = Callable[[float, Callable[[float], None]], None]
"""Registers what happens at a time."""


class Workload:
    """Pods and requests. What it foresees it hands to `schedule`; it never looks ahead."""

    def __init__(self, model: ReplicaModel, cluster: ClusterModel, schedule: Schedule, requests: int) -> None:
        self.model, self.cluster = model, cluster
        self.started_s: list[float | None] = [None] * requests
        self.lost: set[int] = set()
        self.gpu_seconds = 0.0
        self._schedule = schedule
        self._pods: list[Pod] = []
        self._serving: list[Pod] = []
        self._shared: deque[int] = deque()
        self._dice = random.Random(cluster.seed)
        self._numbers = 0
        self._turn = 0
        self._counted_s = 0.0

    @property
    def wanted(self) -> int:
        """spec.replicas, and at once status.replicas: pods that are not on their way out."""
        return sum(pod.phase is not Phase.DRAINING for pod in self._pods)

    @property
    def ready(self) -> int:
        return len(self._serving)

    @property
    def scheduled(self) -> int:
        """Pods that hold their GPUs and are to stay."""
        return sum(pod.phase in (Phase.LOADING, Phase.READY) for pod in self._pods)

    @property
    def running(self) -> int:
        return sum(pod.engine.running for pod in self._pods)

    @property
    def waiting(self) -> int:
        return len(self._shared) + sum(
            len(pod.engine.queue) for pod in self._pods if pod.engine.queue is not self._shared
        )

    def begin(self, replicas: int) -> None:
        """Replicas that are ready before the load begins."""
        for _ in range(replicas):
            self._serve(self._new_pod(), 0.0)

    def scale(self, replicas: int, now_s: float) -> None:
        self.count_gpu_time(now_s)
        for _ in range(replicas - self.wanted):
            self._new_pod()
            self._schedule(now_s + self.cluster.schedule_s, self._place_pods)
        for pod in sorted(self._staying(), key=_first_to_go)[: max(self.wanted - replicas, 0)]:
            self._stop(pod, now_s)

    def arrive(self, request: int, now_s: float) -> None:
        if not self._serving:
            self.lost.add(request)
            return
        pod = self._chosen()
        if pod is not None and pod.engine.has_slot:
            self._start(pod, request, now_s)
        else:
            (self._shared if pod is None else pod.engine.queue).append(request)

    def gauges(self) -> Iterator[PodGauges]:
        """What the pods export that answer on /metrics: those that have loaded and are still there."""
        for pod in self._pods:
            if pod.phase in (Phase.READY, Phase.DRAINING):
                queue = pod.engine.queue
                share = len(queue) / max(self.ready, 1) if queue is self._shared else len(queue)
                yield PodGauges(pod.number, round(share), pod.engine.running)

    def samples(self, values: dict[int, int]) -> tuple[PodSample, ...]:
        """Each pod as the HPA sees it, with what the metrics API has of it."""
        return tuple(self._sample(pod, values.get(pod.number)) for pod in self._pods)

    def count_gpu_time(self, now_s: float) -> None:
        """A pod is paid for from its container's start until it is gone."""
        holding = sum(pod.phase is not Phase.UNSCHEDULED for pod in self._pods)
        self.gpu_seconds += holding * self.cluster.gpus_per_replica * (now_s - self._counted_s)
        self._counted_s = now_s

    def _staying(self) -> list[Pod]:
        return [pod for pod in self._pods if pod.phase is not Phase.DRAINING]

    def _new_pod(self) -> Pod:
        self._numbers += 1
        shared = self.cluster.routing is Routing.SHARED_QUEUE
        pod = Pod(self._numbers, Engine(self.model, self._shared if shared else deque()))
        self._pods.append(pod)
        return pod

    def _place_pods(self, now_s: float) -> None:
        """Give free GPUs to the pods that have waited longest."""
        self.count_gpu_time(now_s)
        for pod in self._pods:
            taken = sum(other.phase is not Phase.UNSCHEDULED for other in self._pods)
            if pod.phase is Phase.UNSCHEDULED and taken < self.cluster.places:
                pod.phase = Phase.LOADING
                ready_s = now_s + self.cluster.load_s + self.cluster.ready_lag_s
                self._schedule(ready_s, partial(self._loaded, pod))

    def _loaded(self, pod: Pod, now_s: float) -> None:
        if pod.phase is Phase.LOADING:
            self._serve(pod, now_s)

    def _serve(self, pod: Pod, now_s: float) -> None:
        pod.phase = Phase.READY
        self._serving.append(pod)
        self._refill(pod, now_s)

    def _stop(self, pod: Pod, now_s: float) -> None:
        if pod.phase is not Phase.READY:
            pod.phase = Phase.DRAINING
            self._remove(pod, now_s)
            return
        pod.phase = Phase.DRAINING
        self._serving.remove(pod)
        if pod.engine.queue is self._shared:
            pod.engine.queue = deque()
        self._schedule(now_s + self.cluster.drain_s, partial(self._kill, pod))
        self._leave_if_empty(pod, now_s)

    def _kill(self, pod: Pod, now_s: float) -> None:
        if pod in self._pods:
            pod.generation += 1
            self.lost.update(pod.engine.abandon())
            self._remove(pod, now_s)

    def _leave_if_empty(self, pod: Pod, now_s: float) -> None:
        if pod.phase is Phase.DRAINING and not pod.engine.running and not pod.engine.queue:
            self._remove(pod, now_s)

    def _remove(self, pod: Pod, now_s: float) -> None:
        self.count_gpu_time(now_s)
        self._pods.remove(pod)
        self._schedule(now_s, self._place_pods)

    def _chosen(self) -> Pod | None:
        """The replica of a new request; None if it waits in front of all."""
        match self.cluster.routing:
            case Routing.RANDOM:
                return self._serving[int(self._dice.random() * len(self._serving))]
            case Routing.ROUND_ROBIN:
                self._turn += 1
                return self._serving[self._turn % len(self._serving)]
            case Routing.LEAST_LOADED:
                return min(self._serving, key=lambda pod: pod.engine.running + len(pod.engine.queue))
            case Routing.SHARED_QUEUE:
                free = min(self._serving, key=lambda pod: pod.engine.running)
                return free if free.engine.has_slot else None

    def _start(self, pod: Pod, request: int, now_s: float) -> None:
        self.started_s[request] = now_s
        pod.engine.start(request, now_s)
        self._foresee_finish(pod)

    def _foresee_finish(self, pod: Pod) -> None:
        pod.generation += 1
        finish_s = pod.engine.next_finish_s()
        if finish_s is not None:
            self._schedule(finish_s, partial(self._finish, pod, pod.generation))

    def _finish(self, pod: Pod, generation: int, now_s: float) -> None:
        if generation != pod.generation:
            return
        pod.engine.finish_next(now_s)
        self._refill(pod, now_s)
        self._foresee_finish(pod)
        self._leave_if_empty(pod, now_s)

    def _refill(self, pod: Pod, now_s: float) -> None:
        while pod.engine.queue and pod.engine.has_slot:
            self._start(pod, pod.engine.queue.popleft(), now_s)

    def _sample(self, pod: Pod, usage: int | None) -> PodSample:
        if pod.phase is Phase.DRAINING:
            return PodSample(PodState.GONE, None)
        if pod.phase is Phase.UNSCHEDULED:
            return PodSample(PodState.PENDING, None)
        return PodSample(PodState.RUNNING, None if usage is None else usage * 1000)


def _first_to_go(pod: Pod) -> tuple[int, int]:
    """A ReplicaSet deletes unscheduled pods first, then those not ready, then the youngest."""
    return (Phase.UNSCHEDULED, Phase.LOADING, Phase.READY).index(pod.phase), -pod.number
