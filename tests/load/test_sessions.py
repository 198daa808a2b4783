"""Conversations: what each question carries, when it is due, when a session ends, and that all of it is accounted for."""

import asyncio
import time
from collections import Counter
from dataclasses import replace
from itertools import accumulate

import httpx
import msgspec
import pytest

from shakedown.judge.records import Outcome, RequestRecord
from shakedown.load import Burst, ClosedLoop, Constant, OpenLoop, PromptMaker, TrafficClass, UniformTokens, Workload
from shakedown.load.sharegpt import Exchange, given_talks
from shakedown.load.workload import Line, question
from tests.load.test_load import saying, serving
from tests.load.wire import SOUND, STREAM_HEAD, chunked, whole

CHAT = TrafficClass(turns=3, think_time_s=0.05, prompt_tokens=24)
REFUSAL = b"HTTP/1.1 503 No\r\ncontent-length: 2\r\n\r\n{}"


async def talked(
    arrivals: Burst | ClosedLoop, traffic: TrafficClass, wire: bytes = whole(*SOUND), duration_s: float = 5.0
) -> tuple[tuple[RequestRecord, ...], list[list[dict[str, str]]], OpenLoop]:
    """Records, the messages of each request, and the load."""
    bodies: list[bytes] = []
    async with serving(saying(wire), bodies) as url:
        load = OpenLoop(
            url,
            arrivals=arrivals,
            workload=Workload((traffic,), "m"),
            duration_s=duration_s,
            prompts=PromptMaker(),
            workers=0,
        )
        async with load:
            await load.done()
    return load.records, [msgspec.json.decode(body)["messages"] for body in bodies], load


async def test_each_question_carries_the_talk_so_far_with_the_engines_answers() -> None:
    records, asked, load = await talked(Burst(4), CHAT)
    assert Counter(record.outcome for record in records) == {Outcome.COMPLETED: 12}
    assert load.progress.sent == load.progress.ended == 12
    assert Counter(len(messages) for messages in asked) == {1: 4, 3: 4, 5: 4}
    for messages in asked:
        assert [message["role"] for message in messages] == ["user", "assistant", "user", "assistant", "user"][
            : len(messages)
        ]
        assert {message["content"] for message in messages[1::2]} <= {"Hello world"}
        questions = [message["content"] for message in messages[::2]]
        assert len(set(questions)) == len(questions)
    longest = [messages for messages in asked if len(messages) == 5]
    assert all(messages[:3] in asked for messages in longest)


async def test_a_question_is_due_a_thought_after_the_answer_before_it() -> None:
    records, _, _ = await talked(Burst(2), CHAT)
    by_id = {record.id: record for record in records}
    assert len(by_id) == 6
    first = next(record for record in records if record.id.endswith("-0"))
    second, third = by_id[f"{first.id}.2"], by_id[f"{first.id}.3"]
    assert second.due_at - first.finished_at == pytest.approx(0.05, abs=0.04)
    assert third.due_at > second.finished_at


@pytest.mark.parametrize("wire", [REFUSAL, STREAM_HEAD + chunked(SOUND[1])], ids=["refused", "cut off"])
async def test_a_question_without_an_answer_is_the_last(wire: bytes) -> None:
    records, asked, _ = await talked(Burst(3), CHAT, wire)
    assert len(records) == len(asked) == 3
    assert Outcome.COMPLETED not in {record.outcome for record in records}


async def test_no_question_is_asked_when_the_load_is_over() -> None:
    records, _, _ = await talked(Burst(3), replace(CHAT, think_time_s=1.0), duration_s=0.3)
    assert len(records) == 3


async def test_users_of_a_closed_loop_begin_another_session_when_one_has_ended() -> None:
    records, asked, load = await talked(ClosedLoop(2), replace(CHAT, think_time_s=0.0), duration_s=0.4)
    firsts, lasts = (sum(len(messages) == length for messages in asked) for length in (1, 5))
    assert load.progress.sent == len(records)
    assert firsts > 4
    assert firsts - 2 <= lasts <= firsts


async def test_answers_are_kept_in_the_talk_and_not_in_the_records_unless_asked() -> None:
    silent, _, _ = await talked(Burst(1), CHAT)
    kept, _, _ = await talked(Burst(1), replace(CHAT, keep_text=True))
    assert {record.text for record in silent} == {None}
    assert {record.text for record in kept} == {"Hello world"}


def test_the_length_of_a_session_is_drawn_from_the_seed() -> None:
    workload = Workload((TrafficClass(turns=UniformTokens(1, 4)),), seed=5)
    turns = [plan.turns for plan, _ in zip(workload.plans(), range(200), strict=False)]
    assert set(turns) == {1, 2, 3, 4}
    assert turns == [plan.turns for plan, _ in zip(workload.plans(), range(200), strict=False)]


