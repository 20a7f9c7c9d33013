import numpy as np
import pytest

from ffkv.keys import topics as module
from ffkv.keys.topics import content_words, fit_topics, passages

from .conftest import FUNCTION_WORDS, TOPICS, topic_word


@pytest.fixture(scope="module")
def topics(corpus):
    return fit_topics(corpus, TOPICS, seed=0)


def topic_numbers(topics, prefixes):
    return [features[0][1] if features else None for features, _ in topics.of(prefixes)]


def test_words_of_a_topic_belong_together_and_no_others(topics):
    prefixes = [
        [topic_word(topic, number), topic_word(topic, number + 1)] for topic in range(TOPICS) for number in range(50)
    ]
    found = np.array(topic_numbers(topics, prefixes)).reshape(TOPICS, 50)
    assert all(len(set(row)) == 1 for row in found)
    assert len(set(found[:, 0])) == TOPICS


def test_a_topic_is_called_by_its_words(topics):
    (number,) = topic_numbers(topics, [[topic_word(2, 0)]])
    assert topics.labels[int(number)].split(", ")[0] in {topic_word(2, word) for word in range(120)}
    assert all(word.startswith("c") for word in topics.labels[int(number)].split(", "))


def test_prefixes_without_known_words_have_no_topic(topics):
    assert topics.of([[], ["unheard"]]) == [([], 0), ([], 0)]


def test_words_are_counted_once_each(topics):
    word = topic_word(1, 3)
    assert topics.of([[word, word, topic_word(1, 4), "unheard"]])[0].words == 2


def test_a_corpus_without_content_words_has_no_topics(write_corpus):
    corpus, _ = write_corpus([[" ".join(FUNCTION_WORDS.split()[n:]) for n in range(10)]])
    topics = fit_topics(corpus, 5, seed=0)
    assert topics.labels == []
    assert topics.of([["word"]]) == [([], 0)]


def test_there_are_no_more_topics_than_different_passages(write_corpus):
    corpus, _ = write_corpus(
        [["red house today"], ["red house tomorrow"], ["green garden wall"], ["green garden path"]]
    )
    assert len(fit_topics(corpus, 50, seed=0).labels) == 2


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
