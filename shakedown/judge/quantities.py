"""What the records answer when asked for a quantity: the value, and when and how it came about."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import cast

import msgspec

from shakedown.judge.accounting import account, in_flight
from shakedown.judge.expectations import Parameter, Quantity, Unit, Value, printed
from shakedown.judge.latency import e2e_latency, inter_token_latencies, longest_gap, send_lag, token_count, tpot, ttft
from shakedown.judge.loop import SCALER, scale_out, turns
from shakedown.judge.loop import outages as link_outages
from shakedown.judge.objectives import SLO, is_good
from shakedown.judge.objectives import goodput as goodput_of
from shakedown.judge.objectives import goodput_rate as goodput_rate_of
from shakedown.judge.percentiles import percentile
from shakedown.judge.progress import Progress, stretches
from shakedown.judge.records import MarkKind, MetricSample, Outcome, Recorded, RequestRecord
from shakedown.judge.recovery import ServedSecond, outages, recovery, served_seconds
from shakedown.judge.windows import (
    EVERYTHING,
    Phase,
    due_within,
    fault_window,
    origin,
    phase_window,
    sampled_within,
    strike_window,
)

Parameters = dict[str, Parameter]


class Unanswerable(Exception):
    """The records do not hold what is needed; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A value, and a sentence on when it happened."""

    value: Value
    detail: str = ""


def measure(quantity: Quantity, recorded: Recorded) -> Measured:
    """Ask the records. Raises Unanswerable."""
    try:
        ask = MEASURES[quantity.kind]
    except KeyError:
        raise Unanswerable(f"this version does not know the quantity {quantity.kind!r}") from None
    return ask(quantity.parameters, recorded)


def offset(recorded: Recorded, at: float) -> str:
    """An instant as people say it: "3.2 s after the fault began"."""
    start, name = origin(recorded)
    if at < start and name.startswith("after"):
        return f"{start - at:.1f} s before {name.removeprefix('after ')}"
    return f"{at - start:.1f} s {name}"


def _requests(parameters: Parameters, recorded: Recorded) -> tuple[RequestRecord, ...]:
    """The requests that a clause speaks about. Raises Unanswerable when there are none."""
    phase = Phase(str(parameters.get("during", "whole")))
    window = phase_window(recorded.marks, phase)
    if window is None:
        raise Unanswerable("no fault was recorded, so nothing was before, during or after one")
    chosen = due_within(recorded.requests, window)
    traffic_class = parameters.get("traffic_class")
    if traffic_class is not None:
        chosen = tuple(record for record in chosen if record.traffic_class == traffic_class)
    if not chosen:
        users = f"{traffic_class} request" if traffic_class else "request"
        raise Unanswerable(f"no {users} was recorded {phase.in_words}".rstrip())
    return chosen


def _slo(parameters: Parameters) -> SLO:
    return msgspec.convert(parameters["slo"], SLO)


def _goodput(parameters: Parameters, recorded: Recorded) -> Measured:
    chosen, slo = _requests(parameters, recorded), _slo(parameters)
    return Measured(goodput_of(chosen, slo), _what_went_wrong(chosen, slo, recorded))


def _what_went_wrong(chosen: Sequence[RequestRecord], slo: SLO, recorded: Recorded) -> str:
    bad = [record for record in chosen if not is_good(record, slo)]
    if not bad:
        return ""
    causes: Counter[str] = Counter()
    for record in bad:
        late = " and ".join(slo.missed_by(record))
        causes[f"late on {late}" if record.outcome is Outcome.COMPLETED else _in_words(record.outcome)] += 1
    listed = ", ".join(f"{count} {cause}" for cause, count in causes.most_common())
    return f"{len(bad)} of {len(chosen)} requests were not good ({listed}), {_when(bad, recorded)}"


def _when(records: Sequence[RequestRecord], recorded: Recorded) -> str:
    dues = [record.due_at for record in records]
    if len(dues) == 1:
        return f"due {offset(recorded, dues[0])}"
    return f"the first due {offset(recorded, min(dues))}, the last {offset(recorded, max(dues))}"


def _in_words(outcome: Outcome) -> str:
    return outcome.value.replace("_", " ")


def _goodput_rate(parameters: Parameters, recorded: Recorded) -> Measured:
    chosen, slo = _requests(parameters, recorded), _slo(parameters)
    return Measured(goodput_rate_of(chosen, slo), _what_went_wrong(chosen, slo, recorded))


FELT: dict[str, Callable[[RequestRecord], float | None]] = {
    "ttft": ttft,
    "tpot": tpot,
    "e2e": e2e_latency,
    "longest_gap": longest_gap,
    "send_lag": send_lag,
}


AS_FAR_AS_IT_GOES = ("send_lag", "longest_gap")
"""Quantities that a failed request has as well as a completed one."""


def _percentile(parameters: Parameters, recorded: Recorded) -> Measured:
    chosen = [record for record in _requests(parameters, recorded) if record.outcome is not Outcome.ABANDONED]
    felt = str(parameters["felt"])
    completed = [record for record in chosen if record.outcome is Outcome.COMPLETED]
    if felt == "itl":
        values = [gap for record in completed for gap in inter_token_latencies(record)]
        return Measured(_some(percentile(values, float(cast(float, parameters["q"]))), "no answer had two tokens"))
    judged = completed if parameters["completed_only"] else chosen
    felt_by = [(_as_felt(record, felt), record) for record in judged]
    known = [(value, record) for value, record in felt_by if value is not None]
    value = percentile((value for value, _ in known), float(cast(float, parameters["q"])))
    measured = _some(value, "no request was fit to be measured")
    return Measured(measured, _slowest(known, recorded))


def _times_slower(parameters: Parameters, recorded: Recorded) -> Measured:
    of_one = {"felt": parameters["felt"], "q": parameters["q"], "completed_only": False}
    here = _percentile({**of_one, "traffic_class": parameters["traffic_class"]}, recorded)
    there = _percentile({**of_one, "traffic_class": parameters["than"]}, recorded)
    slow_s, usual_s = float(cast(float, here.value)), float(cast(float, there.value))
    if not 0 < usual_s < math.inf:
        raise Unanswerable(f"{parameters['than']} felt {printed(usual_s, Unit.SECONDS)}, of which there is no multiple")
    detail = f"{printed(slow_s, Unit.SECONDS)} against {printed(usual_s, Unit.SECONDS)}; {here.detail}"
    return Measured(round(slow_s / usual_s, 2), detail)


def _as_felt(record: RequestRecord, felt: str) -> float | None:
    """Infinity for an answer that did not come to its end, whatever part of it came."""
    if felt not in AS_FAR_AS_IT_GOES and record.outcome is not Outcome.COMPLETED:
        return math.inf
    return FELT[felt](record)


def _slowest(known: Sequence[tuple[float, RequestRecord]], recorded: Recorded) -> str:
    value, record = max(known, key=lambda pair: pair[0])
    if math.isinf(value):
        failed = [record for value, record in known if math.isinf(value)]
        return f"{len(failed)} of {len(known)} requests never got a whole answer, {_when(failed, recorded)}"
    return f"the slowest, {printed(value, Unit.SECONDS)}, was due {offset(recorded, record.due_at)}"


def _some(value: float | None, otherwise: str) -> float:
    if value is None:
        raise Unanswerable(otherwise)
    return value


def _events_per_read(parameters: Parameters, recorded: Recorded) -> Measured:
    streams = [record for record in _requests(parameters, recorded) if record.outcome is Outcome.COMPLETED]
    reads = sum(record.reads for record in streams)
    if not reads:
        raise Unanswerable("no completed stream tells how many reads it took")
    events = sum(record.events for record in streams)
    return Measured(round(events / reads, 2), f"{events} events of {len(streams)} streams came in {reads} reads")


def _request_count(parameters: Parameters, recorded: Recorded) -> Measured:
    return Measured(len(_requests(parameters, recorded)))


def _of_outcomes(parameters: Parameters, recorded: Recorded) -> tuple[list[RequestRecord], int, str]:
    chosen = _requests(parameters, recorded)
    wanted = {Outcome(outcome) for outcome in cast(list[str], parameters["outcomes"])}
    matching = [record for record in chosen if record.outcome in wanted]
    others = Counter(_in_words(record.outcome) for record in chosen)
    books = ", ".join(f"{count} {outcome}" for outcome, count in others.most_common())
    detail = f"of {len(chosen)} requests: {books}"
    return matching, len(chosen), detail + (f"; those counted were {_when(matching, recorded)}" if matching else "")


def _outcome_count(parameters: Parameters, recorded: Recorded) -> Measured:
    matching, _, detail = _of_outcomes(parameters, recorded)
    return Measured(len(matching), detail)


def _outcome_share(parameters: Parameters, recorded: Recorded) -> Measured:
    matching, total, detail = _of_outcomes(parameters, recorded)
    return Measured(len(matching) / total, detail)


def _fault_at(recorded: Recorded) -> float:
    window = fault_window(recorded.marks)
    if window is None:
        raise Unanswerable("no fault was recorded")
    return window.start


def _caught(recorded: Recorded) -> tuple[RequestRecord, ...]:
    strike = strike_window(recorded.marks)
    if strike is None:
        raise Unanswerable("no fault was recorded")
    return tuple(caught.record for caught in in_flight(recorded.requests, strike))


def _lost(records: Sequence[RequestRecord]) -> list[RequestRecord]:
    return [record for record in records if record.outcome not in (Outcome.COMPLETED, Outcome.ABANDONED)]


def _listed(records: Sequence[RequestRecord]) -> str:
    ends = Counter(_in_words(record.outcome) for record in records)
    return ", ".join(f"{count} {end}" for end, count in ends.most_common()) or "none lost"


def _lost_in_flight(_: Parameters, recorded: Recorded) -> Measured:
    caught = _caught(recorded)
    if not caught:
        raise Unanswerable("no request was in flight when the fault struck")
    lost = _lost(caught)
    return Measured(len(lost), f"of {len(caught)} in flight when the fault struck: {_listed(lost)}")


def _lost_beyond_in_flight(_: Parameters, recorded: Recorded) -> Measured:
    caught = {record.id for record in _caught(recorded)}
    others = [record for record in recorded.requests if record.id not in caught]
    if not others:
        raise Unanswerable("every request was in flight when the fault struck")
    lost = _lost(others)
    when = f", {_when(lost, recorded)}" if lost else ""
    return Measured(len(lost), f"of {len(others)} not in flight when the fault struck: {_listed(lost)}{when}")


def _unaccounted(_: Parameters, recorded: Recorded) -> Measured:
    if not recorded.requests:
        raise Unanswerable("no request was recorded")
    told = recorded.facts.get("requests_sent")
    sent = told.value if told is not None and isinstance(told.value, int) else None
    books = account(recorded.requests, sent)
    amiss = len(books.repeated) + abs(books.missing)
    return Measured(amiss, f"{books.missing} without a record, {len(books.repeated)} with more than one")


def _output_token_throughput(parameters: Parameters, recorded: Recorded) -> Measured:
    chosen = _requests(parameters, recorded)
    return Measured(sum(token_count(record) for record in chosen) / _lasted_s(chosen))


def _request_throughput(parameters: Parameters, recorded: Recorded) -> Measured:
    chosen = _requests(parameters, recorded)
    completed = sum(record.outcome is Outcome.COMPLETED for record in chosen)
    return Measured(completed / _lasted_s(chosen))


def _lasted_s(chosen: Sequence[RequestRecord]) -> float:
    lasted = max(record.finished_at for record in chosen) - min(record.due_at for record in chosen)
    if lasted <= 0:
        raise Unanswerable("the requests took no time, so there is no rate")
    return lasted


def _seconds_after_fault(parameters: Parameters, recorded: Recorded) -> tuple[ServedSecond, ...]:
    chosen = _requests({"traffic_class": parameters.get("traffic_class")}, recorded)
    seconds = served_seconds(chosen, _slo(parameters), _fault_at(recorded))
    if not seconds:
        raise Unanswerable("no request was due after the fault began")
    return seconds


def _time_to_recovery(parameters: Parameters, recorded: Recorded) -> Measured:
    seconds = _seconds_after_fault(parameters, recorded)
    good_share, lasting_s = float(cast(float, parameters["good_share"])), int(cast(int, parameters["lasting_s"]))
    found = recovery(seconds, good_share=good_share, lasting_s=lasting_s)
    if not found.settled:
        raise Unanswerable(
            f"the load ended {len(seconds) - found.time_to_recovery_s:.0f} s after users were served well again, "
            f"too soon to call it {lasting_s} s of lasting recovery"
        )
    if math.isinf(found.time_to_recovery_s):
        return Measured(math.inf, "users were still badly served when the load ended")
    return Measured(round(found.time_to_recovery_s, 3), _worst_second(seconds, recorded))


def _outage(parameters: Parameters, recorded: Recorded) -> Measured:
    seconds = _seconds_after_fault(parameters, recorded)
    good_share, lasting_s = float(cast(float, parameters["good_share"])), int(cast(int, parameters["lasting_s"]))
    found = outages(seconds, good_share=good_share, lasting_s=lasting_s)
    return Measured(sum(window.length_s for window in found), _worst_second(seconds, recorded))


def _worst_second(seconds: Sequence[ServedSecond], recorded: Recorded) -> str:
    worst = max(seconds, key=lambda second: second.sent - second.good)
    if worst.sent == worst.good:
        return ""
    return (
        f"the worst second began {offset(recorded, worst.start)}: "
        f"{worst.sent - worst.good} of {worst.sent} requests due in it were not good"
    )


def _samples(parameters: Parameters, recorded: Recorded) -> list[MetricSample]:
    """The samples that carry the metric. Raises Unanswerable when there are none."""
    phase, metric = Phase(str(parameters["during"])), str(parameters["metric"])
    window = phase_window(recorded.marks, phase)
    if window is None:
        raise Unanswerable("no fault was recorded, so nothing was before, during or after one")
    chosen = [sample for sample in sampled_within(recorded.samples, window) if metric in sample.values]
    if not chosen:
        scraped = f"{len(recorded.samples)} scrapes hold other metrics" if recorded.samples else "there are no scrapes"
        raise Unanswerable(f"no sample of {metric} was recorded {phase.in_words}".rstrip() + f" ({scraped})")
    return sorted(chosen, key=lambda sample: sample.at)


def _readings(parameters: Parameters, recorded: Recorded) -> list[tuple[float, float, str]]:
    """(value, at, pod) of each sample, or of all pods together at each sample's instant."""
    metric = str(parameters["metric"])
    latest: dict[str, float] = {}
    readings = []
    for sample in _samples(parameters, recorded):
        latest[sample.pod] = sample.values[metric]
        if parameters["summed"]:
            readings.append((sum(latest.values()), sample.at, "all pods"))
        else:
            readings.append((sample.values[metric], sample.at, sample.pod))
    return readings


