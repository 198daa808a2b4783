"""An autoscaling loop is timed link by link, and a broken link has a name."""

from shakedown.judge.loop import (
    DESIRED,
    QUERIED,
    READY,
    SCALER,
    SCHEDULED,
    SERVED,
    SERVING,
    STARTED,
    WAITING,
    outages,
    scale_out,
    turns,
)
from shakedown.judge.records import Mark, MarkKind, MetricSample

LOAD = [Mark(at=10.0, kind=MarkKind.LOAD_STARTED, text="load")]


def sample(at: float, **values: float) -> MetricSample:
    calm = {WAITING: 0, QUERIED: 0, SERVED: 0, DESIRED: 1, STARTED: 1, SCHEDULED: 1, READY: 1, SERVING: 1}
    names = {"waiting": WAITING, "queried": QUERIED, "served": SERVED, "desired": DESIRED, "started": STARTED}
    names |= {"scheduled": SCHEDULED, "ready": READY, "serving": SERVING}
    return MetricSample(at=at, pod=SCALER, values=calm | {names[key]: value for key, value in values.items()})


SOUND = [
    sample(9),
    sample(10),
    sample(12, waiting=20),
    sample(14, waiting=30, queried=20),
    sample(15, waiting=30, queried=30, served=30),
    sample(19, waiting=40, queried=40, served=40, desired=3),
    sample(20, waiting=40, queried=40, served=40, desired=3, started=3),
    sample(21, waiting=40, queried=40, served=40, desired=3, started=3, scheduled=3),
    sample(40, waiting=40, queried=40, served=40, desired=3, started=3, scheduled=3, ready=2),
    sample(41, waiting=30, queried=40, served=40, desired=3, started=3, scheduled=3, ready=3, serving=3),
    sample(55, waiting=0, queried=0, served=0, desired=3, started=3, scheduled=3, ready=3, serving=3),
]


def test_every_link_has_its_own_latency() -> None:
    links = scale_out(SOUND, LOAD, threshold=5)
    assert [(link.at, link.latency_s) for link in links] == [
        (12, 2),
        (14, 2),
        (15, 1),
        (19, 4),
        (20, 1),
        (21, 1),
        (40, 19),
        (41, 1),
        (55, 14),
    ]


def test_a_link_that_never_held_is_the_broken_one() -> None:
    without_nodes = [each for each in SOUND if each.at <= 20]
    links = scale_out(without_nodes, LOAD, threshold=5)
    assert next(link.name for link in links if link.at is None) == "it has a node"


def test_the_empty_queue_before_the_load_is_no_drained_one() -> None:
    growing = [each for each in SOUND if each.at <= 41]
    assert scale_out(growing, LOAD, threshold=5)[-1].at is None


def test_the_need_grows_with_the_replicas_that_there_are() -> None:
    three = [sample(9, ready=3, desired=3, started=3, scheduled=3), sample(12, waiting=14, ready=3)]
    assert scale_out(three, LOAD, threshold=5)[0].at is None


def test_without_a_load_or_a_loop_there_is_nothing_to_time() -> None:
    assert scale_out(SOUND, [], threshold=5) == ()
    assert scale_out([], LOAD, threshold=5) == ()


def test_a_link_without_an_answer_is_an_outage_with_its_name() -> None:
    silent = MetricSample(at=2.0, pod=SCALER, values={WAITING: 3.0, SERVED: 3.0})
    found = outages([sample(1), silent, sample(4), sample(5)])
    assert [(outage.link, outage.start, outage.end) for outage in found] == [("Prometheus", 2.0, 4.0)]


def test_engines_that_are_not_wanted_are_silent_without_an_outage() -> None:
    asleep = MetricSample(at=2.0, pod=SCALER, values={QUERIED: 0.0, SERVED: 0.0, READY: 0.0})
    deaf = MetricSample(at=3.0, pod=SCALER, values={QUERIED: 0.0, SERVED: 0.0, READY: 1.0})
    assert outages([sample(1), asleep, sample(4)]) == ()
    assert [outage.link for outage in outages([sample(1), deaf, sample(4)])] == ["the engines' own metrics"]


def test_turns_count_changes_of_mind_and_not_steps() -> None:
    assert turns([sample(0, desired=1), sample(1, desired=2), sample(2, desired=4)]) == 0
    assert turns([sample(0, desired=1), sample(1, desired=3), sample(2, desired=3), sample(3, desired=1)]) == 1
    assert turns([sample(t, desired=1 + t % 2) for t in range(6)]) == 4
