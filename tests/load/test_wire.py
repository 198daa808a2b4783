"""Whatever a server puts on the wire has one right outcome and right numbers, however the bytes are cut."""

import re
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shakedown.judge.records import Outcome
from shakedown.load.sse import SseParser
from shakedown.load.stream import Answer
from tests.load.wire import CASES, FINISH, ONE, ROLE, SOUND, STREAM_HEAD, TWO, Case, chunked, delta, read

by_name = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def assert_right(case: Case, answer: Answer) -> None:
    assert answer.outcome is case.outcome, answer.error
    assert len(answer.token_times) == case.tokens
    assert answer.completion_tokens == case.completion_tokens
    assert answer.finish_reason == case.finish_reason
    assert answer.text in (case.text, None)
    assert (answer.error is None) == (case.error is None)
    assert (case.error or "") in (answer.error or "")


@by_name
def test_each_answer_has_one_right_reading(case: Case) -> None:
    assert_right(case, read(case.wire, [], case.ends))


@by_name
def test_a_read_for_each_chunk_changes_nothing_whether_or_not_text_is_kept(case: Case) -> None:
    cuts = [case.wire.find(b"\r\n\r\n") + 4]
    while (end := case.wire.find(b"\n\n\r\n", cuts[-1])) > 0:
        cuts.append(end + 4)
    assert_right(case, read(case.wire, cuts, case.ends, keep_text=False))
    assert_right(case, read(case.wire, cuts, case.ends, keep_text=True))


@by_name
def test_one_byte_at_a_time_changes_nothing(case: Case) -> None:
    assert_right(case, read(case.wire, list(range(len(case.wire))), case.ends))


@by_name
def test_one_cut_anywhere_changes_nothing(case: Case) -> None:
    for cut in range(len(case.wire)):
        assert_right(case, read(case.wire, [cut], case.ends))


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_any_cuts_change_nothing(data: st.DataObject) -> None:
    case = data.draw(st.sampled_from(CASES))
    cuts = data.draw(st.lists(st.integers(0, max(1, len(case.wire))), max_size=30))
    assert_right(case, read(case.wire, cuts, case.ends))


contents = st.text(st.characters(codec="utf-8"), max_size=8)


@settings(max_examples=300, deadline=None)
@given(st.lists(contents, max_size=12), st.lists(st.integers(1, 4000), max_size=20), st.booleans())
def test_any_text_arrives_whole(parts: list[str], cuts: list[int], keep_text: bool) -> None:
    wire = STREAM_HEAD + chunked(ROLE, *(delta(content=part) for part in parts), FINISH, b"data: [DONE]\n\n")
    answer = Answer(keep_text=keep_text)
    chunk_ends = [place.end() for place in re.finditer(rb"\n\n\r\n", wire)]
    edges = sorted({0, len(wire), *(cut for cut in cuts if cut < len(wire)), *chunk_ends[: len(cuts)]})
    for start, stop in pairwise(edges):
        answer.feed(wire[start:stop], 1.0)
    assert answer.text == ("".join(parts) if keep_text else None)
    assert len(answer.token_times) == sum(bool(part) for part in parts)
    assert answer.outcome is (Outcome.COMPLETED if any(parts) else Outcome.EMPTY)
    assert answer.events == len(parts) + 3


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60), st.lists(st.integers(0, 60), max_size=10))
def test_events_of_arbitrary_bytes_do_not_depend_on_the_cuts(wire: bytes, cuts: list[int]) -> None:
    uncut, cut_up = SseParser(), SseParser()
    expected = uncut.feed(wire)
    edges = sorted({0, len(wire), *(cut for cut in cuts if cut < len(wire))})
    assert [each for a, b in pairwise(edges) for each in cut_up.feed(wire[a:b])] == expected


