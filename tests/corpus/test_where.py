"""Rows that `corpus.where` chooses: by text, number and truth value, inside nested columns, from every kind of source."""

import datetime
import gzip
import json
from pathlib import Path

import click
import pyarrow
import pyarrow.parquet
import pytest
import zstandard
from click.testing import CliRunner

from ffkv.base.errors import UserError
from ffkv.base.options import command_line, setting
from ffkv.branches.settings import Corpus, Settings, section
from ffkv.corpus.rows import is_wanted
from ffkv.corpus.sources import read_documents
from ffkv.corpus.step import encode_corpus

ROWS = [
    {"text": "one", "language": "en", "score": 3, "meta": {"set": "web", "deep": {"x": 1.5}}},
    {"text": "two", "language": "de", "score": 4, "meta": {"set": "code", "deep": {"x": 2.0}}},
    {"text": "three", "language": "en", "score": 4, "meta": {"set": "code", "deep": {"x": 0.1}}},
    {"text": None, "language": None, "score": None, "meta": None},
    {"text": "four", "language": "no", "score": 10, "meta": {"set": "web", "deep": None}},
]
KINDS = ("jsonl", "json", "jsonl.gz", "jsonl.zst", "parquet", "csv")
FLAT = ("language", "score")


def write(folder: Path, kind: str, rows=ROWS, name="a") -> str:
    """A file of rows. A csv file has no nested columns, and its missing values are empty texts."""
    path = folder / f"{name}.{kind}"
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    if kind == "parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=2)
    elif kind == "csv":
        cells = [[row["text"] or "", *(row[name] if row[name] is not None else "" for name in FLAT)] for row in rows]
        path.write_text("\n".join(",".join(map(str, row)) for row in [["text", *FLAT], *cells]))
    else:
        content = json.dumps(rows).encode() if kind == "json" else lines
        pack = {"gz": gzip.compress, "zst": zstandard.compress}.get(kind.rpartition(".")[2], bytes)
        path.write_bytes(pack(content))
    return str(path)


def documents(path: str, where, **settings) -> dict[str, str]:
    """Row in the file to text, of the documents that are read."""
    corpus = section(Corpus, dataset="files", train=[path], where=where, validation_share=1e-9, **settings)
    return {document.name.rpartition(":")[2]: document.text for document in read_documents(corpus, "train")}


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_every_kind_of_file(kind, tmp_path):
    path = write(tmp_path, kind)
    assert documents(path, {}) == {"0": "one", "1": "two", "2": "three", "3": "", "4": "four"}
    assert documents(path, {"language": "en"}) == {"0": "one", "2": "three"}
    assert documents(path, {"language": ["de", "no"]}) == {"1": "two", "4": "four"}
    assert documents(path, {"score": 4}) == documents(path, {"score": "4"}) == {"1": "two", "2": "three"}
    assert documents(path, {"score": 4, "language": "en"}) == {"2": "three"}
    assert documents(path, {"text": "two"}) == {"1": "two"}
    assert documents(path, {"language": "EN"}) == {}
    # `limit` counts what is left
    assert documents(path, {"score": [4, 10]}, limit=2) == {"1": "two", "2": "three"}


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "csv"])
def test_columns_inside_columns(kind, tmp_path):
    path = write(tmp_path, kind)
    assert documents(path, {"meta.set": "web"}) == {"0": "one", "4": "four"}
    assert documents(path, {"meta.set": ["web", "code"], "meta.deep.x": 2}) == {"1": "two"}
    assert documents(path, {"meta.deep.x": 0.1}) == {"2": "three"}
    dotted = write(
        tmp_path, kind, [{"text": "a", "b.c": "x", "b": {"c": "y"}}, {"text": "b", "b.c": "y", "b": None}], "d"
    )
    assert documents(dotted, {"b.c": "y"}) == {"1": "b"}  # a column of this name comes first


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_column_names_those_there_are(kind, tmp_path):
    path = write(tmp_path, kind)
    with pytest.raises(UserError, match=r"a\.\w+.*no column 'lang'; it has 'text', 'language', 'score'.*where"):
        documents(path, {"lang": "en"})
    if kind != "csv":
        with pytest.raises(UserError, match=r"has no column 'meta\.sets'; it has .*'meta\.set', 'meta\.deep\.x'"):
            documents(path, {"meta.sets": "web"})
        for inside in ("language.x", "meta.set.x"):
            with pytest.raises(UserError, match=f"has no column '{inside}'"):
                documents(path, {inside: "web"})


