"""The bargain as data: a quantity, and what it must be. Written to expectations.json, judged again at any time."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import TypeAlias

from shakedown.judge.objectives import SLO
from shakedown.judge.progress import Progress
from shakedown.judge.records import MarkKind, Outcome
from shakedown.judge.windows import Phase

Value: TypeAlias = str | int | float | bool | list[str] | None
Parameter: TypeAlias = str | int | float | bool | list[str] | dict[str, float | None] | None

REQUESTS_FILE = "requests.jsonl"
METRICS_FILE = "metrics.jsonl"
MARKS_FILE = "marks.jsonl"
FACTS_FILE = "facts.jsonl"


METRIC_WORDS = {
    "vllm:num_requests_running": "running requests",
    "vllm:num_requests_waiting": "waiting requests",
    "vllm:kv_cache_usage_perc": "KV cache use",
    "vllm:num_preemptions_total": "preemptions",
    "vllm:generation_tokens_total": "generated tokens",
    "vllm:prompt_tokens_total": "prompt tokens",
    "vllm:prefix_cache_hits_total": "prefix cache hits",
    "vllm:prefix_cache_queries_total": "prefix cache queries",
    "vllm:request_success_total": "finished requests",
    "loop:desired": "replicas wanted by the HPA",
    "loop:ready": "Ready replicas",
    "loop:started": "pods",
    "loop:scheduled": "pods with a node",
    "loop:waiting": "waiting requests of all engines",
}
"""What the engine's metrics are called in a report; the evidence names the metric itself."""


class Unit(StrEnum):
    """How a value is printed."""

    SHARE = "share"  # 0..1, printed in per cent
    SECONDS = "s"
    PER_SECOND = "per s"
    COUNT = "count"
    NONE = ""


class Comparison(StrEnum):
    """What the measured value must be, compared with the limit."""

    AT_LEAST = "at_least"
    AT_MOST = "at_most"
    EQUALS = "equals"
    BETWEEN = "between"
    TRUE = "true"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """Something that the records of a scenario can be asked for."""

    kind: str
    """Key into shakedown.judge.quantities.MEASURES."""
    name: str
    """In words, as the report prints it."""
    unit: Unit = Unit.NONE
    parameters: dict[str, Parameter] = field(default_factory=dict)
    evidence: str = REQUESTS_FILE


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """One clause of the bargain."""

    quantity: Quantity
    comparison: Comparison
    limit: Value = None
    upper: float | None = None
    """The other end of a range."""
    guard: bool = False
    """True if missing it means that we failed to find out, not that the product failed."""

    @property
    def name(self) -> str:
        return self.quantity.name

    @property
    def bargain(self) -> str:
        """The limit in words."""
        unit = self.quantity.unit
        words = {
            Comparison.AT_LEAST: f"at least {printed(self.limit, unit)}",
            Comparison.AT_MOST: f"at most {printed(self.limit, unit)}",
            Comparison.EQUALS: f"exactly {printed(self.limit, unit)}",
            Comparison.BETWEEN: f"between {printed(self.limit, unit)} and {printed(self.upper, unit)}",
            Comparison.TRUE: "yes",
        }[self.comparison]
        return "none" if self.comparison is Comparison.EQUALS and self.limit == [] else words

    def is_met_by(self, value: Value) -> bool:
        """Compare. A value that is not a number meets no numeric limit."""
        if self.comparison is Comparison.EQUALS:
            return value == self.limit and isinstance(value, bool) == isinstance(self.limit, bool)
        if self.comparison is Comparison.TRUE:
            return value is True
        if not _is_number(value) or math.isnan(float(value)):  # type: ignore[arg-type]
            return False
        measured, limit = float(value), float(self.limit)  # type: ignore[arg-type]
        if self.comparison is Comparison.AT_LEAST:
            return measured >= limit
        if self.comparison is Comparison.AT_MOST:
            return measured <= limit
        return self.upper is not None and limit <= measured <= self.upper


