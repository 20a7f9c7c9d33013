"""Which keys and which prefixes are drawn."""

import numpy as np
import pytest

from ffkv.branches.keys.key_sample import (
    background_prefixes,
    prefix_words,
    random_examples,
    sample_keys,
    trigger_examples,
    trigger_prefixes,
)
from ffkv.corpus.competing import CompetingPrefixes


def test_keys_are_sampled_among_those_that_have_a_trigger(corpus, make_triggers):
    layers = [[[(0, 1)] if memory % 3 else [] for memory in range(30)] for _ in range(2)]
    triggers = make_triggers(corpus, layers)
    first, second = (sample_keys(triggers, layer, 10, seed=1) for layer in (0, 1))
    assert len(set(first)) == len(set(second)) == 10
    assert all(memory % 3 for memory in [*first, *second])
    assert first.tolist() != second.tolist()
    assert first.tolist() == sample_keys(triggers, 0, 10, seed=1).tolist() == sorted(first)
    assert sample_keys(triggers, 0, 100, seed=1).tolist() == [memory for memory in range(30) if memory % 3]
    assert len(sample_keys(make_triggers(corpus, [[[], []]]), 0, 10, seed=0)) == 0


def test_only_the_highest_prefix_of_a_sentence_is_an_example(corpus, make_triggers):
    triggers = make_triggers(corpus, [[[], [(7, 3), (7, 2), (4, 2), (7, 1), (9, 2), (2, 1)]]])
    found = trigger_examples(triggers, corpus, 0, 1, 3)
    assert (found.sample, found.memory, found.ranks) == ("trigger", 1, [0, 2, 4])
    assert found.prefixes == prefix_words(corpus, [7, 4, 9], [3, 2, 2])
    assert found.prefixes[0] == corpus.texts[7].split()[:3]


def test_random_examples_are_of_different_sentences_and_the_first_do_not_depend_on_the_others(corpus):
    def examples(keys, layer):
        return random_examples(CompetingPrefixes(corpus, True), keys, 25, seed=0, layer=layer)

    found = examples(20, 3)
    assert [key.memory for key in found] == list(range(20))
    assert all(key.ranks == list(range(25)) and len(key.prefixes) == 25 for key in found)
    assert found == examples(20, 3) and found[:3] == examples(3, 3) and found != examples(20, 4)


def test_random_examples_of_a_corpus_of_few_sentences(write_corpus):
    corpus, _ = write_corpus([["one two", "three four five"]])
    (key,) = random_examples(CompetingPrefixes(corpus, True), 1, 25, seed=0, layer=0)
    assert sorted(words[0] for words in key.prefixes) == ["one", "three"]


def test_the_background_is_every_prefix_of_a_small_corpus(write_corpus):
    corpus, _ = write_corpus([["a b c", "d e"]])
    assert background_prefixes(CompetingPrefixes(corpus, True), 1000, seed=0) == [["a"], ["a", "b"], ["d"]]


@pytest.mark.parametrize("count", [1, 2, 9])
def test_triggers_of_several_keys_one_behind_the_other(corpus, make_triggers, count):
    layers = [[[(0, 1)]], [[(5, 2), (6, 3)], [], [(8, 1)]]]
    triggers = make_triggers(corpus, layers)
    memories, coefficients, prefixes = trigger_prefixes(triggers, corpus, 1, np.array([0, 2]), count)
    expected = [(0, 5, 2), (0, 6, 3), (2, 8, 1)] if count > 1 else [(0, 5, 2), (2, 8, 1)]
    assert memories.tolist() == [memory for memory, _, _ in expected]
    assert coefficients.tolist() == ([100, 99, 100] if count > 1 else [100, 100])  # as the fixture makes them, by rank
    assert [ids.tolist() for ids in prefixes] == [corpus.ids(s)[:p].tolist() for _, s, p in expected]
