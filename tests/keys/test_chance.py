import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import false_discovery_control

from ffkv.base.multiple_tests import q_values
from ffkv.branches.keys.chance import count_background, length_class, p_value
from ffkv.branches.keys.features import Evidence, shallow_evidence


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
    assert length_class(np.array([0, 1, 2, 3, 4, 7, 8, 15, 16, 31, 32, 500])).tolist() == [
        0,
        1,
        2,
        2,
        3,
        3,
        4,
        4,
        5,
        5,
        6,
        6,
    ]


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
