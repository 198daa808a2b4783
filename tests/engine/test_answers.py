"""The twin's answers are the same for the same prompt, ordinary words, and within a grammar."""

from shakedown.engine.twin.answers import choice_of, is_allowed, likelihoods, next_allowed, next_word, seed_of
from shakedown.engine.twin.words import Vocabulary, vocabulary

WORDS = Vocabulary(words=tuple(range(300, 350)), closing=(1, 40, 41))


def mask_of(*allowed: int) -> list[int]:
    """A grammar's bitmask as numpy hands it over: signed 32-bit words."""
    words = [sum(1 << token % 32 for token in set(allowed) if token // 32 == word) for word in range(16)]
    return [word - (1 << 32) if word >> 31 else word for word in words]


def answer(prompt: list[int], seed: int | None = None, choice: int = 0) -> list[int]:
    start = seed_of(prompt, seed, choice)
    return [next_word(WORDS, start, position) for position in range(20)]


def test_equal_prompts_get_equal_answers_and_others_do_not() -> None:
    assert answer([5, 6, 7]) == answer([5, 6, 7])
    assert answer([5, 6, 7]) != answer([7, 6, 5])
    assert answer([5, 6, 7]) != answer([5, 6, 7], seed=1)


def test_each_of_n_choices_says_something_else() -> None:
    choices = {tuple(answer([5], choice=choice_of(f"{number}_chatcmpl-1"))) for number in range(4)}

    assert len(choices) == 4
    assert choice_of("chatcmpl-1_2") == 0


def test_an_answer_is_words_and_not_one_word() -> None:
    said = answer([5, 6, 7])

    assert set(said) <= set(WORDS.words)
    assert len(set(said)) > 15


def test_a_grammar_is_obeyed_and_closed_as_soon_as_it_allows() -> None:
    assert next_allowed(WORDS, mask_of(41, 305, 7), wanted=305) == 41
    assert next_allowed(WORDS, mask_of(305, 7), wanted=305) == 305
    assert next_allowed(WORDS, mask_of(7, 306), wanted=305) == 7
    assert next_allowed(WORDS, mask_of(63), wanted=305) == 63


def test_the_top_bit_of_a_mask_word_counts() -> None:
    assert is_allowed(mask_of(31), 31)
    assert not is_allowed(mask_of(31), 30)


def test_likelihoods_fall_and_are_no_more_than_certain() -> None:
    values = likelihoods(5)

    assert len(values) == 6
    assert values == sorted(values, reverse=True)
    assert values[0] < 0


def test_a_tokenizer_without_a_word_list_still_gets_ids_within_its_size(tmp_path: object) -> None:
    assert max(vocabulary(str(tmp_path), 200).words) < 200
