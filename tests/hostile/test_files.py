"""Corpus files that nobody would write: their texts, or a message that names file and place."""

import bz2
import gzip
import io
import os
import re
import zipfile

import pyarrow as pa
import pytest
from hostile.nasty import BREAKS, NASTY, WRITERS, as_jsonl, as_parquet, load, run
from hypothesis import HealthCheck, example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from support import refused, tries

from ffkv.base.errors import UserError
from ffkv.corpus import raw_file
from ffkv.corpus.corpus_file import read_corpus
from ffkv.corpus.sources import find_files


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("kind", WRITERS)
def test_every_text_comes_back_from_every_format(tmp_path, kind, compressed):
    texts = NASTY if kind == "txt" else NASTY + BREAKS
    content = WRITERS[kind](texts)
    path = tmp_path / (f"a.{kind}.gz" if compressed else f"a.{kind}")
    path.write_bytes(gzip.compress(content) if compressed else content)
    assert load(path) == texts


RIGHT = {
    "an order mark, txt": ("a.txt", b"\xef\xbb\xbfone\ntwo\n", ["one", "two"]),
    "an order mark, jsonl": ("a.jsonl", b'\xef\xbb\xbf{"text": "one"}\n', ["one"]),
    "an order mark, csv": ("a.csv", b"\xef\xbb\xbftext\none\n", ["one"]),
    "all ends of lines": ("a.txt", b"one\rtwo\r\nthree\n\nfour", ["one", "two", "three", "", "four"]),
    "no UTF-8": ("a.txt", b"caf\xe9\n\xc0\x80\xf5\n", ["caf\ufffd", "\ufffd\ufffd\ufffd"]),
    "lone surrogates": ("a.jsonl", b'{"text": "a\\ud800b"}\n{"text": "c"}\n', ["a\ud800b", "c"]),
    "numbers without end": ("a.jsonl", b'{"n": ' + b"9" * 9999 + b', "m": -1e999, "k": NaN, "text": "a"}\n', ["a"]),
    "dates": ("a.jsonl", b'{"text": "2020-01-01"}\n{"text": "2020-01-01T00:00:00Z"}\n', ["2020-01-01", "2020-01-01T00:00:00Z"]),
    "a field that some rows lack": ("a.jsonl", b'{"n": 1}\n\n{"text": "a"}\n{"text": null}\n', ["", "a", ""]),
    "traces of a chat": ("a.jsonl", b'{"text": "a", "type": "session_meta", "payload": {}, "timestamp": "x"}\n', ["a"]),
    "a long field": ("a.csv", b'text\n"' + b"x" * 500_000 + b'"\n', ["x" * 500_000]),
    "empty rows": ("a.csv", b'\ntext\n\na\n""\n\n', ["a", ""]),
    "quotes in the middle": ("a.csv", b'text,n\na"b"c,1\n', ['a"b"c']),
    "several .gz in one": ("a.txt.gz", gzip.compress(b"one\n") + gzip.compress(b"two\n"), ["one", "two"]),
    "nothing, compressed": ("a.txt.gz", gzip.compress(b""), []),
    "nothing": ("a.csv", b"", []),
    "nothing but a header": ("a.csv", b"text\n", []),
    "nothing but an order mark": ("a.jsonl", b"\xef\xbb\xbf", []),
    "texts of a dictionary": ("a.parquet", as_parquet(["a", "b", "a"], pa.dictionary(pa.int8(), pa.string())), ["a", "b", "a"]),
    "large texts": ("a.parquet", as_parquet(["a", None, "b\0"], pa.large_string()), ["a", "", "b\0"]),
    "no text at all": ("a.parquet", as_parquet([None, None], pa.null()), ["", ""]),
}  # fmt: skip


def test_odd_files_that_are_read(subtests, tmp_path):
    for case, (name, content, texts) in RIGHT.items():
        with subtests.test(case=case):
            (tmp_path / name).write_bytes(content)
            assert load(tmp_path / name) == texts


def zipped() -> bytes:
    with zipfile.ZipFile(written := io.BytesIO(), "w") as archive:
        archive.writestr("a.txt", "one\n")
    return written.getvalue()


