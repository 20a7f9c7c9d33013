import numpy as np
import pytest

from ffkv.branches.keys import topics as module
from ffkv.branches.keys.topics import SHARE, WEIGHT, Topics, add_neighbours, content_words, fit_topics, passages

from .conftest import FUNCTION_WORDS, TOPICS, topic_word


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


def test_a_corpus_without_content_words_has_one_topic_of_everything(write_corpus):
    corpus, _ = write_corpus([[" ".join(FUNCTION_WORDS.split()[n:]) for n in range(10)]])
    scores, known = fit_topics(corpus, seed=0).score([["word"], []])
    assert scores.tolist() == [[0], [0]] and known.tolist() == [0, 0]


def test_a_corpus_with_one_content_word_in_two_passages_has_one_topic_of_everything(write_corpus):
    """The decomposition alone needs two columns."""
    corpus, _ = write_corpus([[f"aa bb xylophone {word}"] for word in ("cc", "dd")] + [["ee ff"], ["gg hh"], ["ii jj"]])
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
