"""The part of a run's text that its control reads."""

import json

import numpy as np
import pytest
from corpus.test_corpus_file import write
from numpy.testing import assert_array_equal

from ffkv.base.files import datasets
from ffkv.corpus import part
from ffkv.corpus.corpus_file import read_corpus
from ffkv.corpus.part import choose_sentences, copy_corpus


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
    monkeypatch.setattr(part, "LEAST", 1)
    monkeypatch.setattr(part, "TOGETHER", 2)


TEXTS = ["a b c\na b d\na b c", "b b\nc d e", "a b c e\na b f"]  # a sentence comes twice


def test_a_part_is_as_if_nothing_else_had_been_read(tmp_path, thirds):
    """Its shared prefixes are those of its own sentences. Documents keep their numbers."""
    write(tmp_path / "whole.h5", *TEXTS, split="train", model="m")
    copied = copy_corpus(tmp_path / "whole.h5", tmp_path / "part.h5")
    assert list(copied.texts) == ["a b c", "a b d"]
    write(tmp_path / "alone.h5", "a b c\na b d\na b c", split="train", model="m")
    alone = read_corpus(tmp_path / "alone.h5")
    for name in datasets.datasets_of(type(alone), ("shared", "piece", "document_names", "texts")):
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
    monkeypatch.setattr(part, "LEAST", 6)
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