def expectation(
    quantity: Quantity,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    equals: Value = None,
    between: tuple[float, float] | None = None,
    guard: bool = False,
) -> Expectation:
    """A clause: exactly one of the limits, or none, which means that the quantity must be true.

    Raises ValueError for more than one limit, or a limit that is not a number.
    """
    low, high = between if between is not None else (None, None)
    given: list[tuple[Comparison, Value]] = [
        (comparison, limit)
        for comparison, limit in (
            (Comparison.AT_LEAST, at_least),
            (Comparison.AT_MOST, at_most),
            (Comparison.EQUALS, equals),
            (Comparison.BETWEEN, low),
        )
        if limit is not None
    ]
    if len(given) > 1:
        raise ValueError(f"{quantity.name} has {len(given)} limits; one clause has one")
    comparison, limit = given[0] if given else (Comparison.TRUE, None)
    numeric = comparison not in (Comparison.EQUALS, Comparison.TRUE)
    if numeric and not (_is_number(limit) and math.isfinite(float(limit))):  # type: ignore[arg-type]
        raise ValueError(f"the limit of {quantity.name} must be a finite number, not {limit!r}")
    return Expectation(quantity=quantity, comparison=comparison, limit=limit, upper=high, guard=guard)


def goodput(slo: SLO, *, during: Phase = Phase.WHOLE, traffic_class: str | None = None) -> Quantity:
    """Share of the requests sent that completed within the SLO."""
    return Quantity(
        kind="goodput",
        name=_worded(f"goodput under {slo}", during, traffic_class),
        unit=Unit.SHARE,
        parameters={"slo": asdict(slo), **_scope(during, traffic_class)},
    )


def goodput_rate(slo: SLO, *, during: Phase = Phase.WHOLE, traffic_class: str | None = None) -> Quantity:
    """Good requests per second."""
    return Quantity(
        kind="goodput_rate",
        name=_worded(f"good requests per second under {slo}", during, traffic_class),
        unit=Unit.PER_SECOND,
        parameters={"slo": asdict(slo), **_scope(during, traffic_class)},
    )


def percentile_of(
    felt: str,
    q: float,
    *,
    during: Phase = Phase.WHOLE,
    traffic_class: str | None = None,
    completed_only: bool = False,
) -> Quantity:
    """A percentile of ttft, tpot, itl, e2e, longest_gap or send_lag over the requests sent.

    A request that failed counts as infinitely slow, unless `completed_only`: else a system that drops its slow requests
    would look fast. One that we abandoned does not count.
    """
    words = {
        "ttft": "time to first token",
        "tpot": "time per output token",
        "itl": "gap between tokens",
        "e2e": "time to the whole answer",
        "longest_gap": "longest silence inside a begun answer",
        "send_lag": "lateness of our own client",
    }
    among = ", completed requests only" if completed_only else ""
    return Quantity(
        kind="percentile",
        name=_worded(f"p{q:g} {words[felt]}{among}", during, traffic_class),
        unit=Unit.SECONDS,
        parameters={"felt": felt, "q": q, "completed_only": completed_only, **_scope(during, traffic_class)},
    )


def percentile_ttft(
    q: float, *, during: Phase = Phase.WHOLE, traffic_class: str | None = None, completed_only: bool = False
) -> Quantity:
    """Percentile of the time to first token; see percentile_of."""
    return percentile_of("ttft", q, during=during, traffic_class=traffic_class, completed_only=completed_only)


def percentile_tpot(
    q: float, *, during: Phase = Phase.WHOLE, traffic_class: str | None = None, completed_only: bool = True
) -> Quantity:
    """Percentile of the time per output token; a failed request has none, so completed ones by default."""
    return percentile_of("tpot", q, during=during, traffic_class=traffic_class, completed_only=completed_only)


