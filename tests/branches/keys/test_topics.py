"""The topics of a corpus; and what keys say of them beside random keys, by hand and where the truth is known."""

from dataclasses import replace

import numpy as np
import pytest

from ffkv.branches.keys import topics as module
from ffkv.branches.keys.features import LENGTH_CLASSES
from ffkv.branches.keys.patterns import detect_topics
from ffkv.branches.keys.topics import (
    SHARE,
    WEIGHT,
    PlacedKey,
    Pool,
    Topics,
    add_neighbours,
    content_words,
    fill_pool,
    find_members,
    fit_topics,
    passages,
    place_prefixes,
    topic_p_values,
)

from .conftest import FUNCTION_WORDS, TOPICS, random_keys, subject_word, topic_word

FEW = 200  # draws, where all of them are computed by hand


@pytest.fixture(scope="module")
def topics(corpus):
    return fit_topics(corpus, seed=0)


def test_words_of_one_topic_speak_for_the_same_topics(topics):
    numbers = range(50)
    scores, known = topics.score(
        [[topic_word(topic, n), topic_word(topic, n + 1)] for topic in range(TOPICS) for n in numbers]
    )
    assert (known == 2).all()
    best = [set(part.argmax(axis=1).tolist()) for part in scores.reshape(TOPICS, len(numbers), -1)]
    assert all(not one & other for n, one in enumerate(best) for other in best[:n])


def test_a_topic_is_called_by_its_words(topics):
    scores, _ = topics.score([[topic_word(2, number) for number in range(9)]])
    names = topics.names[scores[0].argmax()].split(", ")
    assert len(set(names)) == 5
    assert all(word.startswith("c") for word in names)


def test_scores_by_hand():
    """Words "a" and "b" are e times and 1/e times as frequent in topic 0, which is half of the passages."""
    topics = Topics({"a": 0, "b": 1}, np.array([[1.0, 0.0], [-1.0, 0.0]]), np.array([0.5, 0.5]), ["", ""])
    scores, known = topics.score([["a"], ["a", "b"], ["c", "a", "a"], ["c"], []])
    speaks = np.exp(WEIGHT)
    ratio = np.array([speaks, 1]) / (0.5 * speaks + 0.5)
    alone = np.log(1 - SHARE + SHARE * ratio)
    assert scores == pytest.approx(np.array([alone, [0, 0], alone, [0, 0], [0, 0]]), abs=1e-6)  # of float32
    assert known.tolist() == [1, 2, 1, 0, 0]


def test_a_prefix_of_another_topic_counts_little_against_one(topics):
    scores, _ = topics.score([[topic_word(1, number) for number in range(30)]])
    assert scores.min() >= np.log(1 - SHARE) - 1e-6
    assert scores.max() > 3 * -np.log(1 - SHARE)


def test_random_prefixes_are_as_likely_as_topics_say():
    """The mean likelihood ratio of a random prefix is 1, so that its score is negative in the mean."""
    generator = np.random.default_rng(0)
    frequency = np.array([0.4, 0.3, 0.2, 0.1])
    evidence = np.log(np.array([[0.7, 0.1], [0.1, 0.5], [0.1, 0.3], [0.1, 0.1]]) / frequency[:, None])
    topics = Topics({word: n for n, word in enumerate("abcd")}, evidence, np.array([0.5, 0.5]), ["", ""])
    scores, _ = topics.score([[word] for word in generator.choice(list("abcd"), 5000, p=frequency)])
    assert (scores.mean(axis=0) < 0).all()


def test_explained_words_by_hand():
    """The prefix ["b"] in a key of "a": "a" makes topic 0 more likely, so that "b" has less to add to it."""
    topics = Topics({"a": 0, "b": 1}, np.array([[2.0, 0.0], [1.0, 0.0]]), np.array([0.5, 0.5]), ["", ""])
    scores, known = topics.score([["b"], ["b"], []], [["a"], ["unknown"], ["a"]])
    first = np.exp(2 * WEIGHT) / (np.exp(2 * WEIGHT) + 1)  # P(topic 0 | "a")
    speaks = np.exp(WEIGHT)
    ratio = np.array([speaks, 1]) / (first * speaks + 1 - first)
    assert scores[0] == pytest.approx(np.log(1 - SHARE + SHARE * ratio), abs=1e-6)  # of float32
    assert (scores[1] == topics.score([["b"]])[0][0]).all() and not scores[2].any()
    assert known.tolist() == [1, 1, 0]


