"""An autoscaling loop, link by link: when each of them first knew that more replicas are needed, and what broke.

A loop that is too slow and one that is broken look alike from outside: the queue grows and no replica comes. Each link
is sampled on its own, so that the lag, or the break, has a name.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shakedown.judge.records import Mark, MarkKind, MetricSample

THRESHOLD_FACT = "waiting requests for each replica that the autoscaler allows"
SCALER = "autoscaling"
"""Samples of the loop carry this name where others carry a pod's."""
WAITING = "loop:waiting"
"""Requests waiting, by the engines' own word."""
QUERIED = "loop:query"
"""The same by the autoscaler's query to Prometheus; absent where that has no answer."""
SERVED = "loop:metrics_api"
"""The same by the Kubernetes metrics API; absent where that has no answer."""
DESIRED = "loop:desired"
"""Replicas that the HPA wants."""
STARTED = "loop:started"
"""Pods that exist."""
SCHEDULED = "loop:scheduled"
"""Pods that have a node."""
READY = "loop:ready"
"""Pods that are Ready."""
SERVING = "loop:serving"
"""Pods that have requests running."""

SIMULATED = "loop:simulated"
"""Replicas that a simulation of the same arrivals wants; samples of the pod "simulator"."""
LONG_QUEUE = "the queue is longer than its threshold"
MORE_WANTED = "the HPA wants more replicas"
MORE_READY = "a new replica is Ready"
MORE_SERVING = "traffic arrives at it"
DRAINED = "the queue has drained"


@dataclass(frozen=True, slots=True)
class Link:
    """One link, and when it first held. `at` None: it never did."""

    name: str
    at: float | None
    latency_s: float | None
    """Since the link before it held."""


def scale_out(samples: Sequence[MetricSample], marks: Sequence[Mark], threshold: float) -> tuple[Link, ...]:
    """The links of the first scale-out, in causal order. Empty without samples of the loop.

    The need begins where more requests wait than `threshold` for each replica that was Ready when the load began.
    """
    loop = [sample for sample in samples if sample.pod == SCALER]
    starts = [mark.at for mark in marks if mark.kind is MarkKind.LOAD_STARTED]
    if not loop or not starts:
        return ()
    since = min(starts)
    before = next((sample for sample in reversed(loop) if sample.at <= since), loop[0])
    replicas = before.values.get(READY, 1.0)
    bar = threshold * max(replicas, 1.0)
    steps: list[tuple[str, Callable[[MetricSample], bool]]] = [
        (LONG_QUEUE, _above(WAITING, bar)),
        ("Prometheus has scraped it", _above(QUERIED, bar)),
        ("the metrics API serves it", _above(SERVED, bar)),
        (MORE_WANTED, _above(DESIRED, replicas)),
        ("a pod was made", _above(STARTED, replicas)),
        ("it has a node", _above(SCHEDULED, replicas)),
        (MORE_READY, _above(READY, replicas)),
        (MORE_SERVING, _above(SERVING, replicas)),
        (DRAINED, lambda sample: sample.values.get(WAITING, bar) <= 0),
    ]
    return _timed(steps, [sample for sample in loop if sample.at >= since], since)


def _above(name: str, bar: float) -> Callable[[MetricSample], bool]:
    return lambda sample: sample.values.get(name, bar) > bar


def _timed(
    steps: Sequence[tuple[str, Callable[[MetricSample], bool]]], loop: Sequence[MetricSample], since: float
) -> tuple[Link, ...]:
    links, previous = [], since
    for index, (name, holds) in enumerate(steps):
        # Draining is the last effect: an empty queue before the others held is the state before the load.
        from_ = previous if index == len(steps) - 1 else since
        at = next((sample.at for sample in loop if sample.at >= from_ and holds(sample)), None)
        links.append(Link(name, at, None if at is None else max(0.0, at - previous)))
        previous = max(previous, at) if at is not None else previous
    return tuple(links)


@dataclass(frozen=True, slots=True)
class Outage:
    """A link that gave no answer between two wall times."""

    link: str
    start: float
    end: float


LINKS_WITH_AN_ANSWER = {QUERIED: "Prometheus", SERVED: "the metrics API", WAITING: "the engines' own metrics"}


def outages(samples: Sequence[MetricSample]) -> tuple[Outage, ...]:
    """Stretches in which a link of the loop had no answer, in order of time.

    Where no replica is Ready there are no engines that could answer, and their silence is no outage.
    """
    loop = [sample for sample in samples if sample.pod == SCALER]
    found = []
    for key, link in LINKS_WITH_AN_ANSWER.items():
        start: float | None = None
        for sample in loop:
            if key not in sample.values and not (key == WAITING and sample.values.get(READY) == 0):
                start = sample.at if start is None else start
            elif start is not None:
                found.append(Outage(link, start, sample.at))
                start = None
        if start is not None:
            found.append(Outage(link, start, loop[-1].at))
    return tuple(sorted(found, key=lambda outage: outage.start))


def turns(samples: Sequence[MetricSample]) -> int:
    """How often the wanted number of replicas changed its direction: more, fewer, more… 0 for a calm loop."""
    wanted = [sample.values[DESIRED] for sample in samples if sample.pod == SCALER and DESIRED in sample.values]
    steps = [later - earlier for earlier, later in itertools.pairwise(wanted) if later != earlier]
    return sum((earlier > 0) is not (later > 0) for earlier, later in itertools.pairwise(steps))
