import numpy as np
import pytest

from ffkv.corpus.competing import CompetingPrefixes
from ffkv.keys import topics as module
from ffkv.keys.key_sample import background_prefixes
from ffkv.keys.topics import content_words, fit_space, passages

from .conftest import FUNCTION_WORDS, TOPICS, topic_word


@pytest.fixture(scope="module")
def space(corpus):
    return fit_space(corpus, background_prefixes(CompetingPrefixes(corpus, True), 5000, 0), seed=0)


def test_words_of_a_topic_are_nearer_to_each_other_than_to_others(space):
    numbers = range(50)
    vectors, _ = space.locate(
        [[topic_word(topic, n), topic_word(topic, n + 1)] for topic in range(TOPICS) for n in numbers]
    )
    centres = vectors.reshape(TOPICS, len(numbers), -1).mean(axis=1)
    assert (vectors @ centres.T).argmax(axis=1).tolist() == np.repeat(np.arange(TOPICS), len(numbers)).tolist()
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1, abs=1e-6)


def test_a_direction_is_called_by_its_words(space):
    vectors, _ = space.locate([[topic_word(2, number) for number in range(9)]])
    names = space.name(vectors[0]).split(", ")
    assert len(set(names)) == 5
    assert all(word.startswith("c") for word in names)


def test_random_prefixes_are_around_the_origin(corpus, space):
    vectors, _ = space.locate(
        [content_words(prefix) for prefix in background_prefixes(CompetingPrefixes(corpus, True), 2000, 1)]
    )
    assert np.linalg.norm(vectors.mean(axis=0)) < 0.05


def test_prefixes_without_known_words_are_nowhere(space):
    vectors, words = space.locate([[], ["unheard"]])
    assert not vectors.any()
    assert np.diff(words.indptr).tolist() == [0, 0]


def test_words_are_counted_once_each(space):
    word = topic_word(1, 3)
    assert np.diff(space.locate([[word, word, topic_word(1, 4), "unheard"]])[1].indptr).tolist() == [2]


def test_a_corpus_without_content_words_has_no_space(write_corpus):
    corpus, _ = write_corpus([[" ".join(FUNCTION_WORDS.split()[n:]) for n in range(10)]])
    space = fit_space(corpus, [["the"]], seed=0)
    vectors, words = space.locate([["word"], []])
    assert vectors.shape == (2, 0)
    assert words.nnz == 0


def test_a_corpus_with_one_content_word_in_two_passages_has_no_space(write_corpus):
    """Failure 8: the decomposition needs two columns."""
    corpus, _ = write_corpus([[f"aa bb xylophone {word}"] for word in ("cc", "dd")] + [["ee ff"], ["gg hh"], ["ii jj"]])
    vectors, words = fit_space(corpus, [["the"]], seed=0).locate([["xylophone"], []])
    assert vectors.shape == (2, 0)
    assert words.nnz == 0


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