def _peak(parameters: Parameters, recorded: Recorded) -> Measured:
    value, at, pod = max(_readings(parameters, recorded), key=lambda reading: reading[0])
    return Measured(value, f"reached on {pod} {offset(recorded, at)}")


def _lowest(parameters: Parameters, recorded: Recorded) -> Measured:
    value, at, pod = min(_readings(parameters, recorded), key=lambda reading: reading[0])
    return Measured(value, f"reached on {pod} {offset(recorded, at)}")


LAST_SCRAPES_S = 5.0
"""Pods scraped within this long of the very last scrape are taken to be there at the end."""


def _last(parameters: Parameters, recorded: Recorded) -> Measured:
    samples, metric = _samples(parameters, recorded), str(parameters["metric"])
    final = samples[-1].at
    latest = {sample.pod: sample.values[metric] for sample in samples if sample.at >= final - LAST_SCRAPES_S}
    return Measured(sum(latest.values()), f"on {len(latest)} pods {offset(recorded, final)}")


def counter_rises(samples: Sequence[MetricSample], metric: str) -> list[tuple[float, float, str]]:
    """(rise, at, pod) between consecutive scrapes of each pod; after a reset, all that the new counter shows."""
    by_pod: dict[str, list[MetricSample]] = {}
    for sample in samples:
        if metric in sample.values:
            by_pod.setdefault(sample.pod, []).append(sample)
    rises = []
    for pod, scrapes in by_pod.items():
        for earlier, later in pairwise(sorted(scrapes, key=lambda sample: sample.at)):
            before, after = earlier.values[metric], later.values[metric]
            rises.append((after - before if after >= before else after, later.at, pod))
    return rises


