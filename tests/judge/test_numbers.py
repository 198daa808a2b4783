"""The arithmetic behind a verdict: exact values, planted defects that flip it, clean records that are not accused."""

import math
from dataclasses import replace

import pytest

from shakedown.judge import (
    SLO,
    Expectation,
    Mark,
    MarkKind,
    Outcome,
    Phase,
    Recorded,
    RequestRecord,
    Verdict,
    evaluate,
    expectation,
    goodput,
    goodput_rate,
    judge,
    longest_gap,
    lost_beyond_in_flight,
    lost_in_flight,
    outage,
    output_token_throughput,
    percentile_e2e,
    percentile_of,
    percentile_tpot,
    percentile_ttft,
    request_throughput,
    time_to_recovery,
)
from shakedown.judge import latency as felt
from shakedown.judge.objectives import goodput as goodput_of
from shakedown.judge.objectives import is_good
from shakedown.judge.percentiles import percentile

START = 1_000_000.0
FAULT_AT = START + 20
PROMISE = SLO(ttft_s=0.5, tpot_s=0.1)
"""Times are multiples of 1/64 s, which floats hold exactly at this epoch."""


def request(
    id_: str = "r",
    due: float = 0.0,
    *,
    lag: float = 0.0,
    ttft: float = 0.25,
    gaps: tuple[float, ...] = (0.0625,) * 4,
    end: float = 0.015625,
    outcome: Outcome = Outcome.COMPLETED,
    completion_tokens: int | None = None,
) -> RequestRecord:
    """Due at an offset; `ttft` counts from due, `end` from the last token."""
    times = [START + due + ttft]
    for gap in gaps:
        times.append(times[-1] + gap)
    return RequestRecord(
        id=id_,
        due_at=START + due,
        sent_at=START + due + lag,
        first_byte_at=times[0],
        token_times=tuple(times),
        finished_at=times[-1] + end,
        outcome=outcome,
        completion_tokens=completion_tokens,
    )


def tokenless(
    id_: str, due: float, *, lasted: float = 0.5, outcome: Outcome = Outcome.CONNECTION_LOST
) -> RequestRecord:
    return RequestRecord(
        id=id_, due_at=START + due, sent_at=START + due, finished_at=START + due + lasted, outcome=outcome
    )


def second(at: int, *, good: int = 4, bad: int = 0) -> list[RequestRecord]:
    """The requests that were due in one second."""
    total = good + bad
    return [request(f"{at}-{index}", at + index / 16, ttft=0.25 if index < good else 2.0) for index in range(total)]


def seconds(*spans: tuple[range, int, int]) -> tuple[RequestRecord, ...]:
    return tuple(record for span, good, bad in spans for at in span for record in second(at, good=good, bad=bad))


FAULT = (Mark(at=FAULT_AT, kind=MarkKind.FAULT_STARTED, text="killed"),)
STRIKE = (*FAULT, Mark(at=FAULT_AT + 1, kind=MarkKind.FAULT_LANDED, text="gone"))


def value(clause: Expectation, *records: RequestRecord, marks: tuple[Mark, ...] = ()) -> Verdict:
    return evaluate(clause, Recorded(requests=records, marks=marks)).verdict


def test_the_wait_for_the_first_token_counts_from_due_and_not_from_sent() -> None:
    late = request(lag=0.5, ttft=0.75)
    assert felt.ttft(late) == 0.75
    assert felt.send_lag(late) == 0.5
    assert felt.e2e_latency(late) == 0.75 + 4 * 0.0625 + 0.015625
    assert not is_good(late, SLO(ttft_s=0.5))
    assert value(expectation(percentile_ttft(100), at_most=0.5), late) is Verdict.DEVIATED
    assert value(expectation(percentile_of("send_lag", 100), at_most=0.25), late) is Verdict.DEVIATED


