"""Which prefixes compete, by hand: each in every sentence, or each once."""

import numpy as np
import pytest
from support import word_tokenizer

from ffkv.corpus.competing import CompetingPrefixes
from ffkv.corpus.corpus_file import read_corpus

LETTERS = word_tokenizer(["<bos>", *"abcdefgh"])
A, B, C, D, E = range(1, 6)


@pytest.fixture
def corpus(write_corpus):
    """The prefix a stands in three sentences, a b in two; b c is read in the longer sentence alone."""
    return read_corpus(write_corpus(["a b c", "b c d", "a d", "a b d e", "b c d e"], LETTERS))


def places(competing):
    return list(zip(*(array.tolist() for array in competing.locate(np.arange(len(competing))))))


def test_each_prefix_of_each_sentence(corpus):
    each = CompetingPrefixes(corpus, once=False)
    assert places(each) == [(s, p) for s, length in enumerate([3, 3, 2, 4, 4]) for p in range(1, length)]
    w, count, multiplicity = each.next_token(np.array([0, 2, 3]), np.array([1, 1, 1]))
    assert (w.tolist(), count.tolist(), multiplicity.tolist()) == ([B, D, B], [1, 1, 1], [1, 1, 1])
    assert each.count_next_tokens(9).tolist() == [0, 0, 2, 3, 4, 2, 0, 0, 0]


def test_each_prefix_once(corpus):
    """a b c ends where a b d e goes on, and b c d where b c d e does: these two are read, and they alone."""
    once = CompetingPrefixes(corpus, once=True)
    assert places(once) == [(3, 1), (3, 2), (3, 3), (4, 1), (4, 2), (4, 3)]
    w, count, multiplicity = once.next_token(np.array([3, 3, 3, 4, 4]), np.array([1, 2, 3, 1, 2]))
    assert w.tolist() == [B, C, E, C, D]  # after a b come c and d, once each: the first in the corpus
    assert count.tolist() == [2, 1, 1, 2, 2]
    assert multiplicity.tolist() == [3, 2, 1, 2, 2]
    assert once.count_next_tokens(9).tolist() == [0, 0, 1, 2, 1, 2, 0, 0, 0]


def test_the_empty_prefix_is_in_every_sentence(corpus):
    assert len(CompetingPrefixes(corpus, once=False, empty=True)) == len(CompetingPrefixes(corpus, once=False)) + 5
    once = CompetingPrefixes(corpus, once=True, empty=True)
    assert places(once)[0] == (3, 0)
    assert len(once) == 7
    w, count, multiplicity = once.next_token(np.array([3]), np.array([0]))
    assert (w.tolist(), count.tolist(), multiplicity.tolist()) == ([A], [3], [5])