def test_what_stands_around_a_word_anywhere_is_no_topic_of_the_keys_that_end_with_it():
    """Prefixes with "w", which is four times as frequent in topic 0, have more words of topic 0 than random ones."""
    generator = np.random.default_rng(0)
    frequency, of_topic = np.array([0.5, 0.3, 0.2]), np.array([[0.8, 0.2], [0.15, 0.45], [0.05, 0.35]])
    evidence = np.vstack([np.log([1.6, 0.4]), np.log(of_topic / frequency[:, None])])
    topics = Topics({word: n for n, word in enumerate("wabc")}, evidence, np.array([0.5, 0.5]), ["", ""])
    about = generator.random(5000) < 0.8  # P(topic 0 | "w")
    prefixes = [[generator.choice(list("abc"), p=of_topic[:, 0 if first else 1])] for first in about]
    without, _ = topics.score(prefixes)
    given, _ = topics.score(prefixes, [["w"]] * len(prefixes))
    # The weight of words leaves a little.
    assert given[:, 0].mean() < without[:, 0].mean() / 3 and without[:, 0].mean() > 0.02 and given[:, 1].mean() < 0


def test_neighbours_count_as_far_as_they_are_alike():
    alike = np.repeat(np.eye(4), 25, axis=0)
    noise = np.random.default_rng(0).normal(size=alike.shape)
    noisy = alike + noise
    noisy /= np.linalg.norm(noisy, axis=1, keepdims=True)
    smooth = add_neighbours(noisy)
    assert (smooth * alike).sum(axis=1).mean() > (noisy * alike).sum(axis=1).mean() + 0.2
    shuffled = np.random.default_rng(1).permutation(100)
    unchanged = add_neighbours(noisy[shuffled])
    assert np.einsum("pd,pd->p", unchanged, noisy[shuffled]).mean() > 0.9
    assert np.linalg.norm(smooth, axis=1) == pytest.approx(1)


def test_few_passages_have_few_neighbours():
    assert add_neighbours(np.eye(2)).tolist() == np.eye(2).tolist()
    assert add_neighbours(np.eye(1)).tolist() == [[1]]


def test_a_corpus_with_fewer_than_two_known_words_has_one_topic_of_everything(write_corpus):
    """The decomposition needs two columns. Words count that two passages have, but at most half of them."""
    none, _ = write_corpus([[" ".join(FUNCTION_WORDS.split()[n:]) for n in range(10)]])
    one, _ = write_corpus([[f"aa bb xylophone {word}"] for word in ("cc", "dd")] + [["ee ff"], ["gg hh"], ["ii jj"]])
    for corpus in (none, one):
        scores, known = fit_topics(corpus, seed=0).score([["xylophone"], []])
        assert scores.tolist() == [[0], [0]] and known.tolist() == [0, 0]


def test_topics_are_the_same_again(corpus, topics):
    again = fit_topics(corpus, seed=0)
    assert again.names == topics.names
    assert np.array_equal(again.evidence, topics.evidence)
    assert topics.shares.sum() == pytest.approx(1)


def test_content_words_are_long_and_no_stop_words():
    prefix = "The Army , @-@ <unk> 1945 of an OX fought it's"
    assert content_words(prefix.split()) == ["army", "fought", "it's"]


def test_passages_stay_inside_their_document(write_corpus):
    corpus, _ = write_corpus([[f"one a{n}" for n in range(23)], ["two words"]])
    assert [len(text.split()) // 2 for text in passages(corpus, np.random.default_rng(0))] == [10, 10, 3, 1]


def test_a_large_corpus_is_read_in_part(corpus, monkeypatch):
    monkeypatch.setattr(module, "PASSAGES", 17)
    found = passages(corpus, np.random.default_rng(0))
    assert len(found) == 17
    assert found == passages(corpus, np.random.default_rng(0))


@pytest.fixture(scope="module")
def small():
    """A pool of 30 prefixes of 3 classes, with scores for 4 topics."""
    scores = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32)
    return Pool(
        Topics({}, np.zeros((0, 4)), np.full(4, 0.25), list("abcd")), scores, np.array([0, 10, 18, 30, 30, 30, 30, 30])
    )


@pytest.fixture
def few_draws(monkeypatch):
    monkeypatch.setattr(module, "NULL_DRAWS", FEW)
    monkeypatch.setattr(module, "DRAWS_PER_BLOCK", 70)


def draws_by_hand(pool, *counts):
    """The highest sum of scores over the topics, of each draw."""
    drawn = [module._draw_prefixes(pool, number, count, 3) for number, count in enumerate(counts)]
    prefixes = [np.concatenate([part[:, draw] for part in drawn]) for draw in range(FEW)]
    return np.array([max(sum(pool.scores[n, topic] for n in each) for topic in range(4)) for each in prefixes])


