"""Files of labels: what is read, what is left out, and what is refused, by line."""

import gzip
import json
import re
import sys

import numpy as np
import pytest
from support import refused as refused_by

from ffkv.base.errors import UserError
from ffkv.branches.concepts.draw import LEAST, draw
from ffkv.branches.concepts.labels import read_labels, task_files
from ffkv.branches.settings import Concept

ROWS = [("a", "no"), ("b", "yes"), ("c", "no"), ("d", "yes")]


def refused(message):
    return refused_by(re.escape(message))


def its(**options):
    return Concept(labels="x.csv", **options)


def write(path, rows=ROWS, header="text,label", sign=","):
    path.write_text("\n".join([header.replace(",", sign), *(sign.join(row) for row in rows)]) + "\n")
    return str(path)


@pytest.mark.parametrize("name", ["x.csv", "x.tsv", "x.jsonl", "x.csv.gz"])
def test_a_file_of_each_kind(tmp_path, name):
    path = tmp_path / name
    if "jsonl" in name:
        path.write_text("".join(json.dumps({"prompt": text, "target": label == "yes"}) + "\n" for text, label in ROWS))
    elif "gz" in name:
        plain = write(tmp_path / "plain.csv")
        path.write_bytes(gzip.compress((tmp_path / "plain.csv").read_bytes()))
        assert plain
    else:
        write(path, sign="\t" if "tsv" in name else ",")
    found = read_labels(str(path), its())
    assert (found.texts, found.positive) == (["a", "b", "c", "d"], [False, True, False, True])
    assert found.label == ("true" if "jsonl" in name else "yes") and found.train is None and not found.left_out


def test_own_names_of_fields_documents_and_splits(tmp_path):
    rows = [("a", "1", "A", "train"), ("b", "0", "A", "train"), ("c", "0", "B", "test")]
    path = write(tmp_path / "x.csv", rows, "question,is_true,book,split")
    found = read_labels(path, its(fields={"text": "question", "label": "is_true", "document": "book"}))
    assert (found.document, found.train, found.positive) == ([0, 0, 1], [True, True, False], [True, False, False])


def test_what_is_left_out_is_counted_by_line(tmp_path):
    rows = [*ROWS, ("a", "no"), ("e", "yes"), ("e", "no"), ("f", ""), ("", "yes")]
    found = read_labels(write(tmp_path / "x.csv", rows), its())
    assert found.texts == ["a", "b", "c", "d"]
    assert "1 texts that are doubled (line 6)" in found.left_out
    assert "2 texts that have both labels (line 7, line 8)" in found.left_out
    assert "2 texts or labels that are empty (line 9, line 10)" in found.left_out


def test_a_doubled_text_is_in_one_half_alone(tmp_path):
    rows = [("a", "1", "train"), ("b", "0", "train"), ("a", "1", "test"), ("c", "0", "test")]
    found = read_labels(write(tmp_path / "x.csv", rows, "text,label,split"), its())
    assert (found.texts, found.train) == (["a", "b", "c"], [True, True, False])


def test_one_label_of_several(tmp_path):
    path = write(tmp_path / "x.csv", [*ROWS, ("e", "perhaps")])
    assert read_labels(path, its(positive="yes")).positive == [False, True, False, True, False]
    with refused("has 3 labels: 'no' (2), 'perhaps' (1), 'yes' (2). Set `positive`"):
        read_labels(path, its())
    with refused("has no label 'never'"):
        read_labels(path, its(positive="never"))


