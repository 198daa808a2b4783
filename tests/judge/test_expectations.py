"""A bargain survives being written down, and says unknown rather than guess."""

import math
from dataclasses import replace

import msgspec
import pytest

from shakedown.judge import (
    SLO,
    Fact,
    Mark,
    MarkKind,
    MetricSample,
    Outcome,
    Phase,
    Recorded,
    RequestRecord,
    Verdict,
    evaluate,
    events_per_read,
    expectation,
    fact,
    goodput,
    increase,
    judge,
    lost_in_flight,
    lost_requests,
    mark_count,
    outcome_count,
    outcome_share,
    peak,
    percentile_itl,
    percentile_ttft,
    time_between,
    time_to_recovery,
    times_slower,
    unaccounted,
)
from shakedown.judge.expectations import Expectation

SLO_05 = SLO(ttft_s=0.5)


def request(
    id_: int,
    due: float,
    *,
    ttft: float = 0.1,
    tokens: int = 10,
    gap: float = 0.02,
    outcome: Outcome = Outcome.COMPLETED,
    traffic_class: str = "default",
) -> RequestRecord:
    times = tuple(due + ttft + gap * index for index in range(tokens))
    return RequestRecord(
        id=f"r{id_}",
        traffic_class=traffic_class,
        due_at=due,
        sent_at=due,
        first_byte_at=times[0] if times else None,
        token_times=times,
        finished_at=(times[-1] if times else due + ttft) + 0.001,
        outcome=outcome,
        http_status=200,
    )


def steady(seconds: int, per_second: int = 4, **felt: float) -> tuple[RequestRecord, ...]:
    return tuple(request(index, 1000 + index / per_second, **felt) for index in range(seconds * per_second))  # type: ignore[arg-type]


def test_every_kind_of_clause_survives_json() -> None:
    clauses = [
        expectation(goodput(SLO_05, during=Phase.DURING, traffic_class="chat"), at_least=0.95),
        expectation(percentile_ttft(99), at_most=1.0),
        expectation(peak("vllm:kv_cache_usage_perc"), at_least=0.96),
        expectation(increase("vllm:num_preemptions_total"), at_least=1),
        expectation(outcome_count(Outcome.FAILED, Outcome.HUNG), equals=0),
        expectation(outcome_share(Outcome.COMPLETED), between=(0.5, 1.0)),
        expectation(time_to_recovery(SLO_05), at_most=60),
        expectation(fact("live_spec_differences"), equals=[]),
        expectation(fact("fault_landed"), guard=True),
    ]
    assert msgspec.json.decode(msgspec.json.encode(clauses), type=list[Expectation]) == clauses


def test_each_clause_finds_its_planted_defect_and_spares_the_clean_run() -> None:
    clean = Recorded(requests=steady(10))
    late = Recorded(requests=(*clean.requests, *(request(100 + i, 1010 + i, ttft=2) for i in range(10))))
    lost = Recorded(requests=(*clean.requests, request(99, 1010, outcome=Outcome.CONNECTION_LOST)))
    defects = [
        (expectation(goodput(SLO_05), at_least=0.95), late),
        (expectation(percentile_ttft(95), at_most=0.5), late),
        (expectation(outcome_count(Outcome.CONNECTION_LOST), equals=0), lost),
        (expectation(outcome_share(Outcome.COMPLETED), at_least=1.0), lost),
        (expectation(percentile_ttft(100), at_most=0.5), lost),
    ]
    for clause, broken in defects:
        assert evaluate(clause, clean).verdict is Verdict.HELD, clause.name
        assert evaluate(clause, broken).verdict is Verdict.DEVIATED, clause.name


def test_slow_requests_that_were_dropped_do_not_make_the_percentile_better() -> None:
    dropped = Recorded(requests=(*steady(1), request(9, 1001, tokens=0, ttft=60, outcome=Outcome.TIMED_OUT)))
    assert evaluate(expectation(percentile_ttft(99), at_most=0.5), dropped).measured == "never"
    served = expectation(percentile_ttft(99, completed_only=True), at_most=0.5)
    assert evaluate(served, dropped).verdict is Verdict.HELD


def test_lost_is_who_waited_in_vain_and_not_who_left() -> None:
    ended = [request(index, 1000 + index, tokens=2, outcome=outcome) for index, outcome in enumerate(Outcome)]
    finding = evaluate(expectation(lost_requests(), equals=len(Outcome) - 2), Recorded(requests=tuple(ended)))
    assert (finding.verdict, finding.name) == (Verdict.HELD, "requests lost")


def test_a_request_that_we_abandoned_does_not_count_as_slow() -> None:
    left = Recorded(requests=(*steady(1), request(9, 1001, tokens=0, outcome=Outcome.ABANDONED)))
    assert evaluate(expectation(percentile_ttft(100), at_most=0.5), left).verdict is Verdict.HELD


