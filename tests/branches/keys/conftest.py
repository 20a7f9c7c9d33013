"""Corpora and triggers whose patterns are known."""

from collections import Counter

import numpy as np
import pytest

from ffkv.activations.trigger_file import HISTOGRAM_EDGES, Triggers
from ffkv.branches.keys.key_sample import random_examples
from ffkv.branches.keys.patterns import prepare_detector
from ffkv.branches.settings import Keys
from ffkv.corpus.competing import CompetingPrefixes
from ffkv.corpus.corpus_file import read_corpus
from ffkv.corpus.corpus_file import write_corpus as write_corpus_file
from ffkv.corpus.encode import Encoded, Rows

FUNCTION_WORDS = "the of and to in is that for it with as was on be at by from or an which"
TOPICS, TOPIC_WORDS = 5, 120


def topic_word(topic: int, number: int) -> str:
    """A made-up content word of a topic, such as "ceraba"."""
    syllables = ("ba", "ce", "di", "fo", "gu", "la", "me", "ni", "po", "ru")
    return "abcde"[topic] + "r" + syllables[number // 100] + syllables[number // 10 % 10] + syllables[number % 10]


@pytest.fixture(scope="session")
def write_corpus(tmp_path_factory):
    """Writes documents, each a list of sentences of blank-separated words, and reads them back as a corpus."""

    def write(documents, name="corpus"):
        sentences = [(number, text.split()) for number, document in enumerate(documents) for text in document]
        numbers = {word: None for _, words in sentences for word in words}
        numbers = {word: number for number, word in enumerate(numbers)}
        encoded = Encoded(
            ids=Rows(np.array([numbers[word] for word in words], np.int32) for _, words in sentences),
            ends=Rows(np.cumsum([len(word) + 1 for word in words]).astype(np.int32) - 1 for _, words in sentences),
            text=[" ".join(words) for _, words in sentences],
            document=[number for number, _ in sentences],
            multiplicity=[1] * len(sentences),
            names=[f"document {number}" for number in range(len(documents))],
            counts=Counter(),
        )
        path = tmp_path_factory.mktemp("corpus") / f"{name}.h5"
        write_corpus_file(path, encoded, [], True, {"model": "none", "tokenizer_hash": "blanks"})
        return read_corpus(path), path

    return write


@pytest.fixture(scope="session")
def written(write_corpus):
    """A synthetic corpus of 2,000 different sentences and its file: 5 topics without common content words."""
    generator = np.random.default_rng(0)
    zipf = 1 / np.arange(1, TOPIC_WORDS + 1) ** 0.5
    zipf /= zipf.sum()

    def sentence(topic):
        length = generator.integers(4, 24)
        content = generator.random(length) < 0.5
        common = generator.choice(FUNCTION_WORDS.split(), length)
        own = generator.choice(TOPIC_WORDS, length, p=zipf)
        return " ".join(topic_word(topic, o) if c else f for c, f, o in zip(content, common, own))

    return write_corpus([[sentence(number % TOPICS) for _ in range(10)] for number in range(200)])


@pytest.fixture(scope="session")
def corpus(written):
    """The synthetic corpus. Sentence s is of topic s // 10 % 5."""
    return written[0]


SUBJECTS, SUBJECT_WORDS = 40, 40


def subject_word(subject: int, number: int) -> str:
    """A made-up content word of a subject, such as "xadba"."""
    letters = "abcdefghij"
    return "x" + letters[subject // 10] + letters[subject % 10] + letters[number // 10] + letters[number % 10]


@pytest.fixture(scope="session")
def many_subjects(write_corpus):
    """A synthetic corpus of 40 subjects, so that a prefix of a given one is rare: sentence s is of s // 10 % 40."""
    generator = np.random.default_rng(0)

    def sentence(subject):
        own = [subject_word(subject, number) for number in generator.integers(0, SUBJECT_WORDS, 6)]
        return " ".join(word for pair in zip(generator.choice(FUNCTION_WORDS.split(), 6), own) for word in pair)

    return write_corpus([[sentence(number % SUBJECTS) for _ in range(10)] for number in range(400)], "many")[0]


def make_detector(corpus):
    return prepare_detector(CompetingPrefixes(corpus, True), Keys(background_prefixes=5000), seed=0)


@pytest.fixture(scope="session")
def detector(corpus):
    return make_detector(corpus)


@pytest.fixture(scope="session")
def subjects(many_subjects):
    """The detector of the corpus of many subjects."""
    return make_detector(many_subjects)


def random_keys(corpus, keys: int, seed: int = 0, layer: int = 0, prefixes: int = 25) -> list[list[list[str]]]:
    """The words of the prefixes of random keys."""
    found = random_examples(CompetingPrefixes(corpus, True), keys, prefixes, seed, layer)
    return [key.prefixes for key in found]


@pytest.fixture
def make_triggers():
    """Triggers from lists of (sentence, position) by layer and memory."""

    def make(corpus, layers, per_key=25):
        offsets = np.cumsum([0, *(len(layer) for layer in layers)])
        shape = (offsets[-1], per_key)
        sentence, position = np.full(shape, -1, np.int32), np.zeros(shape, np.int32)
        coefficient, count = np.zeros(shape, np.float32), np.zeros(shape[0], np.int32)
        for row, memory in enumerate(memory for layer in layers for memory in layer):
            count[row] = len(memory)
            for rank, (of_sentence, at) in enumerate(memory):
                sentence[row, rank], position[row, rank], coefficient[row, rank] = of_sentence, at, 100 - rank
        return Triggers(
            layer_offset=offsets,
            coefficient=coefficient,
            sentence=sentence,
            position=position,
            next_token=np.where(sentence >= 0, 0, -1).astype(np.int32),
            multiplicity=(sentence >= 0).astype(np.int32),
            next_count=(sentence >= 0).astype(np.int32),
            gate=np.zeros(shape, np.int8),
            count=count,
            fires=2 * count.astype(np.int64),
            total=np.zeros(shape[0], np.int64),
            maximum=coefficient[:, 0],
            histogram=np.zeros((shape[0], len(HISTOGRAM_EDGES) - 1), np.int64),
            prefixes=1000,
            attributes={
                "corpus_hash": corpus.attributes["corpus_hash"],
                "tokenizer_hash": "blanks",
                "model_hash": "fake",
                "settings": {},
            },
        )

    return make
