"""`corpus/<split>.h5`: what is written is read back."""

import json

import numpy as np
import pytest
from support import word_tokenizer

from ffkv.base.errors import UserError
from ffkv.base.settings import Corpus
from ffkv.corpus.corpus_file import read_corpus, write_corpus
from ffkv.corpus.document import Document
from ffkv.corpus.encode import encode

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
    places = np.array(
        [(sentence, position) for sentence in range(3) for position in range(corpus.lengths[sentence] + 1)]
    )
    texts, last_tokens = corpus.prefix_texts(*places.T)
    assert texts == [corpus.prefix_text(*place) for place in places.tolist()]
    before = [corpus.prefix_text(sentence, max(position - 1, 0)) for sentence, position in places.tolist()]
    assert [first + last for first, last in zip(before, last_tokens)] == texts
    assert corpus.prefix_texts(*np.zeros((2, 0), int)) == ([], [])