def percentile_itl(
    q: float, *, during: Phase = Phase.WHOLE, traffic_class: str | None = None, completed_only: bool = True
) -> Quantity:
    """Percentile of all gaps between tokens."""
    return percentile_of("itl", q, during=during, traffic_class=traffic_class, completed_only=completed_only)


def percentile_e2e(
    q: float, *, during: Phase = Phase.WHOLE, traffic_class: str | None = None, completed_only: bool = False
) -> Quantity:
    """Percentile of the time from due to the end of the answer; see percentile_of."""
    return percentile_of("e2e", q, during=during, traffic_class=traffic_class, completed_only=completed_only)


def longest_gap(q: float, *, during: Phase = Phase.WHOLE, traffic_class: str | None = None) -> Quantity:
    """Percentile over begun answers, completed or not, of the longest silence that their readers saw."""
    return percentile_of("longest_gap", q, during=during, traffic_class=traffic_class)


def times_slower(felt: str, q: float, *, traffic_class: str, than: str) -> Quantity:
    """A percentile of one traffic class, divided by the same of another that was served under better conditions."""
    base = percentile_of(felt, q)
    return Quantity(
        kind="times_slower",
        name=f"{base.name} of {traffic_class}, in multiples of that of {than}",
        unit=Unit.NONE,
        parameters={"felt": felt, "q": q, "traffic_class": traffic_class, "than": than},
    )


def events_per_read(*, during: Phase = Phase.WHOLE, traffic_class: str | None = None) -> Quantity:
    """Events of completed streams per socket read that brought any: about 1 where nothing on the way buffers."""
    return Quantity(
        kind="events_per_read",
        name=_worded("events of a stream in one read", during, traffic_class),
        unit=Unit.COUNT,
        parameters=_scope(during, traffic_class),
    )


def request_count(*, during: Phase = Phase.WHOLE, traffic_class: str | None = None) -> Quantity:
    """How many requests were sent."""
    return Quantity(
        kind="request_count",
        name=_worded("requests sent", during, traffic_class),
        unit=Unit.COUNT,
        parameters=_scope(during, traffic_class),
    )


def outcome_count(*outcomes: Outcome, during: Phase = Phase.WHOLE, traffic_class: str | None = None) -> Quantity:
    """How many requests ended in one of these ways."""
    return Quantity(
        kind="outcome_count",
        name=_worded(f"requests that ended {_either(outcomes)}", during, traffic_class),
        unit=Unit.COUNT,
        parameters={"outcomes": [outcome.value for outcome in outcomes], **_scope(during, traffic_class)},
    )


def lost_requests(*, during: Phase = Phase.WHOLE, traffic_class: str | None = None) -> Quantity:
    """How many requests their users waited for in vain: neither completed nor given up by the user."""
    lost = [outcome for outcome in Outcome if outcome not in (Outcome.COMPLETED, Outcome.ABANDONED)]
    return replace(
        outcome_count(*lost, during=during, traffic_class=traffic_class),
        name=_worded("requests lost", during, traffic_class),
    )


def outcome_share(*outcomes: Outcome, during: Phase = Phase.WHOLE, traffic_class: str | None = None) -> Quantity:
    """Which share of the requests sent ended in one of these ways."""
    return Quantity(
        kind="outcome_share",
        name=_worded(f"share of requests that ended {_either(outcomes)}", during, traffic_class),
        unit=Unit.SHARE,
        parameters={"outcomes": [outcome.value for outcome in outcomes], **_scope(during, traffic_class)},
    )


def lost_in_flight() -> Quantity:
    """Requests under way when the fault landed that did not complete."""
    return Quantity(kind="lost_in_flight", name="requests in flight at the fault and not completed", unit=Unit.COUNT)


def lost_beyond_in_flight() -> Quantity:
    """Requests that did not complete although they were not under way when the fault struck."""
    return Quantity(
        kind="lost_beyond_in_flight", name="requests lost that were not in flight at the fault", unit=Unit.COUNT
    )


