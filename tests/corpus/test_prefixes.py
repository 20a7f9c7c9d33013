"""Which prefixes several sentences begin with, and which compete: cases by hand, and brute force."""

from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import word_tokenizer

from ffkv.corpus.competing import CompetingPrefixes
from ffkv.corpus.corpus_file import read_corpus
from ffkv.corpus.shared_prefixes import HISTOGRAM_EVERY, find_shared_prefixes


def find(sentences):
    offsets = np.cumsum([0, *map(len, sentences)])
    return find_shared_prefixes(np.concatenate(sentences).astype(np.int32), offsets)


def listed(shared):
    """{(sentence, position): (multiplicity, [(next token, count)])}."""
    bounds = zip(shared.next_offset[:-1], shared.next_offset[1:], strict=True)
    following = [list(zip(shared.next_token[a:b].tolist(), shared.next_count[a:b].tolist())) for a, b in bounds]
    places = zip(shared.sentence.tolist(), shared.position.tolist(), strict=True)
    return dict(zip(places, zip(shared.multiplicity.tolist(), following), strict=True))


def test_a_case_by_hand():
    """1 2 3, 1 2 | 4 and 1 2 3 4 | 5 share 1 and 1 2; the first one's prefixes are all prefixes of the third's."""
    first_new, shared = find([[1, 2, 3], [9, 1], [1, 2, 3, 4, 5], [1, 2, 4], [1, 7]])
    assert first_new.tolist() == [3, 0, 1, 3, 2]  # 0: the empty prefix, too; 3 and 2: none, as long as the sentence
    assert listed(shared) == {
        (1, 0): (5, [(1, 4), (9, 1)]),
        (2, 1): (4, [(2, 3), (7, 1)]),
        (2, 2): (3, [(3, 2), (4, 1)]),
    }


def test_equally_frequent_next_tokens_are_in_the_order_of_the_corpus():
    _, shared = find([[1, 8], [1, 3], [1, 5], [1, 3], [1, 8]])
    assert listed(shared)[0, 1] == (5, [(8, 2), (3, 2), (5, 1)])


def test_identical_sentences_are_read_once_in_the_first_one():
    first_new, shared = find([[1, 2, 3], [1, 2, 3], [1, 2, 4]])
    assert first_new.tolist() == [0, 3, 3]
    assert listed(shared)[0, 2] == (3, [(3, 2), (4, 1)])


@given(st.lists(st.lists(st.integers(0, 2), min_size=2, max_size=6), min_size=1, max_size=14))
def test_brute_force(sentences):
    first_new, shared = find(sentences)
    rows = [tuple(sentence[:-1]) for sentence in sentences]
    begin = defaultdict(list)  # prefix: the sentences that begin with it, and what follows
    for number, sentence in enumerate(sentences):
        for position in range(len(sentence)):
            begin[tuple(sentence[:position])].append((number, sentence[position]))
    longest = [all(len(rows[other]) <= len(row) for other, _ in begin[row]) for row in rows]
    read = [alone and begin[row][0][0] == number for number, (row, alone) in enumerate(zip(rows, longest, strict=True))]
    reader = {prefix: next(number for number, _ in places if read[number]) for prefix, places in begin.items()}
    for number, sentence in enumerate(sentences):
        own = [position for position in range(len(sentence)) if reader[tuple(sentence[:position])] == number]
        assert own == list(range(first_new[number], len(sentence)))
    assert listed(shared) == {
        (reader[prefix], len(prefix)): (len(places), Counter(token for _, token in places).most_common())
        for prefix, places in begin.items()
        if len(places) > 1
    }
    for place, counted in zip(listed(shared), shared.in_histogram.tolist(), strict=True):
        prefix = tuple(sentences[place[0]][: place[1]])
        assert counted == sum(number % HISTOGRAM_EVERY == 0 for number, _ in begin[prefix])
    shared_or_not, number = shared.find(np.array([reader[prefix] for prefix in begin]), np.array([*map(len, begin)]))
    assert shared_or_not.tolist() == [len(places) > 1 for places in begin.values()]
    assert [shared.multiplicity[n] for n in number[shared_or_not]] == [len(p) for p in begin.values() if len(p) > 1]


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
