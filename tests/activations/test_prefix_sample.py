"""Which prefixes are drawn."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffkv.activations.states import draw_prefixes


@given(
    st.lists(st.integers(2, 9), min_size=1, max_size=20),
    st.integers(1, 200),
    st.sampled_from(["sentence", "prefix"]),
    st.integers(0, 5),
)
def test_proper_prefixes_none_twice(lengths, count, how, seed):
    sentence, position = draw_prefixes(np.array(lengths), count, how, seed)
    pairs = list(zip(sentence.tolist(), position.tolist(), strict=True))
    assert len(set(pairs)) == len(pairs) == min(count, sum(lengths) - len(lengths))
    assert all(1 <= p < lengths[s] for s, p in pairs)
    assert pairs == sorted(pairs)
    again = draw_prefixes(np.array(lengths), count, how, seed)
    assert (again[0] == sentence).all() and (again[1] == position).all()


@pytest.mark.parametrize("count", [1, 7, 10, 13, 20])
def test_by_sentence_every_sentence_is_drawn_before_one_repeats(count):
    sentence, _ = draw_prefixes(np.full(10, 6), count, "sentence", 0)
    times = np.bincount(sentence, minlength=10)
    assert times.max() - times.min() <= 1


def test_by_sentence_short_sentences_count_as_much_as_long_ones():
    """1,000 sentences of one proper prefix and 1,000 of nine: half of the draws each; by prefix, a tenth and nine tenths."""
    lengths = np.array([2, 10] * 1000)
    for how, expected in (("sentence", 0.5), ("prefix", 0.1)):
        sentence, position = draw_prefixes(lengths, 1000, how, 1)
        # binomial with n = 1000: four standard deviations are 0.064
        assert np.mean(lengths[sentence] == 2) == pytest.approx(expected, abs=0.065)
        if how == "sentence":
            # positions of long sentences are uniform over 1..9, mean 5; standard error of 500 draws is 0.12
            assert position[lengths[sentence] == 10].mean() == pytest.approx(5, abs=0.5)