def test_every_question_of_a_session_has_lengths_of_its_own() -> None:
    traffic = TrafficClass(turns=6, prompt_tokens=UniformTokens(10, 500), max_tokens=UniformTokens(10, 500))
    workload = Workload((traffic,), seed=5)
    first = next(workload.plans())
    asked = list(accumulate(range(5), lambda plan, _: workload.next_turn(plan), initial=first))
    assert [plan.turn for plan in asked] == [1, 2, 3, 4, 5, 6]
    assert len({plan.prompt_tokens for plan in asked}) == len({plan.max_tokens for plan in asked}) == 6
    assert asked == list(accumulate(range(5), lambda plan, _: workload.next_turn(plan), initial=first))


def test_given_talks_are_held_in_turn_to_their_end() -> None:
    traffic = TrafficClass(talks=((Line("one", 7), Line("and?", 8)), (Line("two"),)), turns=5, max_tokens=9)
    workload = Workload((traffic,))
    plans = [plan for plan, _ in zip(workload.plans(), range(3), strict=False)]
    assert [(plan.turns, plan.max_tokens) for plan in plans] == [(2, 7), (1, 9), (2, 7)]
    follow_up = workload.next_turn(plans[2])
    assert (question(follow_up, PromptMaker())["content"], follow_up.max_tokens) == ("and?", 8)


async def test_a_load_is_over_when_no_question_can_follow() -> None:
    async with asyncio.timeout(20):
        records, _, load = await talked(Burst(2), replace(CHAT, think_time_s=900.0), duration_s=1.0)
        closed, _, _ = await talked(ClosedLoop(2, think_time_s=900.0), replace(CHAT, think_time_s=0.0), duration_s=60)
    assert (len(records), len(closed)) == (2, 6)
    assert load.health.due == 2


async def test_a_client_that_wakes_late_says_so_of_follow_ups_too() -> None:
    """The event loop is blocked over the time at which the second questions are due."""
    async with serving(saying(whole(*SOUND))) as url:
        load = OpenLoop(
            url, arrivals=Burst(2), workload=Workload((replace(CHAT, think_time_s=0.3),), "m"), duration_s=5,
            prompts=PromptMaker(), workers=0,
        )  # fmt: skip
        async with load:
            await load.until(ended=2, within_s=10)
            time.sleep(0.8)  # noqa: ASYNC251 - that is the fault
            assert load.health.due == 4
            await load.done()
    late = [record.sent_at - record.due_at for record in load.records if record.id.endswith(".2")]
    assert len(late) == 2
    assert min(late) > 0.3


@pytest.mark.parametrize("arrivals", [Constant(rate=200), ClosedLoop(6)], ids=["open", "closed"])
async def test_a_stopped_load_accounts_for_the_questions_asked(arrivals: Constant | ClosedLoop) -> None:
    async with serving(saying(whole(*SOUND))) as url:
        talk = Workload((replace(CHAT, think_time_s=0.02, turns=1000),), "m")
        load = OpenLoop(url, arrivals=arrivals, workload=talk, duration_s=60, prompts=PromptMaker(), workers=0)
        async with load:
            await load.until(sent=40, within_s=20)
            load.stop()
    assert len({record.id for record in load.records}) == len(load.records) == load.progress.sent >= 40


async def test_processes_share_sessions_and_lose_none() -> None:
    async with serving(saying(whole(*SOUND))) as url:
        talk = Workload((replace(CHAT, think_time_s=0.01),), "m")
        load = OpenLoop(url, arrivals=Burst(20), workload=talk, duration_s=20, prompts=PromptMaker(), workers=2)
        async with load:
            await load.done()
    assert Counter(record.outcome for record in load.records) == {Outcome.COMPLETED: 60}
    assert Counter(record.id.partition("-")[2].partition(".")[2] for record in load.records) == {
        "": 20,
        "2": 20,
        "3": 20,
    }


@pytest.mark.parametrize(("status", "lengths", "exact"), [(200, (1, 2, 3), True), (404, (1, 3, 2), False)])
async def test_answers_are_counted_by_the_engine_or_guessed_from_their_bytes(
    status: int, lengths: tuple[int, ...], exact: bool
) -> None:
    def tokenize(request: httpx.Request) -> httpx.Response:
        return httpx.Response(status, json={"count": len(msgspec.json.decode(request.content)["prompt"].split())})

    held = ((Exchange("a?", "yes"),), (Exchange("b?", "surely 12345"), Exchange("c?", "a bc d")))
    one, two, three = lengths
    async with httpx.AsyncClient(transport=httpx.MockTransport(tokenize)) as control:
        assert await given_talks(control, "http://engine", "m", held) == (
            ((Line("a?", one),), (Line("b?", two), Line("c?", three))),
            exact,
        )
