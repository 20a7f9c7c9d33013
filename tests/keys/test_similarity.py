from dataclasses import replace

import numpy as np
import pytest

from ffkv.base.settings import Keys
from ffkv.branches.keys import draws, similarity
from ffkv.branches.keys.chance import LENGTH_CLASSES
from ffkv.branches.keys.draws import Pool, _draw_prefixes, draw_blocks, strongest
from ffkv.branches.keys.key_sample import random_examples
from ffkv.branches.keys.patterns import detect_topics, prepare_detector
from ffkv.branches.keys.similarity import PlacedKey, fill_pool, find_members, place_prefixes, topic_p_values
from ffkv.branches.keys.topics import Topics
from ffkv.corpus.competing import CompetingPrefixes

from .conftest import TOPICS, subject_word, topic_word

FEW = 200  # draws, where all of them are computed by hand


@pytest.fixture(scope="module")
def detector(corpus):
    return prepare_detector(CompetingPrefixes(corpus, True), Keys(background_prefixes=5000), seed=0)


@pytest.fixture(scope="module")
def small():
    """A pool of 30 prefixes of 3 classes, with scores for 4 topics."""
    scores = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32)
    return Pool(
        Topics({}, np.zeros((0, 4)), np.full(4, 0.25), list("abcd")), scores, np.array([0, 10, 18, 30, 30, 30, 30, 30])
    )


@pytest.fixture
def few_draws(monkeypatch):
    monkeypatch.setattr(draws, "NULL_DRAWS", FEW)
    monkeypatch.setattr(draws, "DRAWS_PER_BLOCK", 70)
    monkeypatch.setattr(similarity, "NULL_DRAWS", FEW)


def draws_by_hand(pool, *counts):
    """The highest sum of scores over the topics, of each draw."""
    drawn = [_draw_prefixes(pool, number, count, 3) for number, count in enumerate(counts)]
    prefixes = [np.concatenate([part[:, draw] for part in drawn]) for draw in range(draws.NULL_DRAWS)]
    return np.array([max(sum(pool.scores[n, topic] for n in each) for topic in range(4)) for each in prefixes])


@pytest.mark.parametrize("counts", [[1, 0, 0], [2, 0, 0], [1, 1, 1], [3, 0, 4]])
def test_draws_speak_for_the_topic_that_their_prefixes_together_speak_most_for(small, few_draws, counts):
    counts = np.array(counts + [0] * (LENGTH_CLASSES - 3))
    most = np.array([5, 2, 4] + [0] * (LENGTH_CLASSES - 3))
    found = np.concatenate([strongest(block, counts) for block in draw_blocks(small, most, seed=3)])
    assert found == pytest.approx(draws_by_hand(small, *counts.tolist()), abs=1e-5)
    assert len(found) == FEW


def test_p_values_count_the_draws_that_speak_as_much(small, few_draws):
    scores = np.random.default_rng(1).normal(size=(5, 4)).astype(np.float32) + 0.3
    key = PlacedKey(np.arange(5), scores, np.array([0, 2, 2, 1, 0]))
    few = PlacedKey(np.arange(2), scores[:2], np.array([0, 2]))
    reached = (draws_by_hand(small, 2, 1, 2) >= scores.sum(axis=0).max()).sum()
    assert 0 < reached < FEW
    assert topic_p_values([few, key], small, 3, seed=3).tolist() == [1, (1 + reached) / (1 + FEW)]
    assert topic_p_values([], small, 3, seed=3).tolist() == []


def test_a_draw_that_speaks_just_as_much_counts(small, few_draws):
    own = np.concatenate([_draw_prefixes(small, number, count, 3)[:, 7] for number, count in enumerate((2, 1, 2))])
    drawn = draws_by_hand(small, 2, 1, 2)
    reached = (drawn >= drawn[7] - 1e-4).sum()
    (p,) = topic_p_values([PlacedKey(np.arange(5), small.scores[own], np.array([0, 0, 1, 2, 2]))], small, 3, seed=3)
    assert p == (1 + reached) / (1 + FEW)


def test_each_class_and_seed_has_draws_of_its_own(small):
    pool = replace(small, starts=np.array([0, 10, 20, 30]))
    drawn = [_draw_prefixes(pool, number, 3, seed) - 10 * number for number, seed in ((0, 3), (1, 3), (0, 4))]
    assert all(((own >= 0) & (own < 10)).all() for own in drawn)
    assert (drawn[0] != drawn[1]).any() and (drawn[0] != drawn[2]).any()


def test_members_speak_more_for_the_topic_than_random_prefixes_of_their_length(small):
    scores = np.zeros((6, 4), np.float32)
    scores[:4, 2] = small.of_class(0)[:, 2].max() + 1
    scores[4:, 2] = [np.quantile(small.of_class(0)[:, 2], level) for level in (0.9, 0.95)]
    key = PlacedKey(np.arange(6), scores, np.zeros(6, int))
    assert key.topic == 2
    assert find_members(key, small).tolist() == [0, 1, 2, 3]


def test_keys_of_which_some_prefixes_are_about_one_subject_are_found(many_subjects):
    """10 of 25 prefixes, without words that they share. The mean similarity of all pairs found few of these."""
    competing = CompetingPrefixes(many_subjects, True)
    pool = prepare_detector(competing, Keys(background_prefixes=5000), seed=0).pool
    random = [key.prefixes for key in random_examples(competing, 40, 25, 9, 0)]
    planted = []
    for number, prefixes in enumerate(random):
        own = [
            [
                f"x{'abcdefghij'[number // 10]}{'abcdefghij'[number % 10]}{'abcd'[n // 10]}{'abcdefghij'[n % 10]}"
                for n in (3 * k, 3 * k + 1, 3 * k + 2)
            ]
            for k in range(10)
        ]
        planted.append(own + prefixes[10:])
    p = topic_p_values(place_prefixes(planted, [()] * len(planted), pool), pool, 3, 0)
    assert np.mean(p <= 0.01) > 0.9


