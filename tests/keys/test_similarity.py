from itertools import combinations

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from ffkv.corpus.competing import CompetingPrefixes
from ffkv.keys import draws, similarity
from ffkv.keys.chance import LENGTH_CLASSES
from ffkv.keys.draws import Pool, _draw_prefixes, draw_blocks, mean_cosine
from ffkv.keys.key_sample import random_examples
from ffkv.keys.patterns import prepare_detector
from ffkv.keys.similarity import PlacedKey, find_members, place_prefixes, similarity_p_values, unshared_words
from ffkv.keys.topics import Space
from ffkv.settings import Keys

from .conftest import TOPICS, topic_word

FEW = 200  # draws, where all of them are computed by hand


@pytest.fixture(scope="module")
def detector(corpus):
    return prepare_detector(CompetingPrefixes(corpus, True), Keys(background_prefixes=5000), seed=0)


@pytest.fixture(scope="module")
def small():
    """A pool of 30 prefixes of 3 classes, of 1 to 3 of 12 words and more."""
    generator = np.random.default_rng(0)
    words = generator.random((30, 12)) < 0.1
    words[np.arange(30), generator.integers(0, 12, 30)] = True
    space = Space(None, generator.normal(size=(4, 12)), np.full(4, 0.1))
    weights = csr_matrix(words * generator.random((30, 12)))
    return Pool(space, space.vectors(weights), weights, np.array([0, 10, 18, 30, 30, 30, 30, 30]))


@pytest.fixture
def few_draws(monkeypatch):
    monkeypatch.setattr(draws, "NULL_DRAWS", FEW)
    monkeypatch.setattr(draws, "DRAWS_PER_BLOCK", 70)
    monkeypatch.setattr(similarity, "NULL_DRAWS", FEW)


def by_hand(pool, prefixes):
    """Mean cosine of the pairs, each without the words that both have."""
    weights = pool.words.toarray()[prefixes]
    cosines = []
    for one, other in combinations(weights, 2):
        parts = np.stack([one * (other == 0), other * (one == 0)])
        if parts.any(axis=1).all():
            first, second = pool.space.vectors(csr_matrix(parts))
            cosines.append(first @ second)
    return np.mean(cosines) if cosines else 0


def draws_by_hand(pool, *counts):
    drawn = [_draw_prefixes(pool, number, count, 3) for number, count in enumerate(counts)]
    return np.array(
        [by_hand(pool, np.concatenate([part[:, draw] for part in drawn])) for draw in range(draws.NULL_DRAWS)]
    )


@pytest.mark.parametrize("counts", [[2, 0, 0], [1, 1, 1], [3, 0, 4]])
def test_draws_are_as_similar_as_their_pairs_without_their_shared_words(small, few_draws, counts):
    counts = np.array(counts + [0] * (LENGTH_CLASSES - 3))
    most = np.array([5, 2, 4] + [0] * (LENGTH_CLASSES - 3))
    found = np.concatenate([block.similarity(counts) for block in draw_blocks(small, most, seed=3)])
    assert found == pytest.approx(draws_by_hand(small, *counts.tolist()), abs=1e-5)
    assert len(found) == FEW


def test_p_values_count_the_draws_that_are_as_similar(small, few_draws):
    generator = np.random.default_rng(1)
    vectors = generator.normal(size=(5, 4)) + 0.5
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    key = PlacedKey(np.arange(5), vectors, np.array([0, 2, 2, 1, 0]))
    few = PlacedKey(np.arange(2), vectors[:2], np.array([0, 2]))
    reached = (draws_by_hand(small, 2, 1, 2) >= mean_cosine(vectors)).sum()
    assert 0 < reached < FEW
    assert similarity_p_values([few, key], small, 3, seed=3).tolist() == [1, (1 + reached) / (1 + FEW)]
    assert similarity_p_values([], small, 3, seed=3).tolist() == []


def test_the_similarity_of_a_key_is_the_mean_cosine_of_its_pairs():
    vectors = np.array([[1, 0], [0, 1], [1, 0]])
    assert mean_cosine(vectors) == pytest.approx(1 / 3)


def test_members_are_nearer_to_the_others_than_random_prefixes_of_their_length(small):
    alike = np.tile(np.array([[1, 0, 0, 0]], np.float32), (4, 1))
    key = PlacedKey(
        np.arange(6), np.concatenate([alike, -alike[:1], np.eye(4, dtype=np.float32)[1:2]]), np.zeros(6, int)
    )
    assert (small.of_class(0)[:, 0] < 0.99).all()
    assert find_members(key, small).tolist() == [0, 1, 2, 3]


def test_words_that_two_prefixes_share_are_left_out():
    key = [["Army", "the", "battle"], ["army", "troops", "troops"], ["of"]]
    assert unshared_words(key) == [["battle"], ["troops", "troops"], []]


def test_prefixes_without_words_of_their_own_take_no_part(detector):
    key = [["the", topic_word(0, 1)], ["of"], [topic_word(0, 1), topic_word(0, 2)], ["unheard"], [topic_word(0, 3)]]
    (placed,) = place_prefixes([key], detector.pool)
    assert placed.numbers.tolist() == [2, 4]
    assert placed.classes.tolist() == [0, 0]


@pytest.mark.parametrize("prefixes", [5, 12, 25])
def test_small_p_values_of_random_keys_are_no_more_frequent_than_they_say(many_subjects, prefixes):
    pool = prepare_detector(CompetingPrefixes(many_subjects, True), Keys(background_prefixes=5000), seed=0).pool
    keys = [
        key.prefixes[:prefixes]
        for layer in range(5)
        for key in random_examples(CompetingPrefixes(many_subjects, True), 100, 25, 4, layer)
    ]
    p = similarity_p_values(place_prefixes(keys, pool), pool, 3, 0)
    for level in (0.01, 0.05, 0.1, 0.5):
        assert np.mean(p <= level) <= level + 3 * np.sqrt(level * (1 - level) / len(p))


def test_a_key_is_compared_with_the_same_draws_whatever_keys_stand_beside_it(corpus, detector):
    keys = place_prefixes(
        [key.prefixes for key in random_examples(CompetingPrefixes(corpus, True), 9, 25, 4, 0)], detector.pool
    )
    together = similarity_p_values(keys, detector.pool, 3, 0).tolist()
    assert together == [similarity_p_values([key], detector.pool, 3, 0)[0] for key in keys]


def test_the_pool_has_every_class_in_a_range_of_its_own(detector):
    pool, known = detector.pool, np.diff(detector.pool.words.indptr)
    assert pool.starts[-1] == len(pool.vectors) == len(known)
    assert [set(known[pool.starts[n] : pool.starts[n + 1]]) for n in range(3)] == [{1}, {2}, {3, 4}]
    assert len(pool.vectors) > 1000 * TOPICS / 5
