"""Real conversations, and how long their answers were, out of a file in the public ShareGPT format.

A list of {"conversations": [{"from": "human", "value": …}, {"from": "gpt", "value": …}, …]}. Of each conversation its
questions are asked again and the answers made as long as they were there. One question of each, which is the default,
is what vLLM's own benchmark takes.
"""

import asyncio
import itertools
from pathlib import Path
from typing import NamedTuple

import httpx
import msgspec

from shakedown.errors import UsageError
from shakedown.load.workload import Line, Talk

CONVERSATIONS_AT_MOST = 1000
PEOPLE, ENGINES = ("human", "user"), ("gpt", "chatgpt", "bing", "bard", "assistant")
BYTES_A_TOKEN = 4.0
"""Of English text, by the tokenizers in use; for servers that cannot say."""
TOKENIZE_TIMEOUT_S = 10.0
TOKENIZED_AT_ONCE = 8


class _Said(msgspec.Struct):
    said_by: str = msgspec.field(name="from", default="")
    value: str = ""


class _Conversation(msgspec.Struct):
    conversations: list[_Said] = []


_read = msgspec.json.Decoder(_Conversation).decode


class Exchange(NamedTuple):
    """A question and the answer that it had."""

    question: str
    answer: str


Conversation = tuple[Exchange, ...]


def read_sharegpt(path: Path, turns: int = 1) -> tuple[Conversation, ...]:
    """The first `turns` exchanges of each conversation that begins with one, CONVERSATIONS_AT_MOST of them.

    Raises UsageError.
    """
    try:
        # The public files hold a hundred times as many: those that are not asked for are not made objects.
        entries = msgspec.json.decode(path.read_bytes(), type=list[msgspec.Raw])
        held = (tuple(_exchanges(_read(entry).conversations)[:turns]) for entry in entries)
        conversations = tuple(itertools.islice((each for each in held if each), CONVERSATIONS_AT_MOST))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not a file in the ShareGPT format: {error}") from error
    if not conversations:
        raise UsageError(f"{path} holds no question of a human with an answer after it")
    return conversations


def _exchanges(said: list[_Said]) -> list[Exchange]:
    """From the first question on, until one was not answered."""
    begun = next((place for place, each in enumerate(said) if _spoke(each, PEOPLE)), len(said))
    pairs = zip(said[begun::2], said[begun + 1 :: 2], strict=False)
    whole = itertools.takewhile(lambda pair: _spoke(pair[0], PEOPLE) and _spoke(pair[1], ENGINES), pairs)
    return [Exchange(asked.value, answered.value) for asked, answered in whole]


def _spoke(said: _Said, who: tuple[str, ...]) -> bool:
    return said.said_by in who and bool(said.value.strip())


async def given_talks(
    control: httpx.AsyncClient, url: str, model: str, conversations: tuple[Conversation, ...]
) -> tuple[tuple[Talk, ...], bool]:
    """The questions with the tokens of each answer, at least 1, and whether the server's own tokenizer counted them."""
    try:
        counts = iter(await _counts(control, url, model, [each.answer for held in conversations for each in held]))
        exact = True
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        counts = iter([_guessed(each.answer) for held in conversations for each in held])
        exact = False
    return tuple(tuple(Line(each.question, next(counts)) for each in held) for held in conversations), exact


async def _counts(control: httpx.AsyncClient, url: str, model: str, texts: list[str]) -> list[int]:
    async def count(text: str) -> int:
        async with free:
            body = {"model": model, "prompt": text, "add_special_tokens": False}
            answer = await control.post(f"{url}/tokenize", json=body, timeout=TOKENIZE_TIMEOUT_S)
            answer.raise_for_status()
            return max(1, int(answer.json()["count"]))

    free = asyncio.Semaphore(TOKENIZED_AT_ONCE)
    first = await count(texts[0])  # a server without a tokenizer is asked once, not a thousand times
    return [first, *await asyncio.gather(*(count(text) for text in texts[1:]))]


def _guessed(text: str) -> int:
    return max(1, round(len(text.encode()) / BYTES_A_TOKEN))
