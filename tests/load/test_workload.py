"""Workloads: the mix, the lengths and the prompts that a seed stands for."""

from collections import Counter
from itertools import islice

import httpx
import msgspec
import pytest

from shakedown.errors import UsageError
from shakedown.load import LognormalTokens, PromptMaker, TrafficClass, UniformTokens, Workload
from shakedown.load.prompts import calibrated_prompts
from shakedown.load.workload import Line, question, request_body

TEMPLATE_TOKENS = 7


def test_classes_come_by_weight_and_by_seed() -> None:
    mix = Workload((TrafficClass(name="a", weight=3), TrafficClass(name="b", max_tokens=UniformTokens(5, 9))), seed=4)
    plans = list(islice(mix.plans(), 4000))
    assert plans == list(islice(mix.plans(), 4000))
    counts = Counter(plan.traffic_class.name for plan in plans)
    assert counts["a"] / len(plans) == pytest.approx(0.75, abs=0.04)
    assert {plan.max_tokens for plan in plans if plan.traffic_class.name == "b"} == {5, 6, 7, 8, 9}


def test_lengths_with_a_tail_stay_below_their_cap() -> None:
    lengths = [plan.prompt_tokens for plan in islice(_of(LognormalTokens(100, 1.0, 400)).plans(), 2000)]
    assert 1 <= min(lengths) < 100 < max(lengths) == 400
    assert sorted(lengths)[1000] == pytest.approx(100, rel=0.15)


def _of(length: LognormalTokens) -> Workload:
    return Workload((TrafficClass(prompt_tokens=length),))


def test_no_two_prompts_share_their_beginning_unless_they_are_meant_to() -> None:
    maker = PromptMaker(tuple("abcdefgh"), template_tokens=0)
    prompts = [maker.prompt(serial, 40) for serial in range(3000)]
    assert len({tuple(prompt.split()[:6]) for prompt in prompts}) == 3000
    assert {len(prompt.split()) for prompt in prompts} == {40}
    shared = [maker.prompt(serial, 40, shared_tokens=16, shared_group="g").split() for serial in range(50)]
    assert len({tuple(words[:16]) for words in shared}) == 1
    assert len({tuple(words[:22]) for words in shared}) == 50


def test_prompts_of_another_set_are_others_from_their_first_words_on() -> None:
    made = [PromptMaker(prompt_set=name).prompt(serial, 60) for name in ("", "a", "b") for serial in range(1000)]
    assert len({tuple(prompt.split()[:6]) for prompt in made}) == 3000
    again = PromptMaker(prompt_set="a")
    assert [again.prompt(serial, 60) for serial in range(1000)] == made[1000:2000]
    shared = {PromptMaker(prompt_set=name).prompt(1, 40, shared_tokens=20, shared_group="g")[:20] for name in "ab"}
    assert len(shared) == 1


def test_a_body_says_what_the_class_wants() -> None:
    traffic = TrafficClass(priority=-3, ignore_eos=False, talks=((Line("one"),), (Line("two"),)), extra={"n": 1})
    plan = next(islice(Workload((traffic,)).plans(), 1, None))
    body = msgspec.json.decode(request_body(plan, "m", [question(plan, PromptMaker())]))
    assert body["messages"] == [{"role": "user", "content": "two"}]
    assert (body["priority"], body["n"], body["stream"], body["max_tokens"]) == (-3, 1, True, 128)
    assert "ignore_eos" not in body


def test_a_workload_without_weight_or_with_twins_is_refused() -> None:
    for classes in ((), (TrafficClass(weight=0),), (TrafficClass(), TrafficClass())):
        with pytest.raises(UsageError):
            Workload(classes)


async def test_lengths_are_exact_when_the_engine_can_tokenize() -> None:
    def tokenize(request: httpx.Request) -> httpx.Response:
        words = msgspec.json.decode(request.content)["messages"][0]["content"].split()
        count = TEMPLATE_TOKENS + sum(1 if len(word) < 4 else 2 for word in words)
        return httpx.Response(200, json={"count": count})

    async with httpx.AsyncClient(transport=httpx.MockTransport(tokenize)) as client:
        maker = await calibrated_prompts(client, "http://engine", "m")
    assert maker.exact
    assert len(maker.prompt(12345, 200).split()) == 200 - TEMPLATE_TOKENS
    assert all(len(word) < 4 for word in maker.words)


async def test_lengths_are_called_approximate_when_it_cannot() -> None:
    refuse = httpx.MockTransport(lambda _: httpx.Response(404))
    async with httpx.AsyncClient(transport=refuse) as client:
        assert not (await calibrated_prompts(client, "http://engine", "m")).exact