@pytest.mark.parametrize("counts", [[1, 0, 0], [2, 0, 0], [1, 1, 1], [3, 0, 4]])
def test_draws_speak_for_the_topic_that_their_prefixes_together_speak_most_for(small, few_draws, counts):
    counts = np.array(counts + [0] * (LENGTH_CLASSES - 3))
    most = np.array([5, 2, 4] + [0] * (LENGTH_CLASSES - 3))
    found = np.concatenate([module.strongest(block, counts) for block in module.draw_blocks(small, most, seed=3)])
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
    own = np.concatenate(
        [module._draw_prefixes(small, number, count, 3)[:, 7] for number, count in enumerate((2, 1, 2))]
    )
    drawn = draws_by_hand(small, 2, 1, 2)
    reached = (drawn >= drawn[7] - 1e-4).sum()
    (p,) = topic_p_values([PlacedKey(np.arange(5), small.scores[own], np.array([0, 0, 1, 2, 2]))], small, 3, seed=3)
    assert p == (1 + reached) / (1 + FEW)


def test_each_class_and_seed_has_draws_of_its_own(small):
    pool = replace(small, starts=np.array([0, 10, 20, 30]))
    drawn = [module._draw_prefixes(pool, number, 3, seed) - 10 * number for number, seed in ((0, 3), (1, 3), (0, 4))]
    assert all(((own >= 0) & (own < 10)).all() for own in drawn)
    assert (drawn[0] != drawn[1]).any() and (drawn[0] != drawn[2]).any()


def test_members_speak_more_for_the_topic_than_random_prefixes_of_their_length(small):
    scores = np.zeros((6, 4), np.float32)
    scores[:4, 2] = small.of_class(0)[:, 2].max() + 1
    scores[4:, 2] = [np.quantile(small.of_class(0)[:, 2], level) for level in (0.9, 0.95)]
    key = PlacedKey(np.arange(6), scores, np.zeros(6, int))
    assert key.topic == 2
    assert find_members(key, small).tolist() == [0, 1, 2, 3]


def about(subject, places):
    """Prefixes of three words each of a subject, none of them twice."""
    return [[subject_word(subject, n) for n in (3 * place, 3 * place + 1, 3 * place + 2)] for place in places]


def test_keys_of_which_some_prefixes_are_about_one_subject_are_found(many_subjects, subjects):
    """10 of 25 prefixes, without words that they share. The mean similarity of all pairs found few of these."""
    random = random_keys(many_subjects, 40, seed=9)
    planted = [about(number, range(10)) + prefixes[10:] for number, prefixes in enumerate(random)]
    p = topic_p_values(place_prefixes(planted, [()] * len(planted), subjects.pool), subjects.pool, 3, 0)
    assert np.mean(p <= 0.01) > 0.9


def test_a_key_of_two_subjects_has_two_topics_and_a_key_of_one_has_one(many_subjects, subjects):
    random = random_keys(many_subjects, 20, seed=9)
    two = [about(n, range(10)) + about(n + 20, range(10)) + key[20:] for n, key in enumerate(random[:10])]
    one = [about(n, range(12)) + key[12:] for n, key in enumerate(random[10:])]
    found = detect_topics([*two, *one], [()] * 20, subjects)
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
def test_small_p_values_of_random_keys_are_no_more_frequent_than_they_say(many_subjects, subjects, prefixes):
    keys = [key[:prefixes] for layer in range(5) for key in random_keys(many_subjects, 100, 4, layer)]
    p = topic_p_values(place_prefixes(keys, [()] * len(keys), subjects.pool), subjects.pool, 3, 0)
    for level in (0.01, 0.05, 0.1, 0.5):
        assert np.mean(p <= level) <= level + 3 * np.sqrt(level * (1 - level) / len(p))


def test_a_key_is_compared_with_the_same_draws_whatever_keys_stand_beside_it(corpus, detector):
    keys = place_prefixes(random_keys(corpus, 9, seed=4), [()] * 9, detector.pool)
    together = topic_p_values(keys, detector.pool, 3, 0).tolist()
    assert together == [topic_p_values([key], detector.pool, 3, 0)[0] for key in keys]


def test_the_pool_has_every_class_in_a_range_of_its_own(detector):
    pool = detector.pool
    assert pool.starts[0] == 0 and pool.starts[-1] == len(pool.scores) > 1000 * TOPICS / 5
    assert (np.diff(pool.starts)[:3] > 0).all()