def unaccounted() -> Quantity:
    """Requests without exactly one outcome; compares with the fact "requests_sent" where there is one."""
    return Quantity(kind="unaccounted", name="requests without exactly one outcome", unit=Unit.COUNT)


def output_token_throughput(*, during: Phase = Phase.WHOLE, traffic_class: str | None = None) -> Quantity:
    """Tokens that reached clients per second, from first due to last end."""
    return Quantity(
        kind="output_token_throughput",
        name=_worded("output tokens per second", during, traffic_class),
        unit=Unit.PER_SECOND,
        parameters=_scope(during, traffic_class),
    )


def request_throughput(*, during: Phase = Phase.WHOLE, traffic_class: str | None = None) -> Quantity:
    """Completed requests per second, from first due to last end."""
    return Quantity(
        kind="request_throughput",
        name=_worded("completed requests per second", during, traffic_class),
        unit=Unit.PER_SECOND,
        parameters=_scope(during, traffic_class),
    )


def time_to_recovery(
    slo: SLO, *, good_share: float = 0.9, lasting_s: int = 5, traffic_class: str | None = None
) -> Quantity:
    """From the fault to the first second of a good run of `lasting_s`; good: that share met the SLO."""
    return Quantity(
        kind="time_to_recovery",
        name=_worded(f"time to recovery ({slo})", Phase.WHOLE, traffic_class),
        unit=Unit.SECONDS,
        parameters={
            "slo": asdict(slo),
            "good_share": good_share,
            "lasting_s": lasting_s,
            "traffic_class": traffic_class,
        },
    )


def outage(slo: SLO, *, good_share: float = 0.9, lasting_s: int = 5, traffic_class: str | None = None) -> Quantity:
    """Seconds of outage after the fault, all of them together."""
    return Quantity(
        kind="outage",
        name=_worded(f"outage after the fault ({slo})", Phase.WHOLE, traffic_class),
        unit=Unit.SECONDS,
        parameters={
            "slo": asdict(slo),
            "good_share": good_share,
            "lasting_s": lasting_s,
            "traffic_class": traffic_class,
        },
    )


def peak(metric: str, *, during: Phase = Phase.WHOLE, summed: bool = False, unit: Unit | None = None) -> Quantity:
    """Highest value of a gauge on any pod, or of all pods together."""
    return _gauge("peak", "peak of", metric, during, summed, unit)


def lowest(metric: str, *, during: Phase = Phase.WHOLE, summed: bool = False, unit: Unit | None = None) -> Quantity:
    """Lowest value of a gauge on any pod, or of all pods together."""
    return _gauge("lowest", "lowest", metric, during, summed, unit)


def last(metric: str, *, during: Phase = Phase.WHOLE, unit: Unit | None = None) -> Quantity:
    """Last value of a gauge, all pods that were last scraped together."""
    return _gauge("last", "last", metric, during, True, unit)


def increase(metric: str, *, during: Phase = Phase.WHOLE) -> Quantity:
    """How much a counter rose, all pods together; a restart of a pod is seen as a reset."""
    return Quantity(
        kind="increase",
        name=_worded(METRIC_WORDS.get(metric, f"increase of {metric}"), during, None),
        unit=Unit.COUNT,
        parameters={"metric": metric, "during": during.value},
        evidence=METRICS_FILE,
    )


def time_in(progress: Progress) -> Quantity:
    """Seconds that engines spent idle, flowing, thrashing, hung, stuck or dead; several engines add up."""
    return Quantity(
        kind="time_in",
        name=f"seconds in which an engine was {progress.value}",
        unit=Unit.SECONDS,
        parameters={"progress": progress.value},
        evidence=METRICS_FILE,
    )


def scale_out_time(link: str, threshold: float) -> Quantity:
    """From the start of the load until a link of the autoscaling loop held; infinity if it never did."""
    return Quantity(
        kind="scale_out_time",
        name=f"time until {link}",
        unit=Unit.SECONDS,
        parameters={"link": link, "threshold": threshold},
        evidence=METRICS_FILE,
    )


