"""Which tokens the twin may answer with: whole words, so that an answer reads like text and costs one token a word."""

import json
from dataclasses import dataclass
from pathlib import Path

WORDS_FILE = "words.json"


@dataclass(frozen=True)
class Vocabulary:
    """Token ids of one tokenizer."""

    words: tuple[int, ...]
    closing: tuple[int, ...] = ()
    """Tokens that bring a grammar to its end soonest, best first."""


def vocabulary(tokenizer: str, size: int) -> Vocabulary:
    """What was written beside the tokenizer when it was made; else ids that any vocabulary has."""
    listed = Path(tokenizer) / WORDS_FILE
    if listed.is_file():
        ids: dict[str, list[int]] = json.loads(listed.read_text())
        return Vocabulary(tuple(ids["words"]), tuple(ids["closing"]))
    return Vocabulary(tuple(range(min(300, size // 2), min(500, size))))