def test_a_first_byte_without_content_is_not_a_first_token() -> None:
    role_first = replace(request(ttft=3.0), first_byte_at=START + 0.0625)
    assert felt.ttft(role_first) == 3.0
    assert value(expectation(percentile_ttft(100), at_most=0.5), role_first) is Verdict.DEVIATED
    only_role = replace(tokenless("r", 0, outcome=Outcome.EMPTY), first_byte_at=START + 0.0625)
    assert felt.ttft(only_role) is None
    assert value(expectation(goodput(PROMISE), at_least=0.5), only_role) is Verdict.DEVIATED


def test_time_per_output_token_leaves_out_the_wait_for_the_first() -> None:
    assert felt.tpot(request(ttft=9.0)) == 0.0625
    assert felt.tpot(request(gaps=())) is None


def test_a_delta_that_carries_several_tokens_makes_each_of_them_faster() -> None:
    assert felt.tpot(request(completion_tokens=9)) == 0.03125
    assert felt.token_count(request(completion_tokens=9)) == 9
    assert felt.token_count(request(completion_tokens=1)) == 5


def test_slow_tokens_flip_the_verdict() -> None:
    clause = expectation(percentile_tpot(99), at_most=0.1)
    assert value(clause, request()) is Verdict.HELD
    assert value(clause, request(gaps=(0.25,) * 4)) is Verdict.DEVIATED


@pytest.mark.parametrize(
    ("record", "gap_s"),
    [
        (request(), 0.0625),
        (request(gaps=(0.0625, 2.0, 0.0625)), 2.0),
        (request(end=4.0), 4.0),
        (request(gaps=(), end=0.5), 0.5),
        (tokenless("r", 0), None),
    ],
    ids=["steady", "a stall inside", "a stall before the end", "one token", "unbegun"],
)
def test_the_longest_gap_is_what_the_reader_of_a_begun_answer_waited(
    record: RequestRecord, gap_s: float | None
) -> None:
    assert felt.longest_gap(record) == gap_s


def test_a_stall_flips_the_verdict_that_an_average_would_hide() -> None:
    stalled = request(gaps=(*(0.03125,) * 100, 2.0, *(0.03125,) * 100))
    assert value(expectation(percentile_tpot(100), at_most=0.1), stalled) is Verdict.HELD
    assert value(expectation(longest_gap(100), at_most=1.0), stalled) is Verdict.DEVIATED
    assert value(expectation(longest_gap(100), at_most=1.0), request()) is Verdict.HELD


def test_a_stall_of_an_answer_that_was_cut_counts_too() -> None:
    cut = request(end=30.0, outcome=Outcome.HUNG)
    assert value(expectation(longest_gap(100), at_most=1.0), request("ok"), cut) is Verdict.DEVIATED


def test_goodput_divides_by_what_was_sent() -> None:
    records = [
        request("good"),
        request("late", ttft=2.0),
        request("slow", gaps=(0.25,) * 4),
        *(tokenless(outcome.value, 1, outcome=outcome) for outcome in Outcome if outcome is not Outcome.COMPLETED),
    ]
    assert len(records) == 13
    assert goodput_of(records, PROMISE) == 1 / 13
    assert goodput_of([], PROMISE) is None


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if outcome is not Outcome.COMPLETED])
def test_only_a_completed_request_is_good(outcome: Outcome) -> None:
    assert is_good(request(), PROMISE)
    assert not is_good(request(outcome=outcome), PROMISE)


def test_an_objective_met_exactly_is_met_and_one_that_does_not_apply_is_not_missed() -> None:
    assert is_good(request(ttft=0.5), SLO(ttft_s=0.5))
    assert not is_good(request(ttft=0.5 + 1 / 64), SLO(ttft_s=0.5))
    assert is_good(request(gaps=()), SLO(tpot_s=0.001))
    assert not is_good(request(), SLO(e2e_s=0.5))


