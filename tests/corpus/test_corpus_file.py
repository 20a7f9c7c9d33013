"""`corpus/<split>.h5`: what is written is read back, and what a control reads of it."""

import json

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from support import word_tokenizer

from ffkv.base.errors import UserError
from ffkv.base.files import datasets
from ffkv.base.settings import Corpus
from ffkv.corpus import step
from ffkv.corpus.corpus_file import read_corpus, write_corpus
from ffkv.corpus.document import Document
from ffkv.corpus.encode import encode
from ffkv.corpus.step import choose_sentences, copy_corpus

LETTERS = word_tokenizer(["<bos>", *"abcdefgh"])


def write(path, *texts, deduplicate=True, bos=(0,), **attributes):
    documents = [Document(f"d{number}", text) for number, text in enumerate(texts)]
    encoded = encode(documents, LETTERS, 30, Corpus(splitter="line", pretokenized=True, deduplicate=deduplicate))
    write_corpus(path, encoded, list(bos), True, attributes)
    return encoded


@pytest.fixture
def corpus(tmp_path):
    write(tmp_path / "train.h5", "a b c\nd  e", "a b c", "b b", tokenizer_hash="t1", split="train")
    return read_corpus(tmp_path / "train.h5", {"tokenizer_hash": "t1"})


def test_sentences_come_back(corpus):
    assert len(corpus) == 3
    assert [corpus.ids(sentence).tolist() for sentence in range(3)] == [[1, 2, 3], [4, 5], [2, 2]]
    assert corpus.lengths.tolist() == [3, 2, 2]
    assert list(corpus.texts) == ["a b c", "d  e", "b b"]
    assert [corpus.document_names[number] for number in corpus.document] == ["d0", "d0", "d2"]
    assert (corpus.multiplicity[:].tolist(), corpus.bos, corpus.pretokenized) == ([2, 1, 1], [0], True)


def test_a_file_says_what_was_left_out(corpus):
    assert json.loads(corpus.attributes["counts"])["duplicate_sentences"] == 1
    assert (corpus.attributes["split"], corpus.attributes["tokens"], corpus.attributes["sentences"]) == ("train", 7, 3)


def test_the_next_token_is_an_id_of_the_stored_sentence(corpus):
    assert corpus.next_token(np.array([0, 0, 0, 1]), np.array([0, 1, 2, 1])).tolist() == [1, 2, 3, 5]


def test_the_text_of_a_prefix_ends_with_its_last_token(corpus):
    assert [corpus.prefix_text(0, position) for position in range(4)] == ["", "a", "a b", "a b c"]
    assert corpus.prefix_text(1, 2) == "d  e"
    assert [corpus.character(1, position) for position in range(3)] == [0, 1, 4]


def test_the_hash_is_of_what_the_model_reads(tmp_path):
    def digest(*texts, **settings):
        write(tmp_path / "a.h5", *texts, **settings)
        return read_corpus(tmp_path / "a.h5").attributes["corpus_hash"]

    assert digest("a b", "c d") == digest("a b", "c  d", split="other")
    assert len({digest("a b", "c d"), digest("a b c d"), digest("c d", "a b"), digest("a b", "c d", bos=())}) == 4


def test_a_corpus_of_another_tokenizer_is_refused(tmp_path):
    write(tmp_path / "a.h5", "a b", tokenizer_hash="t1")
    with pytest.raises(UserError, match=r"a\.h5 belongs to another tokenizer"):
        read_corpus(tmp_path / "a.h5", {"tokenizer_hash": "t2"})


def test_no_sentences_are_a_file_too(tmp_path):
    write(tmp_path / "a.h5")
    corpus = read_corpus(tmp_path / "a.h5")
    assert (len(corpus), list(corpus.texts), len(corpus.shared)) == (0, [], 0)


def test_many_prefixes_end_where_each_of_them_ends(corpus):
    places = np.array([(s, p) for s in range(3) for p in range(corpus.lengths[s] + 1)])
    texts, last_tokens = corpus.prefix_texts(*places.T)
    assert texts == [corpus.prefix_text(*place) for place in places.tolist()]
    before = [corpus.prefix_text(sentence, max(position - 1, 0)) for sentence, position in places.tolist()]
    assert [first + last for first, last in zip(before, last_tokens)] == texts
    assert corpus.prefix_texts(*np.zeros((2, 0), int)) == ([], [])


