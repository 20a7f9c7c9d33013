"""Composition: small cases by hand, and against naive loops."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from support import WORDS, word_tokenizer

from ffkv.activations.prefix_file import PrefixLayer
from ffkv.composition import composition
from ffkv.composition.layer import read_out
from ffkv.corpus.corpus_file import read_corpus
from ffkv.model.head.head_file import load_head
from ffkv.model.values_file import read_values


def test_a_layer_of_four_memories_by_hand():
    m = np.array([[2, 0, -1, 1], [0, 0, 0, 0], [1, 1, 1, 1]], np.float32)
    top_v, norm = np.array([5, 6, 7, 5]), np.array([1, 1, 4, 2], np.float32)
    found = composition.compose(m, top_v, np.array([5, 7, 6]), norm, mass=0.75)
    assert found["active"].tolist() == [2, 0, 4]
    assert found["share"].tolist() == [0.5, 0, 1]
    assert found["agreeing"].tolist() == [2, 0, 1]  # memory 2 predicts 7 but is not active on the second prefix
    assert found["agreeing_all"].tolist() == [2, 1, 1]
    # contributions 2 0 4 2 of 8: 4 + 2 reach 0.75; nothing on the second; 1 1 4 2 of 8: 4 + 2
    assert found["effective"].tolist() == [2, 0, 2]
    assert found["participation"].tolist() == pytest.approx([64 / 24, 0, 64 / 22])


@given(
    arrays.arrays(np.float32, st.tuples(st.integers(1, 6), st.integers(1, 7)), elements=st.floats(-4, 4, width=16)),
    st.floats(0.05, 1),
    st.integers(0, 9),
)
@settings(deadline=None)
def test_against_naive_loops(m, mass, seed):
    generator = np.random.default_rng(seed)
    top_v, top_y, norm = (
        generator.integers(0, 3, m.shape[1]),
        generator.integers(0, 3, m.shape[0]),
        generator.uniform(0.5, 2, m.shape[1]),
    )
    found = composition.compose(m, top_v, top_y, norm, mass)
    for prefix, row in enumerate(found.itertuples()):
        assert row.active == sum(1 for value in m[prefix] if value > 0)
        assert row.agreeing == sum(
            1 for value, top in zip(m[prefix], top_v, strict=True) if value > 0 and top == top_y[prefix]
        )
        contributions = sorted(
            (abs(float(value)) * size for value, size in zip(m[prefix], norm, strict=True)), reverse=True
        )
        needed, carried = 0, 0.0
        while contributions and sum(contributions) > 0 and carried < mass * sum(contributions) * (1 - 1e-9):
            carried += contributions[needed]
            needed += 1
        assert row.effective == needed


def test_equal_contributions_participate_alike():
    found = composition.compose(np.ones((1, 10), np.float32), np.zeros(10, int), np.zeros(1, int), np.ones(10), 0.9)
    assert found["participation"].tolist() == pytest.approx([10])
    assert found["effective"].tolist() == [9]  # not 10: nine tenths are carried by nine


def test_values_and_outputs_of_the_detector_are_read_out(detector):
    """Values of layer 0 write b, c, c, nothing (id 0 of equals); y writes c, then nothing. Lengths 1, 0.1, 1, 0."""
    y, m = np.zeros((2, 17), np.float32), np.array([[0, 0, 2, 1], [0, 0, -1, 5]], np.float32)
    y[0, WORDS.index("c")] = 2
    memories = read_values(detector.parent / "memories.h5").of(0)
    assert memories.layer.tolist() == [0] * 4
    found = read_out(load_head(detector, "cpu"), PrefixLayer(y, y, y, y, m), memories, 0, mass=0.9)
    assert found["agreeing"].tolist() == [1, 1]
    assert found["agreeing_all"].tolist() == [2, 1]
    assert found["effective"].tolist() == [1, 1]


def test_words_and_stop_words_are_about_words(write_corpus):
    tokenizer = word_tokenizer(["<bos>", "The", "cat", "sat", "on", "mat", "<unk>"])
    corpus = read_corpus(write_corpus(["The cat sat on The mat", "cat on"], tokenizer, 7))
    facts = composition.describe_prefixes(corpus, np.array([0, 0, 1]), np.array([3, 5, 1]))
    assert facts["words"].tolist() == [3, 5, 1]
    assert facts["target_is_stop_word"].tolist() == [True, False, True]  # on, mat, on


TABLE = pd.DataFrame(
    {
        "layer": [0, 0, 0, 0, 1, 1],
        "share": [0.1, 0.2, 0.3, 0.4, 0.5, 0.5],
        "agreeing": [0, 0, 1, 2, 0, 0],
        "agreeing_all": [0, 1, 1, 2, 0, 3],
        "effective": [1, 2, 3, 4, 5, 5],
        "participation": [1.0, 2, 3, 4, 5, 5],
        "target_is_stop_word": [True, True, True, False, False, False],
        "words": [1, 5, 4, 9, 2, 2],
    }
)


def test_the_share_of_prefixes_without_an_agreeing_memory():
    rates = composition.without_agreement(TABLE).set_index(["reading", "layer"])
    assert rates.loc[("active", 0), ["prefixes", "without", "share"]].tolist() == [4, 2, 0.5]
    assert rates.loc[("all", 0), ["without", "share"]].tolist() == [1, 0.25]
    assert rates.loc[("active", 1), "share"] == 1
    assert (rates["low"] <= rates["share"]).all() and (rates["share"] <= rates["high"]).all()


def test_cases_of_agreement_beside_all_prefixes():
    cases = composition.cases(TABLE, short_prefix=5).set_index("layer")
    assert cases.loc[0, ["cases", "stop_word", "short", "base_stop_word_share", "base_short_share"]].tolist() == [
        2,
        1,
        1,
        0.75,
        0.5,
    ]
    assert cases.loc[-1, ["cases", "stop_word_share", "short_share"]].tolist() == [2, 0.5, 0.5]
    assert cases.loc[1, "cases"] == 0
    assert np.isnan(cases.loc[1, "stop_word_share"])


def test_boxes_and_quartiles_by_layer():
    assert composition.active(TABLE)["median"].tolist() == pytest.approx([0.25, 0.5])
    numbers = composition.effective(TABLE, {0: 10, 1: 20})
    assert numbers["effective_median"].tolist() == [2.5, 5]
    assert numbers["memories"].tolist() == [10, 20]