def test_rates_count_from_the_first_due_to_the_last_end() -> None:
    records = [request(f"r{i}", i, gaps=(0.25,) * 2, end=0.25) for i in range(4)]  # the last ends at 3 + 1 s
    assert value(expectation(request_throughput(), equals=1.0), *records) is Verdict.HELD
    assert value(expectation(output_token_throughput(), equals=3.0), *records) is Verdict.HELD
    assert value(expectation(goodput_rate(SLO(ttft_s=0.5)), equals=1.0), *records) is Verdict.HELD
    lost = [*records[:3], tokenless("lost", 3, lasted=1.0)]
    assert value(expectation(request_throughput(), equals=0.75), *lost) is Verdict.HELD


@pytest.mark.parametrize(
    ("values", "q", "expected"),
    [
        ([4.0, 1.0, 3.0, 2.0], 50, 2.5),
        ([4.0, 1.0, 3.0, 2.0], 0, 1.0),
        ([4.0, 1.0, 3.0, 2.0], 100, 4.0),
        ([0.0, 100.0], 99, 99.0),
        ([float(n) for n in range(101)], 95, 95.0),
        ([7.0], 99, 7.0),
        ([], 50, None),
        ([1.0, math.inf], 0, 1.0),
        ([1.0, math.inf], 1, math.inf),
        ([math.inf, math.inf], 50, math.inf),
    ],
)
def test_percentiles_are_exact(values: list[float], q: float, expected: float | None) -> None:
    assert percentile(values, q) == expected