NO_UTF8 = pa.StringArray.from_buffers(1, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xfe"))
TABLE = as_parquet(["some text", "and more"] * 50)
DEEP = 100_000
REFUSED = {
    "UTF-16": ("a.txt", "one\ntwo\n".encode("utf-16"), "cannot be read: it is UTF-16 text: convert it to UTF-8"),
    "UTF-32": ("a.csv", "text\none\n".encode("utf-32"), "cannot be read: it is UTF-32 text"),
    "UTF-16 without a mark": ("a.jsonl", '{"text": "a"}'.encode("utf-16-le"), "cannot be read: it begins with NUL"),
    "zeros that a crash left": ("a.txt", b"one\n" + bytes(9000), "cannot be read: it begins with NUL bytes"),
    "gzip by another name": ("a.txt", gzip.compress(b"one\n"), r"it is compressed by gzip: its name must end in \.gz"),
    "gzip twice": ("a.txt.gz", gzip.compress(gzip.compress(b"one\n")), "it is compressed by gzip"),
    "bzip2": ("a.jsonl", bz2.compress(b'{"text": "a"}\n'), r"it is compressed by bzip2: its name must end in \.bz2"),
    "zip": ("a.txt", zipped(), "it is a zip archive: unpack it"),
    "parquet by another name": ("a.txt", TABLE, "it is a parquet file"),
    "no gzip": ("a.txt.gz", b"one\n", r"Not a gzipped file"),
    "half of a gzip": ("a.jsonl.gz", gzip.compress(as_jsonl(["a"] * 999))[:-30], "Compressed file ended before"),
    "a damaged gzip": ("a.txt.gz", gzip.compress(os.urandom(99))[:40] + b"\0" * 90, "cannot be read"),
    "a gzip and something": ("a.txt.gz", gzip.compress(b"one\n") + b"more", "Not a gzipped file"),
    "a gzip of half a table": ("a.parquet.gz", gzip.compress(TABLE[:-9]), r"a\.parquet\.gz cannot be read"),
    "deep JSON": ("a.jsonl", b'{"text": "a", "n": ' + b"[" * DEEP + b"]" * DEEP + b"}", r"\(line 1\): .*nested too deeply"),
    "deep JSON of objects": ("a.json", b'{"a":' * DEEP + b"1" + b"}" * DEEP, r"\(line 1\): .*nested too deeply"),
    "deep lists": ("a.json", b"[" * DEEP, r"\(line 1\): .*nested too deeply"),
    "half of a row": ("a.jsonl", b'{"text": "a"}\n{"text": "b', r"\(line 2\): not JSON: Unterminated string"),
    "two rows in a line": ("a.jsonl", b'{"text": "a"} {"text": "b"}\n', r"\(line 1\): not JSON: Extra data at character 15"),
    "an object over lines": ("a.json", b'{\n"text": "a"\n}\n', r"\(line 1\): not JSON"),
    "a NUL in a string": ("a.jsonl", b'{"text": "a\0"}\n', r"\(line 1\): not JSON: Invalid control character"),
    "no UTF-8 in JSON": ("a.jsonl", b'{"text": "a"}\n{"text": "\xff"}\n', r"\(line 2\): bytes that are not UTF-8 text"),
    "a field twice": ("a.jsonl", b'{"text": "a", "text": "b"}\n', r"\(line 1\): the key 'text' occurs twice"),
    "another type": ("a.jsonl", b'{"text": "a"}\n{"text": 3}\n', "a.jsonl, line 2: field 'text' contains int, not text"),
    "an object": ("a.jsonl", b'{"text": {"text": "a"}}\n', "a.jsonl, line 1: field 'text' contains dict, not text"),
    "no object": ("a.jsonl", b'"text"\n', "a.jsonl, line 1: contains str, not an object"),
    "no objects": ("a.json", b'[{"text": "a"}, ["text"]]', "a.json, row 1: contains list, not an object"),
    "another field": ("a.jsonl", b'{"body": "a", "n": 1}\n', r"a\.jsonl has no field 'text'; it has 'body', 'n'\."),
    "short rows": ("a.csv", b"text,n\na,1\nb\n", r"\(line 3\): a row of 1 fields, where the header has 2"),
    "long rows": ("a.csv", b"text,n\na,1\nb,2,3\n", r"\(line 3\): a row of 3 fields, where the header has 2"),
    "a quote that is not closed": ("a.csv", b'text\na\n"b\nc\nd\n', r"\(line 3\): unexpected end of data in the row that"),
    "text behind a quote": ("a.csv", b'text\n"a" b\n', r"\(line 2\): ',' expected after '\"'"),
    "two columns of a name": ("a.csv", b"text,text\na,b\n", r"a\.csv has more than one field 'text'"),
    "semicolons": ("a.csv", b"text;n\na;1\n", "a.csv has no field 'text'; it has 'text;n'"),
    "numbers, parquet": ("a.parquet", as_parquet([1, 2]), "row 0: field 'text' contains int, not text"),
    "lists, parquet": ("a.parquet", as_parquet([["a"], ["b"]]), "row 0: field 'text' contains list, not text"),
    "bytes, parquet": ("a.parquet", as_parquet([None, b"a"]), "row 1: field 'text' contains bytes, not text"),
    "no UTF-8, parquet": ("a.parquet", as_parquet(NO_UTF8), "not UTF-8"),
    "half a table": ("a.parquet", TABLE[: len(TABLE) // 2], r"a\.parquet cannot be read"),
    "no table": ("a.parquet", b"", r"a\.parquet cannot be read"),
}  # fmt: skip


def test_files_that_are_refused_by_name_and_place(subtests, byte_model, tmp_path):
    for case, (name, content, message) in REFUSED.items():
        with subtests.test(case=case):
            (tmp_path / name).write_bytes(content)
            result, output = run(byte_model, tmp_path / name, tmp_path)
            assert isinstance(result.exception, UserError), result.exception
            assert str(tmp_path / name) in str(result.exception)
            assert re.search(message, str(result.exception)), result.exception
            assert "\n" not in str(result.exception)
            assert len(str(result.exception)) < 900
            assert not output.exists()


def test_lines_without_end_are_refused_before_they_fill_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(raw_file, "MAX_CHARACTERS", 10_000)
    bomb = gzip.compress(b"a" * 10_000_000)
    for name in ("a.txt.gz", "a.csv.gz", "a.jsonl.gz"):
        (tmp_path / name).write_bytes(bomb)
        with refused(r"\(line 1\): the line is longer than 10,000 characters"):
            load(tmp_path / name)
    with refused("as one document it is longer than 10,000 characters"):
        load(tmp_path / "a.txt.gz", txt_document="file")
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"aaaa\n" * 5000))
    with refused(r"\(line 2,001\): the paragraph is longer than 10,000 characters"):
        load(tmp_path / "b.txt.gz", txt_document="paragraph")
    (tmp_path / "b.json").write_bytes(b"[\n" + b'{"text": "a"},' * 5000)
    with refused("its list is longer than 10,000 bytes"):
        load(tmp_path / "b.json")
    (tmp_path / "b.csv").write_bytes(b'text\n"' + b"aaaa\n" * 5000)
    with refused(r"\(line 2\): the row is longer than 10,000 characters"):
        load(tmp_path / "b.csv")


def test_links_in_circles_neither_hang_nor_repeat_a_document(tmp_path, monkeypatch):
    """Two links to the folder above: a walk that follows both has 2**40 paths."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts/deep").mkdir(parents=True)
    (tmp_path / "texts/deep/a.txt").write_text("one\n")
    for name in ("up", "again"):
        (tmp_path / "texts/deep" / name).symlink_to("..")
    (tmp_path / "texts/self").symlink_to("self")
    (tmp_path / "texts/b.txt").symlink_to("deep/a.txt")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/c.txt").write_text("two\n")
    (tmp_path / "texts/linked").symlink_to("../elsewhere")
    assert find_files(["texts/**"]) == ["texts/b.txt", "texts/linked/c.txt"]
    assert sorted(find_files(["**/deep/*.txt", "texts/**/**/c.txt"])) == ["texts/deep/a.txt", "texts/linked/c.txt"]


@pytest.mark.parametrize(
    "pattern", ["x" * 5000, ".", "..", "[", "**", "*" * 60 + "/a", "{a,b}.txt", "/dev/zero", "pipe.txt", " ", "~"]
)
def test_patterns_that_match_no_file_are_refused(tmp_path, monkeypatch, pattern):
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    os.mkfifo("pipe.txt")
    with refused(f"'{pattern}' is a folder. " if pattern in (".", "..") else "No corpus file matches "):
        load(pattern)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_file_that_may_not_be_read_is_named(tmp_path):
    (tmp_path / "a.txt").write_text("one\n")
    (tmp_path / "a.txt").chmod(0)
    with refused(r"a\.txt cannot be read: Permission denied"):
        load(tmp_path / "a.txt")


def test_a_disk_that_fails_is_named(tmp_path, monkeypatch):
    class Failing(io.RawIOBase):
        def readable(self):
            return True

        def readinto(self, buffer):
            raise OSError(5, "Input/output error")

    (tmp_path / "a.txt").write_text("one\n")
    monkeypatch.setitem(raw_file.UNPACK, ".txt", lambda packed: io.BufferedReader(Failing()))
    with refused(r"a\.txt cannot be read: Input/output error"):
        load(tmp_path / "a.txt")


VALID = {kind: write(["some text", "=1+1", 'a "b", c', "é\u202e"] * 3) for kind, write in WRITERS.items()}


@st.composite
def damaged(draw, kind: str) -> bytes:
    """A file of a kind, with some of its bytes cut, changed, repeated or made up."""
    content = bytearray(VALID[kind])
    for _ in range(draw(st.integers(1, 4))):
        place, size = draw(st.integers(0, len(content))), draw(st.integers(0, 12))
        content[place : place + size] = draw(
            st.binary(max_size=12) | st.sampled_from([b"", b'"', b"\0", b"\n", b"{", b"[", b"\xff", b'"text"', b"1e9"])
        )
    return bytes(content)


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("compressed", [False, True])
def test_whatever_the_bytes_are_there_are_texts_or_a_user_error(tmp_path, kind, compressed):
    path = tmp_path / (f"a.{kind}.gz" if compressed else f"a.{kind}")

    @given(damaged(kind) | st.binary(max_size=200), st.sampled_from(["line", "paragraph", "file"]))
    @example(b"", "line")
    @example(b"\xef", "line")
    @example(b"\xef\xbb\xbfa", "line")
    @hypothesis_settings(max_examples=tries(120), suppress_health_check=list(HealthCheck))
    def check(content, unit):
        packed = gzip.compress(content)
        path.write_bytes(packed if compressed else content)
        try:
            found = load(path, txt_document=unit)
        except UserError as error:
            assert str(path) in str(error)
            assert "\n" not in str(error)
        else:
            assert all(isinstance(text, str) for text in found)
            if kind == "txt" and unit == "line":  # here it is plain what is right
                whole = content.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace")
                assert found == re.split("\r\n|\r|\n", whole)[: len(found)]
                assert "".join(found) == re.sub("[\r\n]", "", whole)

    check()


@given(
    st.lists(st.text(st.characters(codec="utf-8")) | st.sampled_from(NASTY + BREAKS), max_size=8),
    st.sampled_from(["jsonl", "json", "csv", "parquet"]),
)
@hypothesis_settings(max_examples=tries(150), suppress_health_check=list(HealthCheck))
def test_every_unicode_text_comes_back(tmp_path_factory, texts, kind):
    path = tmp_path_factory.getbasetemp() / f"unicode.{kind}"
    path.write_bytes(WRITERS[kind](texts))
    assert load(path) == texts


@given(content=st.binary(max_size=300))
@example(content="\ud800".encode("utf-16-le", "surrogatepass") * 20)
@example(content=b"\xed\xa0\x80 \xf4\x90\x80\x80\n\xed\xb0\x80")
@hypothesis_settings(max_examples=tries(60), suppress_health_check=list(HealthCheck))
def test_the_command_ends_in_a_file_or_a_user_error(byte_model, tmp_path, content):
    for name in ("a.txt", "a.csv"):
        (tmp_path / name).write_bytes((b"text\n" if name == "a.csv" else b"") + content)
        result, output = run(byte_model, tmp_path / name, tmp_path, "--splitter", "line")
        assert result.exit_code == 0 or isinstance(result.exception, UserError), result.exc_info
        if result.exit_code == 0:
            assert len(read_corpus(output)) >= 2