def _increase(parameters: Parameters, recorded: Recorded) -> Measured:
    metric = str(parameters["metric"])
    window = phase_window(recorded.marks, Phase(str(parameters["during"]))) or EVERYTHING
    _samples(parameters, recorded)
    rises = [rise for rise in counter_rises(recorded.samples, metric) if rise[1] in window]
    if not rises:
        raise Unanswerable(f"{metric} was scraped only once per pod, so no increase can be told")
    rose = [rise for rise in rises if rise[0] > 0]
    detail = f"first rose {offset(recorded, min(at for _, at, _ in rose))}" if rose else "it never rose"
    return Measured(sum(rise for rise, _, _ in rises), detail)


def _time_in(parameters: Parameters, recorded: Recorded) -> Measured:
    wanted = Progress(str(parameters["progress"]))
    known = stretches(recorded.samples)
    if not known:
        raise Unanswerable("no engine was scraped twice, so nobody knows what it did")
    found = [stretch for stretch in known if stretch.progress is wanted]
    detail = f"first {offset(recorded, found[0].start)} on {found[0].pod}" if found else "never"
    return Measured(sum(stretch.length_s for stretch in found), detail)


def _scale_out_time(parameters: Parameters, recorded: Recorded) -> Measured:
    threshold = cast(float, parameters["threshold"])
    links = scale_out(recorded.samples, recorded.marks, threshold)
    found = next((link for link in links if link.name == parameters["link"]), None)
    if found is None:
        raise Unanswerable("no autoscaling loop was watched under load")
    broken = next((link for link in links if link.at is None), None)
    if found.at is None:
        return Measured(math.inf, f"the first link that never held: {broken.name}" if broken else "")
    start = min(mark.at for mark in recorded.marks if mark.kind is MarkKind.LOAD_STARTED)
    return Measured(found.at - start, f"{found.latency_s or 0.0:.1f} s after the link before it")


