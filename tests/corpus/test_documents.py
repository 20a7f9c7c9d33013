"""Which documents there are: of which split, without the signs of WikiText, and from the hub. Rows of the hub: `tests/base/hub/test_rows.py`."""

from pathlib import Path

import datasets
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffkv.base.hub.commit import Commit
from ffkv.base.process.libraries import collected
from ffkv.base.settings import Corpus
from ffkv.corpus.document import Document
from ffkv.corpus.hub_rows import read_rows
from ffkv.corpus.sources import detokenize, is_held_out, read_documents, select_split


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
    smaller, larger = ({name for name in names if is_held_out(name, each)} for each in (share, share + 0.01))
    assert smaller <= larger


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


TOKENIZED = [
    ("a state @-@ of @-@ the @-@ art ship", "a state-of-the-art ship"),
    ("1 @,@ 234 @.@ 5 km", "1,234.5 km"),
    (" = = = Early life = = = ", " === Early life === "),
    (" = Robert <unk> = ", " = Robert <unk> = "),
    ('He said , " No ! " , and left .', 'He said, "No!", and left.'),
    ("the ' first ' one", "the 'first' one"),
    ("the students ' books and the dog 's", "the students' books and the dog's"),
    ("they do n't , we 'll", "they don't, we'll"),
    ("they don 't , he said ' twas '", "they don't, he said 'twas'"),
    ("Ain 't it 't Hooft", "Ain't it 't Hooft"),
    ("( 1999 ) [ a ] { b } $ 5 , £ 6", "(1999) [a] {b} $5, £6"),
    ("at 9 : 30 ; 50 % of x : 1 / 2 / 3", "at 9:30; 50% of x: 1/2/3"),
    ("from 1939 – 45 – or so – he / she", "from 1939–45 – or so – he / she"),
    ("wait ... what ? !", "wait... what?!"),
    ("x = y and a = = b", "x = y and a = = b"),
    ('one " alone', 'one " alone'),
    ("already raw, isn't it? (yes)", "already raw, isn't it? (yes)"),
    ("", ""),
]


def test_signs_go_back_to_their_words(subtests):
    for tokenized, raw in TOKENIZED:
        with subtests.test(tokenized=tokenized, raw=raw):
            assert detokenize(tokenized) == raw


def test_lines_stay_apart():
    assert detokenize(' = = A = = \n \n " b \n c " . \n') == ' == A == \n \n " b \n c ". \n'


def test_a_warning_of_the_library_becomes_a_remark_once(tmp_path, monkeypatch):
    (tmp_path / "train.jsonl").write_text('{"text": "one"}\n')
    build = datasets.load_dataset_builder

    def warn_and_build(*arguments, **options):
        datasets.logging.get_logger("datasets.builder").warning("column label left out")
        return build(*arguments, **options)

    monkeypatch.setattr(datasets, "load_dataset_builder", warn_and_build)
    with collected() as remarks:
        assert list(read_rows(Commit("dataset", str(tmp_path), "main"), "default", "train", 0)) == [{"text": "one"}]
    assert remarks == ["datasets says: column label left out"]
