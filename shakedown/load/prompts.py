"""Prompts of a wanted length in tokens, each different from its first words on, also from those of any other load: no
prefix cache helps by accident.

Tokenizers of the models in use split at spaces first, so the tokens of a text are the sum over its words. The words
that cost exactly one token are found once, by the engine's own `/tokenize`; after that a prompt of N tokens is N such
words less what the chat template adds. Every prompt is a string join: nothing is asked while the load runs.
"""

import hashlib
import random
from dataclasses import dataclass
from functools import lru_cache

import httpx

CANDIDATE_WORDS = """
a b c d e f g h i k l m n o p r s t u w x y the of and to in is it that for was on are as with his they at be
this from have or by one had not but what all were when we there can an your which their said if do will each
about how up out them then she many some so these would other into has more her two like him see time could no
make than first been its who now people my made over did down only way find use may water long little very after
words called just where most know
""".split()  # noqa: SIM905 - 120 quoted words would be a page
SERIAL_WORDS = 6
TAIL_POOL = 64
REPEATS = 16
TOKENIZE_TIMEOUT_S = 10.0
APPROXIMATE_TEMPLATE_TOKENS = 10


@dataclass(frozen=True, slots=True)
class PromptMaker:
    """Makes prompts out of one-token words."""

    words: tuple[str, ...] = tuple(CANDIDATE_WORDS)
    template_tokens: int = APPROXIMATE_TEMPLATE_TOKENS
    """Tokens that the chat template adds, counting the first word as one."""
    exact: bool = False
    """Whether the lengths were checked against the engine's tokenizer."""
    prompt_set: str = ""
    """Makers of different sets make different prompts; what is shared within a group is shared by all sets."""

    def prompt(self, serial: int, tokens: int, *, shared_tokens: int = 0, shared_group: str = "") -> str:
        """The `serial`-th prompt; with the chat template it has `tokens` tokens, the first `shared_tokens` shared."""
        wanted = max(1, tokens - self.template_tokens)
        shared = min(max(0, shared_tokens - self.template_tokens), wanted)
        head = self._serial_words(serial)[: wanted - shared]
        prefix = _filler(self.words, f"shared {shared_group}", shared)
        tail = _filler(self.words, f"tail {serial % TAIL_POOL}", wanted - shared - len(head))
        return " ".join((*prefix, *head, *tail))

    def _serial_words(self, serial: int) -> tuple[str, ...]:
        base = len(self.words)
        number = (serial + _offset(self.prompt_set)) % base**SERIAL_WORDS
        return tuple(self.words[number // base**digit % base] for digit in range(SERIAL_WORDS))


@lru_cache
def _offset(prompt_set: str) -> int:
    """Where a set's serial numbers begin: so far apart, among 10^11 and more, that sets do not meet."""
    return int.from_bytes(hashlib.sha256(prompt_set.encode()).digest()[:8]) if prompt_set else 0


@lru_cache(maxsize=4 * TAIL_POOL)
def _filler(words: tuple[str, ...], seed: str, count: int) -> tuple[str, ...]:
    return tuple(random.Random(seed).choices(words, k=count))


async def calibrated_prompts(client: httpx.AsyncClient, base_url: str, model: str) -> PromptMaker:
    """A maker of exact lengths if the server can tokenize, else an approximate one that says so by `exact`."""
    try:
        return await _calibrated(client, base_url, model)
    except (httpx.HTTPError, ValueError, KeyError):
        return PromptMaker()


async def _calibrated(client: httpx.AsyncClient, base_url: str, model: str) -> PromptMaker:
    async def count(content: str) -> int:
        answer = await client.post(
            f"{base_url}/tokenize",
            json={"model": model, "messages": [{"role": "user", "content": content}], "add_generation_prompt": True},
            timeout=TOKENIZE_TIMEOUT_S,
        )
        answer.raise_for_status()
        return int(answer.json()["count"])

    alone = await count(CANDIDATE_WORDS[0])
    words = []
    for word in CANDIDATE_WORDS:
        # one more of it costs one more token, whatever the first one costs at the start of a line
        if await count(" ".join([CANDIDATE_WORDS[0], *[word] * REPEATS])) == alone + REPEATS:
            words.append(word)
    if len(words) < 2:
        return PromptMaker()
    # A serial's first word stands where a line begins, where some tokenizers count differently.
    heads = [word for word in words if await count(word) == alone]
    maker = PromptMaker(tuple(heads), alone - 1, exact=True)
    checks = [(serial, length) for serial, length in ((1, 40), (97, 200), (5003, 333)) if length > alone]
    right = [await count(maker.prompt(serial, length)) == length for serial, length in checks]
    return PromptMaker(maker.words, maker.template_tokens, exact=all(right) and len(heads) > 1)
