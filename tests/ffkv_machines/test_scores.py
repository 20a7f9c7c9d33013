"""How texts are chosen and paired, and scores by cases that were computed by hand.

Trigger examples are split before they are explained, and paired with prefixes that length does not give away.
"""

import math

import numpy as np
import pandas as pd
import pytest

from ffkv_machines.explain import score, summarize
from ffkv_machines.questions import marked, strength
from ffkv_machines.texts import Example, intruder_sets, pair_by_length, pair_by_word, split_examples


def named(trigger, said):
    """The score of one question of the kind "detection"."""
    return score("detection", [trigger], [said])


def correlation(true, simulated):
    """The value of two questions of the kind "simulation", of which the first holds one text."""
    return score("simulation", [true[:1], true[1:]], [simulated[:1], simulated[1:]])[1]


def test_scores_by_hand():
    trigger, said = [True, True, True, True, False, False], [True, True, True, False, True, False]
    assert named(trigger, said) == (6, 0.625, 0.75, 0.5)
    # deviations (-1, 0, 1) and (-2, 1, 1): 3 / sqrt(2 * 6)
    assert correlation([1, 2, 3], [0, 3, 3]) == pytest.approx(3 / math.sqrt(12), rel=1e-12)  # rounding of float64
    assert correlation([1, 2, 3], [9, 6, 3]) == pytest.approx(-1, rel=1e-12)
    assert score("intruder", [0, 4, 2, 2], [0, 1, 2, 3])[:2] == (4, 0.5)


def test_guessing_gives_one_half_whatever_the_share_of_triggers():
    trigger = [True] * 9 + [False]
    assert named(trigger, [True] * 10)[1] == named(trigger, [False] * 10)[1] == 0.5


def test_where_a_score_is_not_defined_it_is_nan():
    """Of one class alone, of what does not vary or has fewer than three texts, and of no set."""
    undefined = [named([True, True], [True, False])[1], named([], [])[1], score("intruder", [], [])[1]]
    undefined += [correlation(*each) for each in (([1, 2, 3], [5, 5, 5]), ([0, 0, 0], [1, 5, 2]), ([0, 1], [0, 10]))]
    assert all(map(math.isnan, undefined))


def row(layer, memory, label, value, refused=0):
    counts = {"asked": 4, "answered": 4 - refused, "refused": refused}
    place = {"layer": layer, "memory": memory, "score": "detection", "label": label}
    return {**place, "value": value, "chance": 0.5, **counts}


def test_memories_are_averaged_and_what_was_refused_is_told():
    rows = [row(0, 0, "own", 1.0), row(0, 1, "own", 0.5, refused=1), row(1, 0, "own", np.nan, refused=4)]
    by_memory = pd.DataFrame([*rows, row(0, 0, "other", 0.4)])
    table = summarize(by_memory).set_index(["layer", "label"])
    own = table.loc[(-1, "own")]
    assert (own["memories"], own["mean"], own["asked"], own["answered"], own["refused"]) == (2, 0.75, 12, 7, 5)
    assert (own["low"], own["high"]) == (0, 1)  # two memories tell little: t of one degree of freedom is 12.7
    assert table.loc[(-1, "own - other"), "mean"] == pytest.approx(0.6, rel=1e-12)
    assert table.loc[(1, "own"), "memories"] == 0 and math.isnan(table.loc[(1, "own"), "mean"])
    assert table.loc[(0, "own"), "chance"] == 0.5


# Texts


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


def test_exactly_one_place_is_marked():
    text = Example("a «red» press", " of «x»", len(" press"), "press", 3, 1.0, 0)
    assert marked(text) == "a <red>« press» of <x>"


def test_strengths_are_floors():
    assert [strength(m, 4.0) for m in (4.0, 3.99, 0.39, 0.4, -1.0, 5.0)] == [10, 9, 0, 1, 0, 10]
    assert strength(1.0, 0.0) == 0
