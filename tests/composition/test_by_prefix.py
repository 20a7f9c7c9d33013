"""What memories do on each prefix: small cases by hand, and against naive loops."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from support import word_tokenizer

from ffkv.branches.composition.by_prefix import count_effective, describe_memories, describe_prefixes
from ffkv.corpus.corpus_file import read_corpus


def test_a_layer_of_four_memories_by_hand():
    m = np.array([[2, 0, -1, 1], [0, 0, 0, 0], [1, 1, 1, 1]], np.float32)
    top_v, norm = np.array([5, 6, 7, 5]), np.array([1, 1, 4, 2], np.float32)
    table = describe_memories(m, top_v, np.array([5, 7, 6]), norm, mass=0.75)
    assert table["active"].tolist() == [2, 0, 4]
    assert table["share"].tolist() == [0.5, 0, 1]
    assert table["agreeing"].tolist() == [2, 0, 1]  # memory 2 predicts 7 but is not active on the second prefix
    assert table["agreeing_all"].tolist() == [2, 1, 1]
    assert table.dtypes.tolist() == [np.int32, float, np.int32, np.int32, np.int32, float]
    # contributions 2 0 4 2 of 8: 4 + 2 reach 0.75; nothing on the second; 1 1 4 2 of 8: 4 + 2
    assert table["effective"].tolist() == [2, 0, 2]
    assert table["participation"].tolist() == pytest.approx([64 / 24, 0, 64 / 22])


@given(
    arrays.arrays(np.float32, st.tuples(st.integers(1, 6), st.integers(1, 7)), elements=st.floats(-4, 4, width=16)),
    st.floats(0.05, 1),
    st.integers(0, 9),
)
def test_against_naive_loops(m, mass, seed):
    generator = np.random.default_rng(seed)
    top_v, top_y, norm = (
        generator.integers(0, 3, m.shape[1]),
        generator.integers(0, 3, m.shape[0]),
        generator.uniform(0.5, 2, m.shape[1]),
    )
    table = describe_memories(m, top_v, top_y, norm, mass)
    for prefix, row in enumerate(table.itertuples()):
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
    table = describe_memories(np.ones((1, 10), np.float32), np.zeros(10, int), np.zeros(1, int), np.ones(10), 0.9)
    assert table["participation"].tolist() == pytest.approx([10])
    assert table["effective"].tolist() == [9]  # not 10: nine tenths are carried by nine


def test_words_and_stop_words_are_about_words(write_corpus):
    tokenizer = word_tokenizer(["<bos>", "The", "cat", "sat", "on", "mat", "<unk>"])
    corpus = read_corpus(write_corpus(["The cat sat on The mat", "cat on"], tokenizer))
    facts = describe_prefixes(corpus, np.array([0, 0, 1]), np.array([3, 5, 1]))
    assert facts["words"].tolist() == [3, 5, 1] and facts["prefix"].tolist() == [0, 1, 2]
    assert facts.dtypes.tolist() == [np.int32, np.int32, bool]
    assert facts["target_is_stop_word"].tolist() == [True, False, True]  # on, mat, on


def test_a_word_that_a_token_begins_in_the_middle_of_a_character_is_the_next_one():
    """The second token ends after the first of the two bytes of “ü”, so that two characters are whole."""
    corpus = SimpleNamespace(
        language="de",
        pretokenized=False,
        texts=["x über"],
        prefix_text=lambda sentence, position: "x",
        character=lambda sentence, position: position,
        unfinished=lambda sentence, position: position == 2,
    )
    assert describe_prefixes(corpus, np.array([0]), np.array([1]))["target_is_stop_word"].tolist() == [True]


def test_without_a_list_nothing_is_said_about_stop_words(write_corpus):
    tokenizer = word_tokenizer(["<bos>", "The", "cat", "sat", "<unk>"])
    corpus = replace(read_corpus(write_corpus(["The cat sat"], tokenizer)), language="xx")
    facts = describe_prefixes(corpus, np.array([0, 0]), np.array([1, 2]))
    assert facts["target_is_stop_word"].isna().all() and facts["target_is_stop_word"].dtype == float


def test_prefixes_beyond_one_sort_are_counted_alike():
    m, norm = np.random.default_rng(0).standard_normal((1100, 5)), np.arange(1, 6)
    effective, participation = count_effective(m, norm, 0.9)
    rows = [count_effective(m[row : row + 1], norm, 0.9) for row in range(len(m))]
    assert effective.tolist() == [int(count[0]) for count, _ in rows]
    assert participation.tolist() == [float(number[0]) for _, number in rows]


def test_no_prefixes_give_no_rows():
    assert describe_memories(np.zeros((0, 4)), np.zeros(4, int), np.zeros(0, int), np.ones(4), 0.9).empty
