"""What sources call their documents: which sources name them, what of a name is stored, and a corpus without names."""

import json

import h5py
import pandas as pd
import pytest
from support import word_tokenizer

from ffkv.base.settings import Corpus
from ffkv.corpus import step
from ffkv.corpus.corpus_file import read_corpus, write_corpus
from ffkv.corpus.document import Document
from ffkv.corpus.encode import LONGEST_TITLE, encode
from ffkv.corpus.sources import HEADING, read_documents
from ffkv.corpus.step import copy_corpus

LETTERS = word_tokenizer(["<bos>", *"abcdefgh"])
WIKITEXT = " \n = Ab @-@ c = \n \n a b c \n = = Career = = \n d e \n = B = 2 = \n f \n= C =\n"
ARTICLES = ["", "Ab @-@ c", "Ab @-@ c", "Ab @-@ c", "Ab @-@ c", "Ab @-@ c", "B = 2", "B = 2", "B = 2"]
ROWS = [("a b", "Alpha"), ("c d", None), ("e f", "Beta"), ("g h", 7)]
JSONL = "".join(json.dumps({"text": text, "title": title}) + "\n" for text, title in ROWS)


def titles(*paths, split: str = "train", **settings) -> list[str]:
    patterns = [str(path) for path in paths]
    corpus = Corpus(dataset="files", **{"train": patterns, "validation": patterns, **settings})
    return [document.title for document in read_documents(corpus, split)]


@pytest.mark.parametrize(
    ("name", "content", "settings", "expected"),
    [
        ("wiki.train.tokens", WIKITEXT, {}, ARTICLES),
        ("wiki.train.tokens", WIKITEXT, {"detokenize": True}, [each.replace(" @-@ ", "-") for each in ARTICLES]),
        ("a.txt", "a\n\nb\n", {"txt_document": "file"}, ["a.txt"]),
        ("a.txt", " = A = \na\n", {"txt_document": "file"}, ["a.txt"]),  # the file is the document, whatever is in it
        ("a.txt", "a\n\nb\n", {}, ["", "", ""]),  # a line has no name
        ("a.txt", "a\n\nb\n", {"txt_document": "paragraph"}, ["", ""]),
        ("a.jsonl", JSONL, {}, ["Alpha", "", "Beta", ""]),  # a number is no name
        ("a.jsonl", JSONL, {"where": {"title": ["Beta"]}}, ["Beta"]),
        ("a.jsonl", '{"title": "a b"}\n', {"text_field": "title"}, [""]),  # it is the text
        ("a.jsonl", '{"text": " = A = \\n \\n a b \\n"}\n{"text": " = B = \\n c"}\n', {}, ["A", "B"]),  # whole articles
        ("a.csv", "title,text\nAlpha,a b\n,c d\n", {}, ["Alpha", ""]),
        ("b.csv", "text\na b\n", {}, [""]),
    ],
)
def test_a_document_has_the_name_that_its_source_gives_it(file, name, content, settings, expected):
    assert titles(file(name, content), **settings) == expected


def test_a_row_of_a_parquet_file_has_the_text_of_its_column_title(tmp_path):
    frame = pd.DataFrame({"text": ["a b", "c d"], "title": ["Alpha", None]})
    frame.to_parquet(tmp_path / "a.parquet")
    frame.assign(title=[[1, 2], [3]]).to_parquet(tmp_path / "b.parquet")  # lists are no names
    frame[["text"]].to_parquet(tmp_path / "c.parquet")
    assert [titles(tmp_path / f"{name}.parquet") for name in "abc"] == [["Alpha", ""], ["", ""], ["", ""]]
    assert titles(tmp_path / "a.parquet", where={"title": ["Alpha"]}) == ["Alpha"]
    assert titles(tmp_path / "a.parquet", text_field="title") == ["", ""]


def test_an_article_of_wikitext_ends_with_its_file(file):
    assert titles(file("a.tokens", " = A = \na\n"), file("b.tokens", "b\n = B = \n")) == ["A", "A", "", "B"]


def test_a_name_decides_no_split(file):
    """A document is in the split that its text selects, with or without a name."""
    texts = [f"text {number}" for number in range(200)]
    named = file("a.jsonl", "".join(json.dumps({"text": text, "title": text[::-1]}) + "\n" for text in texts))
    plain = file("b.jsonl", "".join(json.dumps({"text": text}) + "\n" for text in texts))
    for split in ("train", "validation"):
        found = [
            [each.text for each in read_documents(Corpus(dataset="files", train=[str(path)]), split)]
            for path in (named, plain)
        ]
        assert found[0] == found[1] and 0 < len(found[0]) < 200


def test_a_line_of_very_many_signs_is_no_heading():
    """A search that tried all pairs of them would take hours."""
    assert not HEADING.match(" = " + "a = " * 250_000 + "\x00")


def write(path, *documents: Document, **attributes):
    encoded = encode(documents, LETTERS, 30, Corpus(splitter="line", pretokenized=True))
    write_corpus(path, encoded, [0], True, attributes)
    return read_corpus(path)


def test_names_come_back_shortened_and_on_one_line(tmp_path):
    hostile = "<b>\x1b[31m\u202e " + "x" * 10_000
    named = [("", "a"), ("A\n \tB", "b c"), ("none of an empty one", " "), (hostile, "d e"), ("\ud800", "f g")]
    corpus = write(tmp_path / "train.h5", *(Document(str(n), text, title) for n, (title, text) in enumerate(named)))
    assert list(corpus.document_titles) == ["", "A B", f"{hostile[:LONGEST_TITLE]}…", "\ufffd"]
    assert len(corpus.document_titles) == len(corpus.document_names)


def test_without_names_the_file_is_as_it_was(tmp_path):
    """Names change nothing else in it: neither the hash of the corpus, by which other files belong to it, nor any dataset."""
    named = write(tmp_path / "a.h5", Document("0", "a b", "A"), Document("1", "c d", "B"))
    plain = write(tmp_path / "b.h5", Document("0", "a b"), Document("1", "c d"))
    assert plain.document_titles is None and named.attributes == plain.attributes
    with h5py.File(tmp_path / "a.h5") as one, h5py.File(tmp_path / "b.h5") as other:
        assert {*one} - {*other} == {"document_title", "document_title_offset"} and not {*other} - {*one}
        assert all((one[name][...] == other[name][...]).all() for name in other if isinstance(one[name], h5py.Dataset))


def test_a_part_of_a_corpus_keeps_its_names(tmp_path, monkeypatch):
    monkeypatch.setattr(step, "LEAST", 1)
    monkeypatch.setattr(step, "TOGETHER", 2)
    for name, title in (("named", "A"), ("plain", "")):
        documents = [Document(str(number), text, title) for number, text in enumerate(["a b", "b c", "c d", "d e"])]
        write(tmp_path / f"{name}.h5", *documents, split="train")
        copied = copy_corpus(tmp_path / f"{name}.h5", tmp_path / f"{name}-part.h5")
        assert len(copied) == 2 and (copied.document_titles and [*copied.document_titles]) == (
            ["A"] * 4 if title else None
        )