@pytest.mark.parametrize(
    "clause",
    [
        expectation(goodput(SLO_05), at_least=0.0),
        expectation(goodput(SLO_05, during=Phase.DURING), at_least=0.0),
        expectation(goodput(SLO_05, traffic_class="batch"), at_least=0.0),
        expectation(percentile_itl(99), at_most=1e9),
        expectation(events_per_read(), at_least=0.0),
        expectation(times_slower("ttft", 99, traffic_class="people", than="alone"), at_most=1e9),
        expectation(peak("vllm:kv_cache_usage_perc"), at_most=1.0),
        expectation(increase("vllm:num_preemptions_total"), equals=0),
        expectation(fact("never_written"), equals=[]),
        expectation(time_to_recovery(SLO_05), at_most=1e9),
        expectation(lost_in_flight(), at_most=1e9),
        expectation(unaccounted(), equals=0),
        expectation(mark_count(MarkKind.RECOVERED), equals=0),
        expectation(time_between(MarkKind.FAULT_LANDED, MarkKind.RECOVERED), at_most=1e9),
    ],
    ids=lambda clause: clause.quantity.kind,
)
def test_missing_records_are_unknown_and_never_held(clause: Expectation) -> None:
    finding = evaluate(clause, Recorded())
    assert finding.verdict is Verdict.UNKNOWN
    assert finding.measured.startswith("cannot be told: ")


def test_a_guard_that_is_not_met_is_unknown_where_another_clause_deviates() -> None:
    recorded = Recorded(facts={"fault_landed": Fact(name="fault_landed", value=False)})
    assert evaluate(expectation(fact("fault_landed"), guard=True), recorded).verdict is Verdict.UNKNOWN
    assert evaluate(expectation(fact("fault_landed")), recorded).verdict is Verdict.DEVIATED


def test_false_is_not_zero_and_one_is_not_true() -> None:
    recorded = Recorded(facts={"n": Fact(name="n", value=1), "no": Fact(name="no", value=False)})
    assert evaluate(expectation(fact("n")), recorded).verdict is Verdict.DEVIATED
    assert evaluate(expectation(fact("no"), equals=0), recorded).verdict is Verdict.DEVIATED
    assert evaluate(expectation(fact("no"), at_most=1), recorded).verdict is Verdict.DEVIATED


def test_a_clause_has_one_finite_limit() -> None:
    with pytest.raises(ValueError, match="2 limits"):
        expectation(percentile_ttft(99), at_most=1, at_least=0)
    with pytest.raises(ValueError, match="finite"):
        expectation(percentile_ttft(99), at_most=math.inf)


def test_traffic_classes_are_judged_apart() -> None:
    recorded = Recorded(
        requests=(
            *(request(i, 1000 + i) for i in range(5)),
            *(request(10 + i, 1000 + i, ttft=3, traffic_class="batch") for i in range(5)),
        )
    )
    assert evaluate(expectation(goodput(SLO_05, traffic_class="default"), equals=1.0), recorded).measured == "100 %"
    assert evaluate(expectation(goodput(SLO_05, traffic_class="batch"), equals=0.0), recorded).measured == "0 %"
    assert evaluate(expectation(goodput(SLO_05), equals=0.5), recorded).verdict is Verdict.HELD


def test_a_class_is_held_against_another_that_was_served_alone() -> None:
    alone = [request(i, 1000 + i, traffic_class="alone") for i in range(5)]
    beside = [request(10 + i, 1010 + i, ttft=0.13 + i / 100, traffic_class="people") for i in range(5)]
    lost = request(20, 1020, tokens=0, outcome=Outcome.FAILED, traffic_class="people")
    slower = times_slower("ttft", 99, traffic_class="people", than="alone")
    both = Recorded(requests=(*alone, *beside))
    assert evaluate(expectation(slower, at_most=1.7), both).measured == "1.7"
    assert evaluate(expectation(slower, at_most=1.6), both).verdict is Verdict.DEVIATED
    with_a_loss = Recorded(requests=(*alone, *beside, lost))
    assert evaluate(expectation(slower, at_most=9.0), with_a_loss).measured == "never"
    nothing_to_compare = Recorded(requests=tuple(beside))
    assert evaluate(expectation(slower, at_most=9.0), nothing_to_compare).verdict is Verdict.UNKNOWN


