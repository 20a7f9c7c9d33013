"""Features of prefixes, by hand; and how frequent they are by chance."""

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import false_discovery_control

from ffkv.base.multiple_tests import q_values
from ffkv.branches.keys.features import (
    KINDS,
    Evidence,
    count_background,
    count_places,
    length_class,
    shallow_evidence,
    word_class,
)
from ffkv.branches.keys.patterns import p_value


def test_a_prefix_has_its_ends_its_sequences_and_its_last_words_class():
    evidence = shallow_evidence(["She", "decides", "not", "to", "Press"])
    assert evidence.words == 5
    assert evidence.features == [
        ("first word", "she"),
        ("last word", "press"),
        ("word class", "a capitalised word"),
        ("inner bigram", "she decides"),
        ("inner bigram", "decides not"),
        ("inner bigram", "not to"),
        ("inner bigram", "to press"),
        ("last bigram", "to press"),
        ("inner trigram", "she decides not"),
        ("inner trigram", "decides not to"),
        ("inner trigram", "not to press"),
        ("last trigram", "not to press"),
    ]


def test_case_does_not_tell_features_apart():
    upper, lower = (shallow_evidence(text.split()) for text in ("She decides not to press", "she decides not to press"))
    assert upper == lower


def test_short_prefixes_have_what_fits():
    assert shallow_evidence([]) == ([], 0)
    one_word = [("first word", "1945"), ("last word", "1945"), ("word class", "a year")]
    assert shallow_evidence(["1945"]).features == one_word
    assert {kind for kind, _ in shallow_evidence(["a", "the"]).features} == {
        "first word", "last word", "word class", "inner bigram", "last bigram",
    }  # fmt: skip


def test_a_prefix_has_as_many_features_of_a_kind_as_it_has_places(subtests):
    for kind in [kind for kind, described in KINDS.items() if described.family == "shallow"]:
        for words in range(6):
            with subtests.test(kind=kind, words=words):
                evidence = shallow_evidence(["the"] * words)
                assert sum(found == kind for found, _ in evidence.features) == count_places(kind, words)


CLASSES = {
    "a year": "1945 2010",
    "a number": "9999 3.14 12,000 7",
    "punctuation": ", ...",
    "an identifier": "os.path read_file __init__ getValue MAX_SIZE",
    "capital letters": "U.S NATO",
    "a capitalised word": "Paris Jean-Luc Émile",
    "a word in -ing": "running",
    "a word in -ed": "decided",
    "a word in -ly": "quickly",
    "a preposition": "of",
    "a determiner": "The",
    "": "<unk> K house",
}
OTHER_LANGUAGES = [
    ("de", "Und", "a function word"),
    ("de", "1984", "a year"),
    ("de", "Zeitung", "a capitalised word"),
    ("de", "sing", ""),  # no form of a German verb
    ("de", "them", ""),
    ("xx", "und", ""),
    ("xx", "...", "punctuation"),
]


def test_word_classes(subtests):
    english = [("en", word, expected) for expected, words in CLASSES.items() for word in words.split()]
    for language, word, expected in [*english, *OTHER_LANGUAGES]:
        with subtests.test(language=language, word=word, expected=expected):
            assert word_class(word, language) == expected
    assert word_class("running") == "a word in -ing"  # without a language


@given(st.integers(1, 25), st.integers(0, 25), st.floats(0.001, 0.999))
def test_p_values_are_binomial_tails(prefixes, occurrences, chance):
    naive = sum(
        math.comb(prefixes, k) * chance**k * (1 - chance) ** (prefixes - k) for k in range(occurrences, prefixes + 1)
    )
    assert p_value(occurrences, prefixes, chance) == pytest.approx(naive, rel=1e-9, abs=1e-300)


@given(st.lists(st.floats(0.001, 0.5), min_size=1, max_size=8))
def test_the_mean_probability_gives_no_smaller_p_value_than_the_probabilities_themselves(chances):
    exact = np.zeros(len(chances) + 1)
    for outcome in product([0, 1], repeat=len(chances)):
        exact[sum(outcome)] += np.prod(np.where(outcome, chances, 1 - np.array(chances)))
    for occurrences in range(len(chances) + 1):
        if occurrences >= sum(chances) + 1:
            assert p_value(occurrences, len(chances), np.mean(chances)) >= exact[occurrences:].sum() - 1e-12


@given(st.lists(st.floats(0, 1), max_size=30), st.integers(0, 50))
def test_q_values_are_those_of_scipy_when_what_was_not_seen_counts_as_one(p_values, unseen):
    adjusted = q_values(np.array(p_values), len(p_values) + unseen)
    if p_values:
        assert adjusted == pytest.approx(false_discovery_control([*p_values, *[1.0] * unseen])[: len(p_values)])


def test_lengths_are_classed_by_doubling():
    words = np.array([0, 1, 2, 3, 4, 7, 8, 15, 16, 31, 32, 500])
    assert length_class(words).tolist() == [0, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6]


def test_chance_is_the_smoothed_frequency():
    background = count_background(
        shallow_evidence(["some", "words", "end", "here" if n < 3 else "there"]) for n in range(9)
    )
    four_words = np.array([4])
    assert background.chance(("last word", "here"), four_words) == pytest.approx(4 / 10)
    assert background.chance(("last word", "never"), four_words) == pytest.approx(1 / 10)
    assert background.places["last word"] == 9
    assert background.places["inner bigram"] == 27
    assert len([feature for feature in background.features if feature[0] == "last word"]) == 2


def test_chance_takes_length_into_account():
    background = count_background(shallow_evidence(f"a b c d e f g w{n}".split()) for n in range(100))
    short, long = (background.chance(("inner bigram", "x y"), np.array([words])) for words in (8, 64))
    rate = 1 / 701
    assert short == pytest.approx(1 - (1 - rate) ** 7)
    assert long == pytest.approx(1 - (1 - rate) ** 63)
    assert background.chance(("inner bigram", "x y"), np.array([1])) == 0
    assert background.chance(("inner bigram", "x y"), np.array([8, 64])) == pytest.approx((short + long) / 2)


def test_chance_follows_prefixes_of_similar_length_where_they_have_more():
    one_word = [Evidence([("last word", "The")], 1)] * 10
    longer = [Evidence([("last word", "dog")], 9)] * 90
    background = count_background([*one_word, *longer])
    assert background.chance(("last word", "The"), np.array([1])) == 1
    assert background.chance(("last word", "The"), np.array([9])) == pytest.approx(11 / 101)
    many_words = count_background([*longer, Evidence([("last word", "The")], 300)])
    assert many_words.chance(("last word", "The"), np.array([100])) == 1
    alone = count_background([one_word[0], *longer])
    assert alone.chance(("last word", "The"), np.array([1])) == 1


def test_a_feature_that_each_prefix_has_twice_has_the_probability_1():
    background = count_background([shallow_evidence(["a", "b", "a", "b"])])
    assert background.chance(("inner bigram", "a b"), np.array([4])) == 1