def _link_outage(parameters: Parameters, recorded: Recorded) -> Measured:
    if not any(sample.pod == SCALER for sample in recorded.samples):
        raise Unanswerable("no autoscaling loop was watched")
    found = [outage for outage in link_outages(recorded.samples) if outage.link == parameters["link"]]
    detail = f"from {offset(recorded, found[0].start)}" if found else "it always answered"
    return Measured(sum(outage.end - outage.start for outage in found), detail)


def _changes_of_mind(_: Parameters, recorded: Recorded) -> Measured:
    if not any(sample.pod == SCALER for sample in recorded.samples):
        raise Unanswerable("no autoscaling loop was watched")
    return Measured(turns(recorded.samples))


def _fact(parameters: Parameters, recorded: Recorded) -> Measured:
    name = str(parameters["fact"])
    if name not in recorded.facts:
        raise Unanswerable(f"the scenario never wrote down {name!r}")
    return Measured(recorded.facts[name].value)


def _mark_count(parameters: Parameters, recorded: Recorded) -> Measured:
    kind, text = MarkKind(str(parameters["kind"])), str(parameters["text"])
    if not recorded.marks:
        raise Unanswerable("no mark was recorded")
    matching = [mark for mark in recorded.marks if mark.kind is kind and text in mark.text]
    detail = f"the first {offset(recorded, matching[0].at)}: {matching[0].text}" if matching else ""
    return Measured(len(matching), detail)