def test_a_hop_that_buffers_is_told_by_events_per_read() -> None:
    fine = [replace(request(i, 1000 + i, traffic_class="fine"), events=20, reads=19) for i in range(3)]
    coarse = [replace(request(9 + i, 1000 + i, traffic_class="coarse"), events=64, reads=4) for i in range(3)]
    cut = replace(request(99, 1000, outcome=Outcome.TRUNCATED, traffic_class="fine"), events=90, reads=1)
    recorded = Recorded(requests=(*fine, *coarse, cut))
    assert evaluate(expectation(events_per_read(traffic_class="fine"), at_most=1.1), recorded).verdict is Verdict.HELD
    accused = evaluate(expectation(events_per_read(traffic_class="coarse"), at_most=1.1), recorded)
    assert (accused.verdict, accused.measured) == (Verdict.DEVIATED, "16")


def test_a_counter_that_starts_again_after_a_restart_still_counts() -> None:
    values = [("a", 0, 5.0), ("a", 1, 7.0), ("a", 2, 1.0), ("b", 0, 100.0), ("b", 1, 100.0)]
    samples = tuple(MetricSample(at=1000 + at, pod=pod, values={"c": value}) for pod, at, value in values)
    assert evaluate(expectation(increase("c"), equals=3), Recorded(samples=samples)).verdict is Verdict.HELD


def test_a_peak_of_all_pods_together_is_not_the_peak_of_one() -> None:
    samples = tuple(
        MetricSample(at=1000 + at, pod=pod, values={"g": value})
        for at, pod, value in [(0, "a", 3.0), (0.1, "b", 4.0), (1, "a", 1.0)]
    )
    recorded = Recorded(samples=samples)
    assert evaluate(expectation(peak("g"), equals=4), recorded).verdict is Verdict.HELD
    assert evaluate(expectation(peak("g", summed=True), equals=7), recorded).verdict is Verdict.HELD


def test_the_paragraph_says_what_broke_by_how_much_when_and_where_to_look() -> None:
    fault = Mark(at=1005.0, kind=MarkKind.FAULT_STARTED, text="pod killed")
    slow = tuple(request(100 + i, 1007 + i / 4, ttft=2) for i in range(8))
    judgement = judge(
        [expectation(goodput(SLO_05), at_least=0.95)], Recorded(requests=(*steady(10), *slow), marks=(fault,))
    )
    assert judgement.verdict is Verdict.DEVIATED
    assert judgement.reason == (
        "Goodput under TTFT ≤ 0.5 s: 83.33 %, and the bargain is at least 95 %, missed by 11.7 points; "
        "8 of 48 requests were not good (8 late on TTFT), the first due 2.0 s after the fault began, "
        "the last 3.8 s after the fault began (see requests.jsonl)."
    )


def test_of_several_loads_the_evidence_is_each_one_s_file_and_of_metrics_it_stays_theirs() -> None:
    recorded = Recorded(requests=steady(5), request_files=("requests-batch.jsonl", "requests-people.jsonl"))
    judgement = judge([expectation(goodput(SLO_05), at_least=1.5), expectation(peak("g"), equals=1)], recorded)
    assert "(see requests-batch.jsonl, requests-people.jsonl)." in judgement.reason
    assert [finding.evidence for finding in judgement.findings] == [
        "requests-batch.jsonl, requests-people.jsonl",
        "metrics.jsonl",
    ]


def test_a_harness_that_failed_makes_unknown_but_does_not_hide_a_deviation() -> None:
    good = Recorded(requests=steady(5))
    clause = expectation(goodput(SLO_05), at_least=0.95)
    saturated = judge([clause], good, ["the client was saturated"])
    assert saturated.verdict is Verdict.UNKNOWN
    assert saturated.reason == "We failed to find out. The client was saturated."
    bad = Recorded(requests=steady(5, ttft=2))
    assert judge([clause], bad, ["the client was saturated"]).verdict is Verdict.DEVIATED


def test_a_scenario_without_expectations_is_unknown() -> None:
    assert judge([], Recorded(requests=steady(5))).verdict is Verdict.UNKNOWN


def test_records_that_cannot_be_true_make_the_verdict_unknown() -> None:
    clause = expectation(goodput(SLO_05), at_least=0.95)
    twice = Recorded(requests=(*steady(5), request(0, 1003)))
    backwards = Recorded(requests=(*steady(5), request(99, 1003, ttft=-1)))
    for impossible in (twice, backwards):
        judgement = judge([clause], impossible)
        assert judgement.verdict is Verdict.UNKNOWN
        assert "contradict themselves" in judgement.reason


def test_a_request_that_the_client_sent_and_nobody_recorded_is_missed() -> None:
    recorded = Recorded(requests=steady(5), facts={"requests_sent": Fact(name="requests_sent", value=21)})
    finding = evaluate(expectation(unaccounted(), equals=0), recorded)
    assert finding.verdict is Verdict.DEVIATED
    assert finding.measured == "1"