def test_tokens_are_timed_by_the_read_that_completes_their_event() -> None:
    answer = Answer()
    first, second = chunked(ROLE), chunked(ONE)
    answer.feed(STREAM_HEAD, 1.0)
    answer.feed(first, 2.0)
    answer.feed(second[:-9], 3.0)
    answer.feed(second[-9:], 4.0)
    answer.feed(chunked(TWO, TWO), 5.0)
    answer.feed(chunked(*SOUND[3:]), 6.0)
    assert answer.token_times == [4.0, 5.0, 5.0]
    assert (answer.first_byte_at, answer.finished_at) == (1.0, 6.0)
    assert (answer.reads, answer.events) == (4, 7)


def test_the_role_chunk_of_a_chunked_prefill_is_not_the_first_token() -> None:
    """The role came after 0.9 s, the first text after 2.2 s: the user waited 2.2 s."""
    answer = Answer()
    answer.feed(STREAM_HEAD + chunked(ROLE), 0.9)
    answer.feed(chunked(ONE), 2.2)
    assert answer.token_times == [2.2]


def test_a_request_that_was_given_up_keeps_what_it_had_and_nothing_after() -> None:
    answer = Answer()
    answer.feed(STREAM_HEAD + chunked(ONE), 1.0)
    answer.give_up(Outcome.HUNG, 9.0, "no byte for 8 s")
    answer.feed(chunked(TWO), 10.0)
    answer.feed(chunked(TWO, FINISH), 10.0)
    answer.connection_failed(11.0, "reset")
    assert (answer.outcome, answer.finished_at, answer.error) == (Outcome.HUNG, 9.0, "no byte for 8 s")
    assert answer.token_times == [1.0]


@settings(max_examples=600, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, len(chunked(ONE)) - 1), st.sampled_from(b'"\\{}:,0a \r\n\xf0\x80\x01')), max_size=3
    ),
    st.sampled_from(
        ["Hello", "x", "a much longer text than before, so that the size line grows", "\u2028", 'q"', "\\", "\n", ""]
    ),
    st.lists(st.booleans(), min_size=6, max_size=6),
)
def test_a_repeated_chunk_is_read_like_any_other_whatever_is_wrong_with_it(
    wounds: list[tuple[int, int]], text: str, joined: list[bool]
) -> None:
    """However many come in one read."""
    wounded = bytearray(chunked(delta(content=text)))
    for place, byte in wounds:
        wounded[place % len(wounded)] = byte
    reads = [STREAM_HEAD]
    repeats = (ONE, None, TWO, ONE, None, TWO)
    for chunk, with_the_one_before in zip(repeats, joined, strict=True):
        part = bytes(wounded) if chunk is None else chunked(chunk)
        if with_the_one_before:
            reads[-1] += part
        else:
            reads.append(part)
    quick, thorough = Answer(), Answer(keep_text=True)  # keeping the text rules the short cut out
    for answer in (quick, thorough):
        for part in (*reads, chunked(FINISH, b"data: [DONE]\n\n")):
            answer.feed(part, 1.0)
        answer.end_of_stream(2.0)
    for name in ("outcome", "error", "token_times", "events", "reads", "finish_reason", "finished_at", "saw_done"):
        assert getattr(quick, name) == getattr(thorough, name), name


def test_a_client_that_fell_behind_reads_many_chunks_for_the_price_of_their_comparison() -> None:
    answer = Answer()
    answer.feed(STREAM_HEAD + chunked(ROLE, ONE, TWO), 1.0)
    assert answer._repeated is not None
    answer.feed(chunked(ONE, TWO, TWO), 2.0)
    assert answer._repeated.count(chunked(ONE, TWO)) == 2
    assert answer._repeated.count(chunked(ONE, FINISH)) == 0
    assert answer._repeated.count(chunked(ONE)[:-1]) == 0
    assert answer.token_times == [1.0, 1.0, 2.0, 2.0, 2.0]
    assert (answer.reads, answer.events) == (2, 6)