BAD = {
    "one label": ("text,label\na,1\nb,1\n", "one label alone: '1' (2)"),
    "no label": ("text,label\na,\n", "no text with a label"),
    "no field": ("words,label\na,1\n", "no field 'text' or 'prompt'. It has 'words', 'label'"),
    "fields": ("text,label\na,1\nb,1,2\n", "(line 3): a row of 3 fields, where the header has 2"),
    "quote": ('text,label\n"a,1\n', "(line 2)"),
    "split": ("text,label,split\na,1,dev\n", "line 2: the split is 'dev'. It must be train or test"),
    "both": ("text,label,group,split\na,1,A,train\nb,0,A,test\n", "the document 'A' is in both splits"),
    "empty": ("", "no text with a label"),
    "contradictions": ("text,label\na,1\na,0\n", "no text with one label alone"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_refused(tmp_path, name):
    text, message = BAD[name]
    (tmp_path / "x.csv").write_text(text)
    with refused(message):
        read_labels(str(tmp_path / "x.csv"), its())


def test_other_encodings_are_refused_by_line(tmp_path):
    path = tmp_path / "x.csv"
    path.write_bytes("text,label\na,1\nbé,0\n".encode("latin-1"))
    with refused("(line 3): bytes that are not UTF-8 text"):
        read_labels(str(path), its())
    path.write_bytes("text,label\na,1\n".encode("utf-16"))
    with refused("UTF-16"):
        read_labels(str(path), its())
    path.write_bytes("text,label\na,1\nb,0\n".encode("utf-8-sig"))
    assert read_labels(str(path), its()).texts == ["a", "b"]


def test_broken_json_and_rows_that_are_no_objects(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"text": "a", "label": 1}\n{"text"\n')
    with refused("(line 2): not JSON"):
        read_labels(str(path), its())
    path.write_text("[1, 2]\n")
    with refused("row 0: contains int, not an object"):
        read_labels(str(path), its())


def test_files_that_a_pattern_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a.csv")
    write(tmp_path / "b.tsv", sign="\t")
    assert task_files("a.csv") == {"": "a.csv"}
    assert task_files("*.?sv") == {"a": "a.csv", "b": "b.tsv"}
    with refused("No file of labels matches 'none.csv'"):
        task_files("none.csv")
    (tmp_path / "a.pdf").write_text("x")
    with refused("a.pdf: labels are read from files whose names end in csv"):
        task_files("a.pdf")


def test_tasks_of_a_package_whose_code_never_runs(tmp_path, monkeypatch):
    """A package that looks like sae-probes: data below a folder, and a module that would fail."""
    data = tmp_path / "look_alike/data"
    data.mkdir(parents=True)
    (tmp_path / "look_alike/__init__.py").write_text("raise RuntimeError")
    write(data / "1_one.csv", header="prompt,target")
    (data / "2_two.csv.gz").write_bytes(gzip.compress((data / "1_one.csv").read_bytes()))
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert task_files("package:look_alike/1_one") == {"": str(data / "1_one.csv")}
    assert [*task_files("package:look_alike/*")] == ["1_one", "2_two"]
    assert read_labels(str(data / "2_two.csv.gz"), its()).texts == ["a", "b", "c", "d"]
    with refused("No file of labels matches 'package:look_alike/3*'"):
        task_files("package:look_alike/3*")


def test_halves_are_balanced_and_documents_are_whole():
    generator = np.random.default_rng(0)
    positive, document = generator.random(300) < 0.3, generator.integers(0, 60, 300)
    drawn, train = draw(positive, document, None, 100, generator)
    assert len({*drawn.tolist()}) == len(drawn) == 100
    for half in (train, ~train):
        assert positive[drawn][half].sum() == 25 == (~positive[drawn][half]).sum()
    assert not {*document[drawn][train].tolist()} & {*document[drawn][~train].tolist()}


def test_own_halves_stay():
    train = np.arange(80) < 40
    drawn, own = draw(np.arange(80) % 2 > 0, np.arange(80), train, 400, np.random.default_rng(0))
    assert (own == train[drawn]).all() and len(drawn) == 80


def test_too_few_texts_are_refused():
    positive = np.arange(40) < 2 * LEAST - 1
    with pytest.raises(UserError, match="too few texts"):
        draw(positive, np.arange(40), None, 400, np.random.default_rng(0))