def test_a_key_of_two_subjects_has_two_topics_and_a_key_of_one_has_one(many_subjects):
    competing = CompetingPrefixes(many_subjects, True)
    detector = prepare_detector(competing, Keys(background_prefixes=5000), seed=0)
    random = [key.prefixes for key in random_examples(competing, 20, 25, 9, 0)]

    def about(subject, places):
        return [
            [subject_word(subject, 3 * n), subject_word(subject, 3 * n + 1), subject_word(subject, 3 * n + 2)]
            for n in places
        ]

    two = [about(n, range(10)) + about(n + 20, range(10)) + key[20:] for n, key in enumerate(random[:10])]
    one = [about(n, range(12)) + key[12:] for n, key in enumerate(random[10:])]
    found = detect_topics([*two, *one], [()] * 20, detector)
    members = [[{*pattern.members} for pattern in patterns] for patterns in found]
    both = [sorted(key[:2], key=lambda own: -len(own & {*range(10)})) for key in members[:10] if len(key) >= 2]
    assert len(both) >= 9  # of 10
    for first, second in both:
        assert not first & second
        assert len(first & {*range(10)}) >= 7 and len(second & {*range(10, 20)}) >= 7
    assert sum(len(key) == 1 for key in members[10:]) >= 8  # of 10: at a rate of 5 % another one is found by chance


def test_the_pool_has_the_prefixes_of_each_class_in_their_order_in_the_language_of_the_topics():
    """In German “the” is a content word, and “die” is not."""
    topics = Topics({"the": 0, "die": 1, "haus": 2}, np.diag([2.0, 1, 1]), np.full(3, 1 / 3), [*"abc"], "de")
    one, two = [["haus"], ["the"], ["die", "Haus"]] * 20, [["the", "die", "haus"]] * 2
    pool = fill_pool(topics, [["die"], *two, *one])
    assert pool.starts.tolist() == [0, 60, 62, 62, 62, 62, 62, 62]
    assert (pool.of_class(0) == topics.score([["haus"], ["the"], ["haus"]] * 20)[0]).all()
    assert (pool.of_class(1) == topics.score([["haus", "the"]] * 2)[0]).all()
    one_of_each, none = (replace(pool, starts=step * np.arange(LENGTH_CLASSES + 1)) for step in (1, 0))
    key = [["die"], ["the", "die"], ["Haus", "the"]]
    for of_classes in (pool, one_of_each):
        (placed,) = place_prefixes([key], [()], of_classes)
        assert (placed.numbers.tolist(), placed.classes.tolist()) == ([1, 2], [0, 1])
    assert place_prefixes([key], [()], none)[0].numbers.tolist() == []


def test_words_of_shallow_patterns_take_no_part(detector):
    shallow = topic_word(0, 1)
    key = [["the", shallow.title()], ["of"], [shallow, topic_word(0, 2)], ["unheard"], [topic_word(0, 3)]]
    (placed,) = place_prefixes([key], [{shallow}], detector.pool)
    assert placed.numbers.tolist() == [2, 4]
    assert placed.classes.tolist() == [0, 0]
    given, _ = detector.pool.topics.score([[topic_word(0, 2)]], [[shallow]])  # the word is there
    assert (placed.scores[0] == given[0]).all()
    assert (placed.scores[1] == detector.pool.topics.score([[topic_word(0, 3)]])[0][0]).all()  # it is not there
    (whole,) = place_prefixes([key], [()], detector.pool)
    assert whole.numbers.tolist() == [0, 2, 4] and whole.classes.tolist() == [0, 1, 0]


@pytest.mark.parametrize("prefixes", [5, 12, 25])
def test_small_p_values_of_random_keys_are_no_more_frequent_than_they_say(many_subjects, prefixes):
    pool = prepare_detector(CompetingPrefixes(many_subjects, True), Keys(background_prefixes=5000), seed=0).pool
    keys = [
        key.prefixes[:prefixes]
        for layer in range(5)
        for key in random_examples(CompetingPrefixes(many_subjects, True), 100, 25, 4, layer)
    ]
    p = topic_p_values(place_prefixes(keys, [()] * len(keys), pool), pool, 3, 0)
    for level in (0.01, 0.05, 0.1, 0.5):
        assert np.mean(p <= level) <= level + 3 * np.sqrt(level * (1 - level) / len(p))


def test_a_key_is_compared_with_the_same_draws_whatever_keys_stand_beside_it(corpus, detector):
    random = [key.prefixes for key in random_examples(CompetingPrefixes(corpus, True), 9, 25, 4, 0)]
    keys = place_prefixes(random, [()] * 9, detector.pool)
    together = topic_p_values(keys, detector.pool, 3, 0).tolist()
    assert together == [topic_p_values([key], detector.pool, 3, 0)[0] for key in keys]


def test_the_pool_has_every_class_in_a_range_of_its_own(detector):
    pool = detector.pool
    assert pool.starts[0] == 0 and pool.starts[-1] == len(pool.scores) > 1000 * TOPICS / 5
    assert (np.diff(pool.starts)[:3] > 0).all()