@pytest.mark.parametrize(
    ("count", "chosen"),
    [
        (0, []),
        (300, range(300)),
        (302, range(300)),
        (904, [*range(10), *range(20, 30), *range(50, 60), *range(80, 90)]),  # 31 of 91: every 2.94th
        (9000, [*range(10), *range(30, 40), *range(60, 70), *range(90, 100)]),
    ],
)
def test_a_third_of_the_sentences_in_stretches_of_ten(count, chosen):
    found = choose_sentences(count)
    assert found[: len(chosen)].tolist() == list(chosen)
    assert len(found) == min(count, 10 * max(30, -(-count // 30)))
    assert not len(found) or (found[-1] < count and (np.diff(found) > 0).all())


@pytest.fixture
def thirds(monkeypatch):
    """Stretches of two sentences, of however short a text."""
    monkeypatch.setattr(step, "LEAST", 1)
    monkeypatch.setattr(step, "TOGETHER", 2)


TEXTS = ["a b c\na b d\na b c", "b b\nc d e", "a b c e\na b f"]  # a sentence comes twice


def test_a_part_is_as_if_nothing_else_had_been_read(tmp_path, thirds):
    """Its shared prefixes are those of its own sentences. Documents keep their numbers."""
    write(tmp_path / "whole.h5", *TEXTS, split="train", model="m")
    copied = copy_corpus(tmp_path / "whole.h5", tmp_path / "part.h5")
    assert list(copied.texts) == ["a b c", "a b d"]
    write(tmp_path / "alone.h5", "a b c\na b d\na b c", split="train", model="m")
    alone = read_corpus(tmp_path / "alone.h5")
    for name in datasets.datasets_of(type(alone), ("shared", "piece", "document_names", "document_titles", "texts")):
        assert_array_equal(getattr(copied, name), getattr(alone, name), err_msg=name)
    for name in datasets.datasets_of(type(alone.shared)):
        assert_array_equal(getattr(copied.shared, name), getattr(alone.shared, name), err_msg=name)
    assert list(copied.document_names) == ["d0", "d1", "d2"]
    own = ("tokens", "sentences", "corpus_hash", "bos", "model", "split")
    assert {name: copied.attributes[name] for name in own} == {name: alone.attributes[name] for name in own}
    assert json.loads(copied.attributes["counts"])["not_copied_sentences"] == 4


def test_the_validation_split_and_a_short_text_are_copied_whole(tmp_path, thirds, monkeypatch):
    write(tmp_path / "whole.h5", *TEXTS, split="validation")
    copy_corpus(tmp_path / "whole.h5", tmp_path / "copy.h5")
    assert (tmp_path / "copy.h5").read_bytes() == (tmp_path / "whole.h5").read_bytes()
    monkeypatch.setattr(step, "LEAST", 6)
    write(tmp_path / "train.h5", *TEXTS, split="train")
    copy_corpus(tmp_path / "train.h5", tmp_path / "copy.h5")
    assert (tmp_path / "copy.h5").read_bytes() == (tmp_path / "train.h5").read_bytes()


def test_every_place_of_a_part_is_that_of_its_sentence(tmp_path, thirds):
    """Against the whole corpus, sentence by sentence."""
    stream = np.random.default_rng(3)
    text = "\n".join(" ".join(stream.choice([*"abcdefgh"], length)) for length in stream.integers(2, 9, 100))
    write(tmp_path / "whole.h5", text, split="train")
    whole = read_corpus(tmp_path / "whole.h5")
    copied = copy_corpus(tmp_path / "whole.h5", tmp_path / "part.h5")
    chosen = choose_sentences(len(whole)).tolist()
    assert len(copied) == len(chosen) > 25
    for number, sentence in enumerate(chosen):
        assert copied.texts[number] == whole.texts[sentence]
        assert copied.token_texts(number) == whole.token_texts(sentence)
        assert_array_equal(copied.ids(number), whole.ids(sentence))
        assert copied.multiplicity[number] == whole.multiplicity[sentence]
