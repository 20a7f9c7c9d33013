"""Sentences to token ids, in any number of processes: nothing is lost uncounted, and every token knows where its characters end."""

import json
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from support import tries, word_tokenizer

from ffkv.base.errors import UserError
from ffkv.base.settings import Corpus
from ffkv.corpus import encode as encode_module
from ffkv.corpus.document import Document
from ffkv.corpus.encode import COUNTS, Rows, encode
from ffkv.corpus.step import encode_corpus
from ffkv.model.checkpoint.tokenizer import load_tokenizer
from ffkv.model.small import train_tokenizer

LETTERS = word_tokenizer(["<bos>", *"abcdefgh", "<unk>"])
BYTES = train_tokenizer(["the cat and the hat", "naïve café 😀 👩‍👧"], 300, 64)


def encoded(*texts, tokenizer=LETTERS, longest=100, **settings):
    documents = [Document(f"d{number}", text) for number, text in enumerate(texts)]
    return encode(documents, tokenizer, longest, Corpus(**{"splitter": "line", "pretokenized": True} | settings))


def counts(result) -> str:
    """The counts that are not zero."""
    assert list(result.counts) == list(COUNTS)
    return ", ".join(f"{count} {name}" for name, count in result.counts.items() if count)


def test_a_sentence_is_its_tokens_and_where_each_one_ends():
    result = encoded("a b\nc  d e")
    assert [ids.tolist() for ids in result.ids] == [[1, 2], [3, 4, 5]]
    assert [ends.tolist() for ends in result.ends] == [[1, 3], [1, 4, 6]]
    assert (result.text, result.document, result.multiplicity) == (["a b", "c  d e"], [0, 0], [1, 1])
    assert {array.dtype for array in (*result.ids, *result.ends)} == {np.dtype(np.int32)}
    assert counts(result) == "1 documents, 2 sentences"


def test_only_the_first_sentences_of_each_document_are_read():
    """Empty ones do not count; one that was there before does; the windows of a long one count as one."""
    texts = "a b\n\nc d e f\ng h\n\n", "a b\nb c\nc d", "e f"
    result = encoded(*texts, sentences_per_document=2, longest=2)
    assert result.text == ["a b", "c d", " e f", "b c"]
    assert (result.document, result.multiplicity) == ([0, 0, 0, 1], [2, 1, 2, 1])
    sentences = "2 left_out_sentences, 2 empty_sentences, 1 long_sentences, 2 duplicate_sentences"
    assert counts(result) == f"3 documents, 5 sentences, {sentences}"


@given(st.lists(st.text(st.sampled_from("ab \n"), max_size=20), max_size=6), st.integers(1, 4))
def test_a_sample_is_the_beginning_of_each_document(texts, most):
    whole, sample = (encoded(*texts, deduplicate=False, sentences_per_document=each) for each in (0, most))
    lines = [[line for line in text.split("\n") if line.strip()] for text in texts]
    assert sample.counts["sentences"] == sum(len(each[:most]) for each in lines)
    assert sample.counts["left_out_sentences"] == sum(len(each[most:]) for each in lines)
    assert sample.text == encoded(*("\n".join(each[:most]) for each in lines), deduplicate=False).text
    assert whole.counts["sentences"] == sum(map(len, lines))


def test_every_kind_of_what_is_left_out_is_counted():
    result = encoded("a b\n\na", "", "  ", "b\ufffd c", "a b", longest=3)
    assert result.text == ["a b", "b\ufffd c"]
    assert result.names == ["d0", "d3", "d4"]  # those with text
    sentences = "4 sentences, 2 empty_sentences, 1 one_token_sentences, 1 duplicate_sentences"
    assert counts(result) == f"5 documents, 2 empty_documents, 1 undecodable_documents, {sentences}"