def test_what_cannot_be_compared_is_refused(tmp_path):
    listed = write(tmp_path, "jsonl", [{"text": "a", "tags": ["x"]}])
    with pytest.raises(UserError, match=r"a\.jsonl, line 1: column 'tags' contains list"):
        documents(listed, {"tags": "x"})
    with pytest.raises(UserError, match=r"column 'meta' contains dict.*Name a column inside it: 'meta\.set'"):
        documents(write(tmp_path, "jsonl"), {"meta": "web"})
    (tmp_path / "a.txt").write_text("one\n")
    with pytest.raises(UserError, match=r"a\.txt: corpus\.where chooses rows by their columns, and a txt file"):
        documents(str(tmp_path / "a.txt"), {"a": "b"})
    (tmp_path / "b.csv").write_text("text,a,a\nx,1,2\n")
    with pytest.raises(UserError, match="more than one field 'a'"):
        documents(str(tmp_path / "b.csv"), {"a": "1"})
    (tmp_path / "c.jsonl").write_text('{"text": "a", "n": ' + "9" * 5000 + "}\n")
    with pytest.raises(UserError, match=r"c\.jsonl cannot be read \(line 1\)"):
        documents(str(tmp_path / "c.jsonl"), {"n": "1"})


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "csv"])
def test_the_text_may_lie_inside_another_column(tmp_path, kind):
    path = write(tmp_path, kind)
    found = documents(path, {"language": ["en"]}, text_field="meta.set")
    assert found == {"0": "web", "2": "code"}
    assert [*documents(path, {}, text_field="meta.set").values()] == ["web", "code", "code", "", "web"]
    with pytest.raises(UserError, match=r"has no field 'meta\.name'; it has .*'meta\.set'"):
        documents(path, {}, text_field="meta.name")


def test_a_column_whose_own_name_has_a_dot_comes_first(tmp_path):
    (tmp_path / "a.csv").write_text("doc.text,n\none,1\n")
    (tmp_path / "b.jsonl").write_text('{"doc.text": "two", "doc": {"text": "other"}}\n')
    assert [*documents(str(tmp_path / "a.csv"), {}, text_field="doc.text").values()] == ["one"]
    assert [*documents(str(tmp_path / "b.jsonl"), {}, text_field="doc.text").values()] == ["two"]


@pytest.mark.parametrize(
    ("value", "wanted", "answer"),
    [
        (True, ["true"], True),
        (True, ["True"], True),
        (True, ["1"], False),
        (False, ["true"], False),
        ("true", ["true"], True),
        (1, ["true"], False),
        (3, ["3.0"], True),
        (3.0, ["3"], True),
        (0.1, ["0.1"], True),
        (float("nan"), ["nan"], False),
        (10**30, [str(10**30)], True),
        (3, ["three", "3"], True),
        ("3.0", ["3"], False),
        ("", [""], True),
        (None, ["None", "null", ""], False),
        (datetime.date(2020, 1, 2), ["2020-01-02"], True),
    ],
)
def test_values_are_compared_by_the_type_of_the_column(value, wanted, answer):
    assert is_wanted({"a": value}, {"a": wanted}, "here") is answer


@pytest.mark.parametrize(
    "where",
    [["a"], {"a": []}, {"a": None}, {"a": {"b": 1}}, {"a": [[1]]}, {"": 1}, {"a=b": 1}, {3: 1}, {"a": "\0"}, "a"],
)
def test_settings_that_are_refused(where):
    with pytest.raises(UserError, match=r"where is .*must"):
        section(Corpus, dataset="files", train=["a"], where=where)


def test_words_that_yaml_takes_for_truth_values_are_refused_beside_texts():
    with pytest.raises(UserError, match="in quotes"):
        section(Corpus, dataset="files", train=["a"], where={"language": ["en", False]})
    with pytest.raises(UserError, match=r"corpus\.where is set, but corpus\.dataset is 'embedded'"):
        section(Corpus, where={"language": "en"})


def test_the_setting_reaches_a_command_as_it_is():
    where = {"language": ["en", "a = 'b'"], "meta.set": 3, "good": True}
    settings = Settings(corpus=Corpus(dataset="files", train=["a"], where=where)).model_dump()
    assert settings["corpus"]["where"] == {"language": ["en", "a = 'b'"], "meta.set": ["3"], "good": ["true"]}

    @click.command()
    @setting(Corpus, "where")
    def show(where):
        click.echo(json.dumps(where))

    import shlex

    told = CliRunner().invoke(show, shlex.split(command_line(settings, "corpus/where")))
    assert json.loads(told.output) == settings["corpus"]["where"]
    assert json.loads(CliRunner().invoke(show, []).output) == {}
    assert CliRunner().invoke(show, ["--where", "=x"]).exit_code == 2


def test_any_number_of_processes_writes_the_same_bytes_and_counts_what_is_left_out(byte_model, tmp_path):
    rows = [{"text": f"Text {number}. And more.", "n": number % 3, "odd": number % 2 == 1} for number in range(3000)]
    path, written = write(tmp_path, "jsonl", rows), set()
    for limit, read, left_out in ((0, 500, 2500), (100, 100, 499)):
        for processes in (1, 3):
            corpus = section(
                Corpus, dataset="files", train=[path], where={"n": 1, "odd": False}, limit=limit, validation_share=1e-9
            )
            made = encode_corpus(byte_model, "train", corpus, tmp_path / "train.h5", processes)
            counts = json.loads(made.attributes["counts"])
            assert (counts["documents"], counts["left_out_documents"]) == (read, left_out)
            written.add((limit, (tmp_path / "train.h5").read_bytes()))
            del made
    assert len(written) == 2
    with pytest.raises(UserError, match=r"left out documents: 3000"):
        corpus = section(Corpus, dataset="files", train=[path], where={"n": 7})
        encode_corpus(byte_model, "train", corpus, tmp_path / "train.h5")
