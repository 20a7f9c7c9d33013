"""`ffkv corpus` from files to a file."""

import json

import pytest
from click.testing import CliRunner
from support import WORDS

from ffkv.base.errors import UserError
from ffkv.base.settings import Corpus
from ffkv.corpus.commands import corpus
from ffkv.corpus.corpus_file import read_corpus
from ffkv.corpus.step import encode_corpus
from ffkv.model.anatomy import read_anatomy


@pytest.fixture
def run(detector, tmp_path):
    """Runs the command on a text; returns the file and what was printed."""

    def call(text: str, *options: str, split: str = "train"):
        (tmp_path / "text.txt").write_text(text)
        output = tmp_path / f"{split}.h5"
        line = f"--model {detector} --split {split} --dataset files --train {tmp_path}/text.txt --splitter line"
        arguments = [*line.split(), *options, "--output", str(output)]
        result = CliRunner().invoke(corpus, arguments, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return output, result.output

    return call


def test_a_text_becomes_a_corpus_file(run, tmp_path, detector):
    path, printed = run("a b c\n\nd e\na b c\n", "--validation", str(tmp_path / "text.txt"))
    made = read_corpus(path, read_anatomy(detector).identity)
    assert [[WORDS[token] for token in made.ids(sentence)] for sentence in range(len(made))] == [[*"abc"], [*"de"]]
    assert (made.bos, made.multiplicity[:].tolist(), made.pretokenized) == ([0], [2, 1], False)
    assert json.loads(made.attributes["settings"])["splitter"] == "line"
    assert "documents: 4; left out documents: 0; empty documents: 1;" in printed
    assert "duplicate sentences: 1" in printed


def test_the_step_returns_the_corpus_that_it_writes(detector, tmp_path):
    (tmp_path / "text.txt").write_text("a b c\nd e\n")
    settings = Corpus(dataset="files", train=[str(tmp_path / "text.txt")], validation=["none"], splitter="line")
    encoded = encode_corpus(str(detector), "train", settings, str(tmp_path / "train.h5"))
    assert list(encoded.texts) == ["a b c", "d e"]
    assert encoded.attributes == read_corpus(tmp_path / "train.h5").attributes


def test_settings_that_contradict_each_other_are_refused(run):
    with pytest.raises(UserError, match=r"corpus\.validation .* a hub data set takes one split name"):
        run("a b\n", "--dataset", "some/data", "--validation", "a", "--validation", "b")


def test_text_to_the_letter_is_not_changed_by_another_setting(run):
    with pytest.raises(UserError, match=r"detokenize is true and corpus\.white_space is 'keep'"):
        run("a b\n", "--white-space", "keep", "--detokenize")
    path, _ = run("  a  b\n c d \n", "--white-space", "keep", "--pretokenized", "--validation", "x")
    assert list(read_corpus(path).texts) == ["  a  b", " c d "]


def test_train_and_validation_share_the_documents_where_there_is_no_validation_split(run):
    text = "\n".join(f"a {b} {c} {d}" for b in "abcdefgh" for c in "abcdefgh" for d in "ab")
    train, validation = (
        set(read_corpus(run(text, "--validation-share", "0.3", split=split)[0]).texts)
        for split in ("train", "validation")
    )
    assert not train & validation
    assert train | validation == set(text.splitlines())


@pytest.mark.parametrize("bos, lengths", [("auto", [15, 15, 2, 2]), ("always", [15, 15, 2, 2]), ("never", [16, 2])])
def test_the_longest_sentence_fills_the_context_with_its_bos(run, detector, bos, lengths):
    """The detector's context is 16. Without BOS the two halves of 32 tokens are the same, and count once."""
    assert read_anatomy(detector).context == 16
    path, _ = run(" ".join("abcdefgh" * 4) + "\na b", "--bos", bos, "--validation", "x")
    assert read_corpus(path).lengths.tolist() == lengths


@pytest.mark.parametrize("context, lengths", [("0", [15, 15, 2, 2]), ("8", [7, 7, 7, 7, 4, 2]), ("99", [15, 15, 2, 2])])
def test_a_shorter_context_bounds_the_windows(run, context, lengths):
    path, _ = run(" ".join("abcdefgh" * 4) + "\na b", "--context", context, "--no-deduplicate", "--validation", "x")
    assert read_corpus(path).lengths.tolist() == lengths


def test_a_context_without_room_for_a_prefix_is_refused(run):
    with pytest.raises(UserError, match=r"context is 2, and a sentence of two tokens with the 1 in front of it has 3"):
        run("a b\n", "--context", "2", "--validation", "x")
    path, _ = run("a b\nc d\n", "--context", "2", "--bos", "never", "--validation", "x")
    assert read_corpus(path).lengths.tolist() == [2, 2]


@pytest.mark.parametrize("text, sentences", [("", 0), ("\n\n", 0), ("a b\n", 1), ("a\nb\nc\n", 0), ("a b\na b\n", 1)])
def test_too_little_text_is_refused_and_no_file_is_left(run, tmp_path, text, sentences):
    with pytest.raises(
        UserError,
        match=f"The train split of files has {sentences} sentences of two tokens or more, and at least 2 are needed",
    ):
        run(text, "--validation", "x")
    assert not (tmp_path / "train.h5").exists()