def test_identical_sentences_count_once_and_say_how_many_they_stand_for():
    result = encoded("a b", "b a", "a  b", "a b")
    assert (result.text, result.multiplicity, result.document) == (["a b", "b a"], [3, 1], [0, 1])
    assert result.counts["duplicate_sentences"] == 2
    apart = encoded("a b", "b a", "a b", deduplicate=False)
    assert (apart.text, apart.multiplicity) == (["a b", "b a", "a b"], [1, 1, 1])
    assert apart.counts["duplicate_sentences"] == 0


def test_a_long_sentence_is_cut_into_windows():
    result = encoded("a b c d e f g", longest=3)
    assert result.text == ["a b c", " d e f"]
    assert [ends.tolist() for ends in result.ends] == [[1, 3, 5], [2, 4, 6]]
    assert counts(result) == "1 documents, 1 sentences, 1 one_token_sentences, 1 long_sentences"


def test_or_is_dropped():
    result = encoded("a b c d", "a b c", longest=3, long_sentences="drop")
    assert (result.text, result.counts["long_sentences"]) == (["a b c"], 1)


texts = st.lists(st.text(st.sampled_from("abc  \n"), max_size=12), max_size=8)


@given(texts, st.integers(2, 5), st.sampled_from(["windows", "drop"]), st.sampled_from(["line", "document"]))
@hypothesis_settings(max_examples=tries(100))
def test_every_sentence_is_accounted_for(texts, longest, long_sentences, splitter):
    result = encoded(*texts, longest=longest, long_sentences=long_sentences, splitter=splitter)
    kept = {name: result.counts[name] for name in COUNTS}
    assert kept["documents"] == len(texts) == len(result.names) + kept["empty_documents"]
    assert kept["empty_documents"] == sum(not text.strip() for text in texts)
    lines = [part.strip() for text in texts for part in (text.splitlines() if splitter == "line" else [text])]
    assert kept["sentences"] + kept["empty_sentences"] == len(lines)
    words = [len(tokens) for tokens in (LETTERS(line, add_special_tokens=False)["input_ids"] for line in lines if line)]
    assert kept["long_sentences"] == sum(count > longest for count in words)
    assert sum(result.multiplicity) == len(result.ids) + kept["duplicate_sentences"]
    windows = sum(-(-count // longest) for count in words if count <= longest or long_sentences == "windows")
    assert sum(result.multiplicity) + kept["one_token_sentences"] == windows
    assert all(2 <= len(ids) <= longest for ids in result.ids)


@given(
    st.lists(st.text(st.sampled_from("the cat😀é👩‍👧\u00a0\0字"), min_size=2, max_size=20), max_size=4),
    st.integers(2, 9),
)
@hypothesis_settings(max_examples=tries(100))
def test_prefixes_of_byte_pieces_end_where_their_characters_do(texts, longest):
    """A piece that holds a part of a character ends where the character does; no end comes before the one before it."""
    result = encoded(*texts, tokenizer=BYTES, longest=longest, splitter="document")
    for ids, ends, text in zip(result.ids, result.ends, result.text, strict=True):
        assert len(ids) == len(ends)
        assert (np.diff(ends) >= 0).all()
        assert ends[0] >= 0
        assert ends[-1] == len(text)
        for position in range(1, len(ids) + 1):
            decoded = BYTES.decode(ids[:position])
            if "\ufffd" not in decoded:
                assert text[: ends[position - 1]] == decoded


def test_a_cut_within_a_character_gives_it_to_the_window_that_began_it():
    result = encoded("😀😀", tokenizer=train_tokenizer(["a"], 257, 64), longest=3, splitter="document")
    assert "".join(result.text) == "😀😀"
    assert [len(ids) for ids in result.ids] == [3, 3, 2]


def test_what_no_file_can_hold_is_replaced_and_counted():
    result = encode([Document("d\udcff", "a \ud800 b")], LETTERS, 9, Corpus(splitter="line"))
    assert (result.text, result.names) == (["a \ufffd b"], ["d\ufffd"])
    assert result.counts["undecodable_documents"] == 1


NOTHING_LOST = train_tokenizer(["the cat and the hat\n    x = 1\n"], 300, 64)


@given(
    st.lists(st.text(st.sampled_from("ab. \n\t\r!é😀"), max_size=30), max_size=4),
    st.sampled_from(["sentence", "line", "document"]),
    st.integers(2, 7),
    st.sampled_from([4, 1_000_000]),
)
@hypothesis_settings(max_examples=tries(200))
def test_kept_text_is_in_the_sentences_to_the_letter(texts, splitter, longest, most):
    """But for sentences of white space alone, and pieces and windows of one token, which are counted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encode_module, "MAX_CHARACTERS", most)
        result = encoded(
            *texts,
            tokenizer=NOTHING_LOST,
            longest=longest,
            splitter=splitter,
            pretokenized=False,
            white_space="keep",
            deduplicate=False,
        )
    assert [NOTHING_LOST.decode(ids) for ids in result.ids if "\ufffd" not in NOTHING_LOST.decode(ids)] == [
        text for ids, text in zip(result.ids, result.text, strict=True) if "\ufffd" not in NOTHING_LOST.decode(ids)
    ]
    if not result.counts["one_token_sentences"]:
        with_words = [text for text in texts if text.strip()]
        joined = [
            "".join(t for t, d in zip(result.text, result.document, strict=True) if d == n)
            for n in range(len(with_words))
        ]
        if not result.counts["empty_sentences"]:
            assert joined == with_words
        assert ["".join(text.split()) for text in joined] == ["".join(text.split()) for text in with_words]


@pytest.mark.parametrize("splitter", ["line", "document"])
def test_indentation_is_kept_beyond_the_longest_piece(monkeypatch, splitter):
    monkeypatch.setattr(encode_module, "MAX_CHARACTERS", 50)
    code = "".join(f"{' ' * (number % 9)}x = {number}\n" for number in range(200))
    found = encoded(code, tokenizer=NOTHING_LOST, splitter=splitter, white_space="keep", deduplicate=False)
    assert "".join(found.text) == code
    assert all(text.endswith("\n") for text in found.text)


def test_the_last_window_has_what_no_token_covers():
    assert encoded("a b c \n", longest=2, splitter="document", white_space="keep").text == ["a b"]
    assert encoded(" a b c d \n", longest=2, splitter="document", white_space="keep").text == [" a b", " c d \n"]


def test_no_documents_give_nothing():
    result = encoded()
    assert (len(result.ids), counts(result)) == (0, "")
    assert result.ids.joined().tolist() == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "text, splitter",
    [
        ("a b c\n" * 25_000, "line"),
        ("The cat, and the hat. " * 5_000, "sentence"),
        ("x" * 250_000, "document"),
        ("😀" * 60_000, "sentence"),
        ("\0" * 200_000, "sentence"),
    ],
    ids=["many lines", "many sentences", "no blanks", "emoji", "NUL"],
)
def test_large_and_odd_documents_take_seconds(text, splitter):
    started = time.process_time()
    result = encoded(text, tokenizer=BYTES, longest=64, splitter=splitter, pretokenized=False)
    assert time.process_time() - started < 10  # where time grew with the square of the size, it would be minutes
    assert result.counts["sentences"] >= 1
    assert all(len(ids) <= 64 for ids in result.ids)


@pytest.mark.parametrize("block", [1, 3, 100])
def test_rows_are_kept_as_they_came(block, monkeypatch):
    monkeypatch.setattr("ffkv.corpus.encode.BLOCK", block)
    rows, given = Rows(), [[1, 2], [], [2**31 - 1, -1, 0], [5]]
    assert len(rows) == 0 and rows.joined().tolist() == []
    for number, row in enumerate(given):
        rows.append(np.array(row, np.int32))
        if number == 2:
            assert [row.tolist() for row in rows] == given[:3]
    assert [row.tolist() for row in rows[1:]] == given[1:] and rows[-1].dtype == np.int32
    assert rows.joined().tolist() == [1, 2, 2**31 - 1, -1, 0, 5]
    with pytest.raises(TypeError, match="int64"):
        rows.append(np.array([1]))
    with pytest.raises(IndexError):
        rows[4]


WORDS = ["the cat", "sat.", "The mat!", "\n", "  ", "é😀", "on", "a b c. A b d.", "<|bos|>", "\ufffd"]


def made(model: Path, folder: Path, processes: int, **settings) -> bytes:
    """The bytes of the file that so many processes write."""
    corpus = Corpus(dataset="files", train=[str(folder / "a.jsonl")], validation_share=0.2, **settings)
    encode_corpus(model, "train", corpus, folder / "train.h5", processes)
    return (folder / "train.h5").read_bytes()


@pytest.mark.slow
@given(
    st.lists(st.lists(st.sampled_from(WORDS), max_size=6).map(" ".join), min_size=30, max_size=60),
    st.sampled_from(["sentence", "line", "document"]),
    st.sampled_from(["collapse", "keep"]),
    st.sampled_from([0, 7, 20]),
    st.booleans(),
    st.integers(1, 5),
)
@hypothesis_settings(max_examples=tries(8))
def test_processes_change_no_byte(byte_model, tmp_path_factory, texts, splitter, white_space, limit, deduplicate, size):
    folder = tmp_path_factory.mktemp("processes")
    texts = [*texts, "the cat sat. The cat sat. On the mat.", "One more. The cat sat on a mat."] * 2
    (folder / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    settings = {"splitter": splitter, "white_space": white_space, "limit": limit, "deduplicate": deduplicate}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encode_module, "DOCUMENTS_PER_CHUNK", size)
        try:
            alone = made(byte_model, folder, 1, **settings)
        except UserError as error:  # the first documents may hold too little
            assert "at least 2 are needed" in str(error)
            return
        assert {made(byte_model, folder, processes, **settings) for processes in (2, 3)} == {alone}
        patch.setattr(encode_module, "DOCUMENTS_PER_CHUNK", 1000)
        assert made(byte_model, folder, 2, **settings) == alone


def test_processes_wait_for_no_threads_of_the_one_that_started_them(byte_model, tmp_path, monkeypatch):
    """Threads of the tokenizer are there once it has encoded many texts. A fork has none, and waited for them without end."""
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")
    load_tokenizer(byte_model)(["The cat sat."] * 1000)
    lines = "".join(json.dumps({"text": f"Document {number}. And more."}) + "\n" for number in range(80))
    (tmp_path / "a.jsonl").write_text(lines)
    assert made(byte_model, tmp_path, 2) == made(byte_model, tmp_path, 1)


def test_progress_tells_documents_sentences_and_the_time_left(byte_model, tmp_path, capfd):
    lines = "".join(json.dumps({"text": f"Document {number}. And more."}) + "\n" for number in range(80))
    (tmp_path / "a.jsonl").write_text(lines)
    made(byte_model, tmp_path, 2, limit=40)
    told = capfd.readouterr().err
    assert "train: 100%" in told and "40.0/40.0" in told and "documents/s" in told and "80 sentences" in told
    made(byte_model, tmp_path, 1)
    assert "%" not in capfd.readouterr().err  # nobody knows how many there are


def test_a_killed_process_leaves_no_file(byte_model, tmp_path):
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "The cat sat. " * 20_000}) + "\n")
    earlier = set(psutil.Process().children())  # such as the tracker of multiprocessing, which another test started

    def kill():
        while len(processes := set(psutil.Process().children()) - earlier) < 2:
            time.sleep(0.01)
        for process in processes:
            os.kill(process.pid, signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    with pytest.raises(UserError, match="One of the processes that encode documents was ended by SIGKILL"):
        made(byte_model, tmp_path, 2)
    thread.join()
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]
