"""Which documents are of the train split, and which are held out for validation."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffkv.base.settings import Corpus
from ffkv.corpus.document import Document
from ffkv.corpus.sources import is_held_out, read_documents, select_split


def test_without_a_validation_split_a_share_is_held_out(file):
    path = file("a.txt", "\n".join(map(str, range(1000))) + "\nx")
    corpus = Corpus(dataset="files", train=[str(path)], validation_share=0.2)
    train, validation = (
        [document.text for document in read_documents(corpus, split)] for split in ("train", "validation")
    )
    assert sorted(train + validation) == sorted([*map(str, range(1000)), "x"])
    assert 0.15 < len(validation) / 1001 < 0.25  # four standard deviations are 0.05


@given(st.lists(st.text(), unique=True), st.floats(0.01, 0.98))
def test_a_larger_share_holds_out_the_same_documents_and_more(names, share):
    assert {name for name in names if is_held_out(name, share)} <= {
        name for name in names if is_held_out(name, share + 0.01)
    }


@pytest.mark.parametrize("corpus, shared", [(Corpus(), True), (Corpus(dataset="files", validation=["b"]), False)])
def test_a_split_is_selected_from_shared_documents_only(corpus, shared):
    documents = [Document("", f"{number}") for number in range(200)]
    train, validation = (list(select_split(documents, corpus, split)) for split in ("train", "validation"))
    if not shared:
        assert train == validation == documents
    assert sorted([*train, *validation]) == sorted(documents * (1 if shared else 2))
    limited = select_split(documents, corpus.model_copy(update={"limit": 3}), "train")
    assert list(limited) == train[:3]


def test_the_text_decides_and_not_how_a_path_is_written(tmp_path, monkeypatch):
    """Of the text of a file, the same documents are held out: by another path, and with a line in front."""
    monkeypatch.chdir(tmp_path)
    lines = [f"line {number}" for number in range(60)]
    Path("a.txt").write_text("\n".join(lines))
    Path("b.txt").write_text("\n".join(["a new line", *lines]))
    held_out = [
        {document.text for document in read_documents(Corpus(dataset="files", train=[path]), "validation")}
        for path in ("a.txt", str(tmp_path / "a.txt"), "b.txt")
    ]
    assert held_out[0] == held_out[1] == held_out[2] - {"a new line"}
    assert 0 < len(held_out[0]) < 30


def test_detokenized_documents_keep_their_split(file):
    path = file("a.txt", "\n".join(f"line {number} , end" for number in range(60)))
    plain = Corpus(dataset="files", train=[str(path)])
    raw = [document.text for document in read_documents(plain.model_copy(update={"detokenize": True}), "validation")]
    assert raw == [document.text.replace(" ,", ",") for document in read_documents(plain, "validation")]


def test_which_documents_are_held_out_never_changes():
    assert [number for number in range(40) if is_held_out(f"corpus:{number}", 0.1)] == [18, 21, 22, 25, 36, 38]
    assert is_held_out("\ud800", 0.999999) in (True, False)
