"""Trigger examples are split before they are explained, and paired with prefixes that length does not give away."""

import numpy as np

from ffkv.apps.machine.questions import marked, strength
from ffkv.apps.machine.texts import (
    Example,
    batches_of,
    intruder_sets,
    pair_by_length,
    pair_by_word,
    split_examples,
)


def example(text: str, sentence: int = 0, coefficient: float = 1.0, following: str = "") -> Example:
    words = text.split()
    return Example(text, following, len(words[-1]), words[-1], len(words), coefficient, sentence)


def generator():
    return np.random.default_rng(0)


def test_no_sentence_and_no_text_is_on_both_sides():
    examples = [example(f"text {number % 7}", sentence=number // 2, coefficient=number) for number in range(30)]
    for seed in range(50):
        shown, held_out = split_examples(examples, 10, np.random.default_rng(seed))
        assert len(shown) == 10
        assert not {each.sentence for each in shown} & {each.sentence for each in held_out}
        assert not {each.text for each in shown} & {each.text for each in held_out}
        assert len({each.text for each in held_out}) == len(held_out)
        assert [each.coefficient for each in shown] == sorted((each.coefficient for each in shown), reverse=True)


def test_few_examples_are_split_in_halves():
    shown, held_out = split_examples([example(f"a {n}", n) for n in range(7)], 20, generator())
    assert (len(shown), len(held_out)) == (3, 4)


def test_strong_examples_are_on_both_sides():
    """The split is at random: else the score would be about the weakest examples alone."""
    examples = [example(f"a {n}", n, coefficient=20 - n) for n in range(20)]
    held = [
        max(each.coefficient for each in split_examples(examples, 10, np.random.default_rng(s))[1]) for s in range(40)
    ]
    assert 8 < sum(strongest == 20 for strongest in held) < 32


def test_pairs_have_equal_lengths_and_use_nothing_twice():
    triggers = [example("a b"), example("c d"), example("e f"), example("g h i")]
    silent = [example("k l"), example("m n"), example("o p q r")]
    pairs = pair_by_length(triggers, silent, generator())
    assert [trigger.text for trigger, _ in pairs] == ["a b", "c d"]
    assert {partner.text for _, partner in pairs} == {"k l", "m n"}


def test_the_hard_set_has_equal_last_words_and_the_nearest_length():
    triggers = [example("one two press"), example("a year"), example("b c d e song")]
    silent = [example("x press"), example("x y z press"), example("x y press"), example("river")]
    ((trigger, partner),) = pair_by_word(triggers, silent, generator())
    assert (trigger.text, partner.text) == ("one two press", "x y press")


def test_sets_have_one_intruder_each_at_any_place():
    pairs = [(example(f"t{n}"), example(f"s{n}")) for n in range(42)]
    sets = intruder_sets(pairs, 4, generator())
    assert len(sets) == 10
    for texts in sets:
        assert [text[0].text[0] for text in texts if text[1]] == ["s"] and len(texts) == 4
    assert {[intrudes for _, intrudes in texts].index(True) for texts in sets} == {0, 1, 2, 3}
    shown = [text.text for texts in sets for text, _ in texts]
    assert len(set(shown)) == len(shown)


def test_intruders_are_as_long_as_trigger_examples():
    lengths = np.random.default_rng(1).integers(1, 30, 4000)
    pairs = [(example(" ".join(["t"] * n)), example(" ".join(["s"] * n))) for n in lengths]
    texts = [text for of_set in intruder_sets(pairs, 5, generator()) for text in of_set]
    means = [np.mean([text.tokens for text, intrudes in texts if intrudes is which]) for which in (True, False)]
    assert abs(means[0] - means[1]) < 1.5  # the standard error of 800 lengths is 0.3


def test_the_last_batch_may_be_smaller():
    assert batches_of([1, 2, 3, 4, 5], 2) == [[1, 2], [3, 4], [5]]


def test_exactly_one_place_is_marked():
    text = Example("a «red» press", " of «x»", len(" press"), "press", 3, 1.0, 0)
    assert marked(text) == "a <red>« press» of <x>"


def test_strengths_are_floors():
    assert [strength(m, 4.0) for m in (4.0, 3.99, 0.39, 0.4, -1.0, 5.0)] == [10, 9, 0, 1, 0, 10]
    assert strength(1.0, 0.0) == 0
