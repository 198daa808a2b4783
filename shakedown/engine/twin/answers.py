"""What the twin says: ordinary words, the same for the same prompt, within what a grammar allows."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from shakedown.engine.twin.words import Vocabulary

BITS = 32
LIKELY = -0.105
"""Log-probability of the chosen token, 0.9; each alternative is half as likely as the one before it."""
UNLIKELY = -3.0
HALF = 0.693
PRIME = 7919


@dataclass
class Answer:
    """One request's answer in the making."""

    seed: int
    prompt_tokens: int
    logprobs: int | None = None
    """How many alternatives the client wants beside each token; None for no log-probabilities at all."""


def seed_of(prompt: Sequence[int], sampling_seed: int | None, choice: int) -> int:
    """Equal prompts get equal answers; another sampling seed or another of `n` choices gets another one."""
    text = b"".join(token.to_bytes(4, "little") for token in prompt[-64:])
    return zlib.crc32(text, choice + 31 * (sampling_seed or 0) & 0xFFFF)


def choice_of(req_id: str) -> int:
    """Which of `n` choices a request is: vLLM numbers its children "0_…", "1_…"."""
    number, _, rest = req_id.partition("_")
    return int(number) if rest and number.isdecimal() else 0


def next_word(vocabulary: Vocabulary, seed: int, position: int) -> int:
    """The token at a position of an answer."""
    return vocabulary.words[(seed * 31 + position * PRIME) % len(vocabulary.words)]


def next_allowed(vocabulary: Vocabulary, mask: Sequence[int], wanted: int) -> int:
    """A token that a grammar's bitmask allows: one that closes it, else the wanted word, else the first allowed."""
    for token in (*vocabulary.closing, wanted):
        if is_allowed(mask, token):
            return token
    for word, bits in enumerate(mask):
        if bits:
            unsigned = bits & 0xFFFFFFFF
            return word * BITS + (unsigned & -unsigned).bit_length() - 1
    return wanted


def is_allowed(mask: Sequence[int], token: int) -> bool:
    """Whether a bitmask of 32-bit words has a token's bit."""
    return bool(int(mask[token // BITS]) >> (token % BITS) & 1)


def likelihoods(alternatives: int) -> list[float]:
    """Log-probabilities of a token and its alternatives, best first."""
    return [LIKELY, *(UNLIKELY - HALF * rank for rank in range(alternatives))]