def link_outage(link: str) -> Quantity:
    """Seconds in which a link of the autoscaling loop gave no answer: Prometheus, the metrics API…"""
    return Quantity(
        kind="link_outage",
        name=f"time without an answer of {link}",
        unit=Unit.SECONDS,
        parameters={"link": link},
        evidence=METRICS_FILE,
    )


def changes_of_mind() -> Quantity:
    """How often the autoscaler turned from adding replicas to taking them away, or back."""
    return Quantity(
        kind="changes_of_mind", name="changes of mind of the autoscaler", unit=Unit.COUNT, evidence=METRICS_FILE
    )


def fact(name: str, *, title: str | None = None, unit: Unit = Unit.NONE) -> Quantity:
    """A value that the scenario observed and wrote down."""
    return Quantity(
        kind="fact",
        name=title or name.replace("_", " "),
        unit=unit,
        parameters={"fact": name},
        evidence=FACTS_FILE,
    )


def mark_count(kind: MarkKind, *, text: str = "", title: str | None = None) -> Quantity:
    """How many marks of a kind contain a text."""
    return Quantity(
        kind="mark_count",
        name=title or f"marks {kind.value.replace('_', ' ')}" + (f" with {text!r}" if text else ""),
        unit=Unit.COUNT,
        parameters={"kind": kind.value, "text": text},
        evidence=MARKS_FILE,
    )


def time_between(first: MarkKind, then: MarkKind, *, title: str | None = None) -> Quantity:
    """From the first mark of one kind to the next of another; infinity if that never came."""
    words = f"time from {first.value.replace('_', ' ')} to {then.value.replace('_', ' ')}"
    return Quantity(
        kind="time_between",
        name=title or words,
        unit=Unit.SECONDS,
        parameters={"first": first.value, "then": then.value},
        evidence=MARKS_FILE,
    )


def printed(value: Value, unit: Unit) -> str:
    """A value as people read it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "nothing"
    if isinstance(value, list):
        return "; ".join(value) if value else "none"
    if isinstance(value, str):
        return value
    return _printed_number(float(value), unit)


def _printed_number(value: float, unit: Unit) -> str:
    if math.isinf(value):
        return "never"
    if unit is Unit.SHARE:
        return f"{value * 100:.4g} %"
    if unit is Unit.SECONDS:
        return (
            f"{value * 1000:.3g} ms" if 0 < abs(value) < 0.1 else f"{value:.3g} s" if value < 1000 else f"{value:.0f} s"
        )
    number = f"{value:,.0f}" if value == round(value) or abs(value) >= 1000 else f"{value:.4g}"
    return f"{number} per second" if unit is Unit.PER_SECOND else number


def _gauge(kind: str, words: str, metric: str, during: Phase, summed: bool, unit: Unit | None) -> Quantity:
    if unit is None:
        unit = Unit.SHARE if metric.endswith("_perc") else Unit.NONE  # vLLM's "perc" is 0..1
    together = ", all engines together" if summed else ""
    return Quantity(
        kind=kind,
        name=_worded(f"{words} {METRIC_WORDS.get(metric, metric)}{together}", during, None),
        unit=unit,
        parameters={"metric": metric, "summed": summed, "during": during.value},
        evidence=METRICS_FILE,
    )


def _scope(during: Phase, traffic_class: str | None) -> dict[str, Parameter]:
    return {"during": during.value, "traffic_class": traffic_class}


def _worded(text: str, during: Phase, traffic_class: str | None) -> str:
    users = f" for {traffic_class} requests" if traffic_class is not None else ""
    return f"{text}{users} {during.in_words}".rstrip()


def _either(outcomes: Sequence[Outcome]) -> str:
    return " or ".join(outcome.value.replace("_", " ") for outcome in outcomes)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
