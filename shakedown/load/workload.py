"""What is asked: traffic classes mixed by weight, and the request bodies they make."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import msgspec

from shakedown.errors import UsageError
from shakedown.load.prompts import PromptMaker

Message = dict[str, str]
"""A role and what it says, as the OpenAI API has it."""
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class UniformTokens:
    """A length drawn evenly from `low` to `high`, both included."""

    low: int
    high: int

    def draw(self, dice: random.Random) -> int:
        return dice.randint(self.low, self.high)


@dataclass(frozen=True, slots=True)
class LognormalTokens:
    """A length with a long tail: median `median`, standard deviation of the logarithm `sigma`, cut at `at_most`."""

    median: int
    sigma: float
    at_most: int

    def draw(self, dice: random.Random) -> int:
        return max(1, min(self.at_most, round(self.median * dice.lognormvariate(0, self.sigma))))


@dataclass(frozen=True, slots=True)
class ListedTokens:
    """A length picked from recorded ones."""

    values: tuple[int, ...]

    def draw(self, dice: random.Random) -> int:
        return dice.choice(self.values)


Length = int | UniformTokens | LognormalTokens | ListedTokens


class Line(NamedTuple):
    """A given question of a conversation."""

    question: str
    answer_tokens: int | None = None
    """How long the answer to it is; None: the class's `max_tokens`."""


Talk = tuple[Line, ...]
"""A conversation to be held again, its questions in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficClass:
    """One kind of user."""

    name: str = "default"
    weight: float = 1.0
    prompt_tokens: Length = 128
    max_tokens: Length = 128
    priority: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    shared_prefix_tokens: int = 0
    """How many of the prompt's tokens all requests of the group share, from the first on."""
    shared_prefix_group: str | None = None
    """The class's name when None: classes that name the same group share one prefix."""
    abandon_after_s: float | None = None
    """Users leave this long after sending."""
    abandon_after_tokens: int | None = None
    """Users leave when they have seen this many tokens."""
    abandon_share: float = 1.0
    """The share of users of whom that is true."""
    keep_text: bool = False
    ignore_eos: bool = True
    """A vLLM extension: the answer is exactly max_tokens long. Other servers may reject it."""
    talks: tuple[Talk, ...] = ()
    """Given conversations instead of made ones, used in turn, each up to `turns` of its questions."""
    turns: Length = 1
    """Questions of one session, each of a length of its own. Each carries the talk so far, with the engine's own
    answers; the next is due `think_time_s` after the answer before it. A session ends with a question that was not
    answered."""
    think_time_s: float = 0.0
    extra: Mapping[str, Any] = field(default_factory=dict)
    """More fields of the request body."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A mix of classes for one model; `model` None asks the server. The seed decides classes and lengths."""

    classes: tuple[TrafficClass, ...] = (TrafficClass(),)
    model: str | None = None
    seed: int = 0
    prompt_set: str | None = None
    """Loads that name the same set ask the same questions, and find them in the prefix cache; None: no other load does.
    """

    def __post_init__(self) -> None:
        if not self.classes or sum(each.weight for each in self.classes) <= 0:
            raise UsageError("a workload needs at least one traffic class with a positive weight")
        names = [each.name for each in self.classes]
        if len(set(names)) < len(names):
            raise UsageError(f"traffic classes must have different names; got {', '.join(names)}")

    def plans(self) -> Iterator["RequestPlan"]:
        """The endless sequence of requests, the same for the same seed."""
        dice = random.Random(self.seed)
        weights = [each.weight for each in self.classes]
        serial = 0
        while True:
            traffic_class = dice.choices(self.classes, weights)[0]
            talk = _talk(traffic_class, serial)
            prompt_tokens, max_tokens = _lengths(traffic_class, talk, 1, dice)
            may_abandon = dice.random() < traffic_class.abandon_share
            turns = _drawn(traffic_class.turns, dice)
            yield RequestPlan(
                serial,
                traffic_class,
                prompt_tokens,
                max_tokens,
                may_abandon,
                min(turns, len(talk)) if talk else turns,
            )
            serial += 1

    def next_turn(self, plan: "RequestPlan") -> "RequestPlan":
        """The question after this one in its session; the seed decides its lengths, whoever sends it."""
        turn = plan.turn + 1
        dice = random.Random(f"{self.seed} {plan.serial} {turn}")
        talk = _talk(plan.traffic_class, plan.serial)
        prompt_tokens, max_tokens = _lengths(plan.traffic_class, talk, turn, dice)
        return plan._replace(turn=turn, prompt_tokens=prompt_tokens, max_tokens=max_tokens)


class RequestPlan(NamedTuple):
    """One request before its body is made."""

    serial: int
    traffic_class: TrafficClass
    prompt_tokens: int
    max_tokens: int
    may_abandon: bool = True
    turns: int = 1
    turn: int = 1


def question(plan: RequestPlan, prompts: PromptMaker) -> Message:
    """What a user says; the made questions of a session are all different."""
    traffic_class, turn = plan.traffic_class, plan.turn
    if talk := _talk(traffic_class, plan.serial):
        return {"role": "user", "content": talk[turn - 1].question}
    maker = prompts if turn == 1 else replace(prompts, prompt_set=f"{prompts.prompt_set} turn {turn}")
    made = maker.prompt(
        plan.serial,
        plan.prompt_tokens,
        shared_tokens=traffic_class.shared_prefix_tokens,
        shared_group=traffic_class.shared_prefix_group or traffic_class.name,
    )
    return {"role": "user", "content": made}


def request_body(plan: RequestPlan, model: str, messages: Sequence[Message]) -> bytes:
    """The JSON of an OpenAI chat completion request that streams."""
    traffic_class = plan.traffic_class
    body: dict[str, Any] = {
        "model": model,
        "messages": messages,
        "max_tokens": plan.max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if traffic_class.ignore_eos:
        body["ignore_eos"] = True
    if traffic_class.priority is not None:
        body["priority"] = traffic_class.priority
    return _encode({**body, **traffic_class.extra})


def _talk(traffic_class: TrafficClass, serial: int) -> Talk:
    talks = traffic_class.talks
    return talks[serial % len(talks)] if talks else ()


def _lengths(traffic_class: TrafficClass, talk: Talk, turn: int, dice: random.Random) -> tuple[int, int]:
    """Of the prompt and of the answer, in tokens."""
    given = talk[turn - 1].answer_tokens if talk else None
    prompt_tokens = _drawn(traffic_class.prompt_tokens, dice)
    return prompt_tokens, _drawn(traffic_class.max_tokens, dice) if given is None else given


def _drawn(length: Length, dice: random.Random) -> int:
    return length if isinstance(length, int) else length.draw(dice)