def _time_between(parameters: Parameters, recorded: Recorded) -> Measured:
    first, then = MarkKind(str(parameters["first"])), MarkKind(str(parameters["then"]))
    starts = [mark.at for mark in recorded.marks if mark.kind is first]
    if not starts:
        raise Unanswerable(f"no mark {first.value.replace('_', ' ')!r} was recorded")
    ends = [mark.at for mark in recorded.marks if mark.kind is then and mark.at >= min(starts)]
    return Measured(min(ends) - min(starts) if ends else math.inf)


MEASURES: dict[str, Callable[[Parameters, Recorded], Measured]] = {
    "goodput": _goodput,
    "goodput_rate": _goodput_rate,
    "percentile": _percentile,
    "times_slower": _times_slower,
    "events_per_read": _events_per_read,
    "request_count": _request_count,
    "outcome_count": _outcome_count,
    "outcome_share": _outcome_share,
    "lost_in_flight": _lost_in_flight,
    "lost_beyond_in_flight": _lost_beyond_in_flight,
    "unaccounted": _unaccounted,
    "output_token_throughput": _output_token_throughput,
    "request_throughput": _request_throughput,
    "time_to_recovery": _time_to_recovery,
    "outage": _outage,
    "peak": _peak,
    "lowest": _lowest,
    "last": _last,
    "increase": _increase,
    "time_in": _time_in,
    "scale_out_time": _scale_out_time,
    "link_outage": _link_outage,
    "changes_of_mind": _changes_of_mind,
    "fact": _fact,
    "mark_count": _mark_count,
    "time_between": _time_between,
}
