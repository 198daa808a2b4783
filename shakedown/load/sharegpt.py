"""Real questions, and how long their answers were, out of a file in the public ShareGPT format.

A list of {"conversations": [{"from": "human", "value": …}, {"from": "gpt", "value": …}, …]}. The first question of each
conversation is taken, and the answer's length with it, as vLLM's own benchmark does.
"""

from pathlib import Path
from typing import NamedTuple

import httpx
import msgspec

from shakedown.errors import UsageError

CONVERSATIONS_AT_MOST = 1000
PEOPLE, ENGINES = ("human", "user"), ("gpt", "chatgpt", "bing", "bard", "assistant")
BYTES_A_TOKEN = 4.0
"""Of English text, by the tokenizers in use; for servers that cannot say."""
TOKENIZE_TIMEOUT_S = 10.0


class _Said(msgspec.Struct):
    said_by: str = msgspec.field(name="from", default="")
    value: str = ""


class _Conversation(msgspec.Struct):
    conversations: list[_Said] = []


class Exchange(NamedTuple):
    """A question and the answer that it had."""

    question: str
    answer: str


def read_sharegpt(path: Path) -> tuple[Exchange, ...]:
    """The first exchange of each conversation that has one, CONVERSATIONS_AT_MOST of them. Raises UsageError."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=list[_Conversation])
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not a file in the ShareGPT format: {error}") from error
    exchanges = [exchange for each in found if (exchange := _first(each.conversations)) is not None]
    if not exchanges:
        raise UsageError(f"{path} holds no question of a human with an answer after it")
    return tuple(exchanges[:CONVERSATIONS_AT_MOST])


def _first(said: list[_Said]) -> Exchange | None:
    begun = next((place for place, each in enumerate(said) if each.said_by in PEOPLE and each.value.strip()), None)
    if begun is None or begun + 1 >= len(said):
        return None
    answer = said[begun + 1]
    return Exchange(said[begun].value, answer.value) if answer.said_by in ENGINES and answer.value.strip() else None


async def answer_lengths(
    control: httpx.AsyncClient, url: str, model: str, exchanges: tuple[Exchange, ...]
) -> tuple[tuple[int, ...], bool]:
    """How many tokens each answer has, at least 1, and whether the server's own tokenizer said so."""
    try:
        return tuple([max(1, await _count(control, url, model, each.answer)) for each in exchanges]), True
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        guessed = (len(each.answer.encode()) / BYTES_A_TOKEN for each in exchanges)
        return tuple(max(1, round(length)) for length in guessed), False


async def _count(control: httpx.AsyncClient, url: str, model: str, text: str) -> int:
    body = {"model": model, "prompt": text, "add_special_tokens": False}
    answer = await control.post(f"{url}/tokenize", json=body, timeout=TOKENIZE_TIMEOUT_S)
    answer.raise_for_status()
    return int(answer.json()["count"])
