"""Which tokens the twin answers with: whole words, so that an answer reads like text and costs one token a word."""

import json
from pathlib import Path

WORDS_FILE = "words.json"


def word_ids(tokenizer: str, vocab: int) -> list[int]:
    """Token ids of the tokenizer's words, as written beside it when it was made; else ids that any vocabulary has."""
    listed = Path(tokenizer) / WORDS_FILE
    if listed.is_file():
        ids: list[int] = json.loads(listed.read_text())
        return ids
    return list(range(min(300, vocab // 2), min(500, vocab)))