@pytest.mark.parametrize("q", [-1, 100.5])
def test_a_percentile_out_of_range_is_refused(q: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 100"):
        percentile([1.0], q)


def test_a_failed_request_is_infinitely_slow_and_an_abandoned_one_is_not_counted() -> None:
    clause = expectation(percentile_e2e(100), at_most=60.0)
    assert value(clause, request("a"), tokenless("b", 1, outcome=Outcome.REFUSED)) is Verdict.DEVIATED
    assert value(clause, request("a"), tokenless("b", 1, outcome=Outcome.ABANDONED)) is Verdict.HELD


def test_a_request_belongs_to_the_phase_in_which_it_was_due() -> None:
    ended = (*FAULT, Mark(at=FAULT_AT + 10, kind=MarkKind.FAULT_ENDED, text="over"))
    slow = request("slow", 19, ttft=5.0)  # due before the fault, answered within it
    good = [request(f"g{at}", at) for at in (5, 25, 35)]
    clauses = {phase: expectation(goodput(PROMISE, during=phase), at_least=1.0) for phase in Phase}
    verdicts = {phase: value(clause, slow, *good, marks=ended) for phase, clause in clauses.items()}
    assert verdicts == {
        Phase.WHOLE: Verdict.DEVIATED,
        Phase.BEFORE: Verdict.DEVIATED,
        Phase.DURING: Verdict.HELD,
        Phase.AFTER: Verdict.HELD,
    }


ALL_GOOD = seconds((range(60), 4, 0))
BAD_FOR_TEN = seconds((range(20), 4, 0), (range(20, 30), 1, 3), (range(30, 60), 4, 0))
NEVER_BACK = seconds((range(20), 4, 0), (range(20, 60), 1, 3))
RELAPSED = seconds(
    (range(20), 4, 0), (range(20, 25), 1, 3), (range(25, 40), 4, 0), (range(40, 43), 0, 4), (range(43, 60), 4, 0)
)
LOST_AGAIN = seconds((range(20), 4, 0), (range(20, 25), 1, 3), (range(25, 40), 4, 0), (range(40, 60), 0, 4))
ONE_BAD_SECOND_LATER = seconds((range(50), 4, 0), (range(50, 51), 0, 4), (range(51, 60), 4, 0))


@pytest.mark.parametrize(
    ("records", "recovery_s", "outage_s"),
    [
        (ALL_GOOD, 0.0, 0.0),
        (BAD_FOR_TEN, 10.0, 10.0),
        (NEVER_BACK, math.inf, 40.0),
        (RELAPSED, 23.0, 8.0),
        (LOST_AGAIN, math.inf, 25.0),
        (ONE_BAD_SECOND_LATER, 0.0, 1.0),
    ],
    ids=["nobody noticed", "ten bad seconds", "never back", "a relapse", "a relapse without end", "noise long after"],
)
def test_recovery_is_over_when_users_are_served_well_for_good(
    records: tuple[RequestRecord, ...], recovery_s: float, outage_s: float
) -> None:
    recorded = Recorded(requests=records, marks=FAULT)
    recovered = evaluate(expectation(time_to_recovery(PROMISE), at_most=9.5), recorded)
    assert recovered.measured == ("never" if math.isinf(recovery_s) else f"{recovery_s:g} s")
    assert recovered.verdict is (Verdict.HELD if recovery_s <= 9.5 else Verdict.DEVIATED)
    assert evaluate(expectation(outage(PROMISE), equals=outage_s), recorded).verdict is Verdict.HELD


def test_what_was_bad_before_the_fault_is_not_blamed_on_it() -> None:
    records = seconds((range(20), 0, 4), (range(20, 60), 4, 0))
    assert value(expectation(time_to_recovery(PROMISE), at_most=0.0), *records, marks=FAULT) is Verdict.HELD


def test_a_load_that_ends_right_after_recovery_cannot_tell_whether_it_lasts() -> None:
    records = seconds((range(20), 4, 0), (range(20, 30), 0, 4), (range(30, 32), 4, 0))
    assert value(expectation(time_to_recovery(PROMISE), at_most=60.0), *records, marks=FAULT) is Verdict.UNKNOWN


def around_the_fault(**lost: Outcome) -> tuple[RequestRecord, ...]:
    """One request over before the fault, one under way as it strikes, one sent while it lands, one sent after."""
    records = {
        "over": request("over", 5),
        "caught": request("caught", 18, gaps=(1.0,) * 4),
        "landing": request("landing", 20.5),
        "after": request("after", 40),
    }
    return tuple(replace(record, outcome=lost.get(id_, record.outcome)) for id_, record in records.items())


@pytest.mark.parametrize(
    ("lost", "in_flight", "beyond"),
    [
        ({}, 0, 0),
        ({"caught": Outcome.CONNECTION_LOST}, 1, 0),
        ({"landing": Outcome.TRUNCATED}, 1, 0),
        ({"after": Outcome.REFUSED}, 0, 1),
        ({"over": Outcome.FAILED}, 0, 1),
        ({"after": Outcome.ABANDONED}, 0, 0),
        ({"caught": Outcome.ERROR_CHUNK, "after": Outcome.HUNG}, 1, 1),
    ],
    ids=["clean", "in flight", "while it landed", "after it", "before it", "we left", "both"],
)
def test_a_fault_may_cost_what_was_in_flight_and_nothing_beyond(
    lost: dict[str, Outcome], in_flight: int, beyond: int
) -> None:
    recorded = Recorded(requests=around_the_fault(**lost), marks=STRIKE)
    assert evaluate(expectation(lost_in_flight(), equals=in_flight), recorded).verdict is Verdict.HELD
    finding = evaluate(expectation(lost_beyond_in_flight(), at_most=0), recorded)
    assert finding.measured == str(beyond)
    assert finding.verdict is (Verdict.DEVIATED if beyond else Verdict.HELD)


def test_clean_records_are_accused_of_nothing() -> None:
    clauses = [
        expectation(goodput(PROMISE), at_least=1.0),
        expectation(goodput(PROMISE, during=Phase.BEFORE), at_least=1.0),
        expectation(percentile_ttft(100), at_most=0.5),
        expectation(percentile_tpot(100), at_most=0.1),
        expectation(longest_gap(100), at_most=0.1),
        expectation(time_to_recovery(PROMISE), at_most=0.0),
        expectation(lost_beyond_in_flight(), at_most=0),
        expectation(outage(PROMISE), at_most=0.0),
    ]
    judgement = judge(clauses, Recorded(requests=ALL_GOOD, marks=STRIKE))
    assert judgement.reason == "All 8 expectations were met."
    assert judgement.verdict is Verdict.HELD
