"""Documents from files, or from the hub."""

import errno
import glob
import gzip
import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import zstandard
from support import obeying_rights

from ffkv.base.errors import UserError
from ffkv.base.settings import Corpus
from ffkv.corpus import sources
from ffkv.corpus.document import Document
from ffkv.corpus.sources import find_files, read_documents
from ffkv.corpus.step import encode_corpus


def texts(*patterns, split: str = "train", **settings) -> list[str]:
    patterns = [str(pattern) for pattern in patterns]
    corpus = Corpus(dataset="files", train=patterns, validation=patterns, **settings)
    return [document.text for document in read_documents(corpus, split)]


def test_a_line_of_a_text_file_is_a_document(file):
    path = file("a.txt", "one. two.\n\n three\r\nfour 😀")
    assert texts(path) == ["one. two.", "", " three", "four 😀"]


def test_line_breaks_of_a_text_file_are_kept_if_white_space_is(file):
    content = "\ufeff  one\r\n\ttwo \r\n\r\n  three\rfour\n"
    path = file("a.txt", content)
    kept = {unit: texts(path, txt_document=unit, white_space="keep") for unit in ("line", "paragraph", "file")}
    assert kept == {
        "line": ["  one", "\ttwo ", "", "  three", "four"],
        "paragraph": ["  one\r\n\ttwo ", "  three\rfour"],
        "file": [content[1:]],
    }
    assert texts(path, txt_document="paragraph") == ["  one\n\ttwo ", "  three\nfour"]
    assert texts(path, txt_document="file") == ["  one\n\ttwo \n\n  three\nfour\n"]


def test_names_say_which_file_and_row(file):
    path = file("a.txt", "one\ntwo\n")
    corpus = Corpus(dataset="files", train=[str(path)], validation=[str(path)])
    assert list(read_documents(corpus, "train")) == [Document(f"{path}:0", "one"), Document(f"{path}:1", "two")]


@pytest.mark.parametrize(
    "name, content, rows",
    [
        ("a.jsonl", '{"text": "a\\nb"}\n{"text": null}\n{"text": "\\ud83d\\ude00"}\n', ["a\nb", "", "😀"]),
        ("a.json", '[{"text": "a"}, {"text": "b"}]', ["a", "b"]),
        ("a.csv", 'text,n\n"a, ""b""\nc",1\nnull,2\nNA,\n=1+1,4\n,5\n', ['a, "b"\nc', "null", "NA", "=1+1", ""]),
        ("wiki.train.tokens", " \n = A = \n", [" ", " = A = "]),  # WikiText's own names
        ("a.txt", b"ok\n\xff bad\n", ["ok", "\ufffd bad"]),  # bytes that are no UTF-8
        ("b.csv", b"text\nok\n\xff bad\n", ["ok", "\ufffd bad"]),
    ],
)
def test_a_row_of_a_file_is_a_document(file, name, content, rows):
    assert texts(file(name, content)) == rows


def test_numbers_dates_and_truth_values_of_a_csv_file_stay_as_they_are_written(file):
    written = ["007", "1.50", "True", "2020-01-01", "1e5", "inf"]
    assert texts(file("a.csv", "\n".join(["text", *written]))) == written
    many = ["007"] * 20_000 + ["hello"]  # a reader that guesses types by the piece would make sevens of these
    assert texts(file("b.csv", "\n".join(["text", "hello", *many]))) == ["hello", *many]


def test_a_row_of_a_parquet_file_is_a_document(tmp_path):
    pd.DataFrame({"body": ["a", None, "null\0"], "text": [1, 2, 3]}).to_parquet(tmp_path / "a.parquet")
    assert texts(tmp_path / "a.parquet", text_field="body") == ["a", "", "null\0"]


@pytest.mark.parametrize(
    "name, content",
    [("a.txt", "one\n"), ("A.TXT", "one\n"), ("a.csv", "text\none\n"), ("a.jsonl", '{"text": "one"}\n')],
)
def test_compressed_files_are_read_as_they_are(file, name, content):
    assert texts(file(f"{name}.gz", gzip.compress(content.encode()))) == ["one"]
    assert texts(file(f"{name}.ZST", zstandard.compress(content.encode()))) == ["one"]


def test_a_compressed_parquet_file_is_unpacked(tmp_path, file):
    pd.DataFrame({"text": ["a", "b"]}).to_parquet(tmp_path / "a.parquet")
    packed = (tmp_path / "a.parquet").read_bytes()
    assert texts(file("b.parquet.gz", gzip.compress(packed))) == ["a", "b"]
    assert texts(file("b.parquet.zst", zstandard.compress(packed))) == ["a", "b"]
    with pytest.raises(UserError, match=r"parquet\.zst cannot be read: it is not a parquet file that was compressed"):
        texts(file("c.parquet.zst", zstandard.compress(b"something else")))


LINES = "".join(f"line {number}\n" for number in range(50_000)).encode()


def test_a_zst_file_of_several_frames_is_read_to_its_end(file):
    parts = [zstandard.compress(LINES[:100_001]), zstandard.compress(LINES[100_001:])]
    assert texts(file("a.txt.zst", b"".join(parts))) == LINES.decode().splitlines()
    assert texts(file("b.txt.zst", b""), file("a.txt", "one\n")) == ["one"]


def damaged() -> dict[str, bytes]:
    checked = bytearray(zstandard.ZstdCompressor(write_checksum=True).compress(LINES))
    checked[-1] ^= 1
    return {
        "cut": zstandard.compress(LINES)[:-20],
        "cut in the header": zstandard.compress(LINES)[:3],
        "changed": bytes(checked),
        "garbage behind": zstandard.compress(LINES) + b"garbage",
        "no zstd": b"one\ntwo\n",
        # A frame of three bytes that asks for a window of 2 GiB.
        "window": b"\x28\xb5\x2f\xfd\x00\xa8" + (3 << 3 | 1).to_bytes(3, "little") + b"abc",
    }


@pytest.mark.parametrize("kind", damaged())
@pytest.mark.parametrize("name", ["a.txt.zst", "a.parquet.zst"])
def test_a_damaged_zst_file_is_named_in_one_sentence(file, capfd, kind, name):
    with pytest.raises(UserError, match=rf".*{name} cannot be read.*: ") as refused:
        texts(file(name, damaged()[kind]), txt_document="line")
    assert "\n" not in str(refused.value)
    assert capfd.readouterr().err == ""


def test_packed_text_without_its_ending_is_told(file):
    with pytest.raises(UserError, match=r"a\.txt cannot be read: it is compressed by zstd: its name must end in \.zst"):
        texts(file("a.txt", zstandard.compress(b"one")))


@pytest.mark.slow
def test_a_bomb_is_read_in_bounded_memory(tmp_path):
    """A gigabyte of NUL bytes in 33 kB."""
    packer = zstandard.ZstdCompressor(level=1).compressobj()
    with (tmp_path / "a.txt.zst").open("wb") as bomb:
        for _ in range(1024):
            bomb.write(packer.compress(b"one line of text\n" * 61_680))
        bomb.write(packer.flush())
    script = (
        "import resource; from ffkv.base.settings import Corpus; from ffkv.corpus.sources import documents_of; "
        f"before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss; rows = documents_of({str(tmp_path / 'a.txt.zst')!r}, 'text', Corpus(txt_document='line')); "
        "[next(rows) for _ in range(3_000_000)]; "
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert int(found.stdout) < 150_000  # KiB, most of them pyarrow's own


@pytest.mark.parametrize("name", ["a[1].txt", "a*.txt", "with blank é.txt", ".hidden/.a.txt", "__a/b.txt"])
def test_a_path_is_taken_to_the_letter(file, name):
    assert texts(file(name, "one\n")) == ["one"]


def test_globs_are_sorted_and_each_file_is_read_once(file, tmp_path):
    for name in ("b.txt", "a.txt", "deep/c.txt"):
        file(name, f"{name}\n")
    assert texts(tmp_path / "*.txt", tmp_path / "a.txt", tmp_path / "**") == ["a.txt", "b.txt", "deep/c.txt"]


def test_folders_are_no_files(file, tmp_path):
    file("a.txt/b.txt", "one\n")
    assert find_files([str(tmp_path / "**")]) == [str(tmp_path / "a.txt" / "b.txt")]


def test_an_empty_file_has_no_documents_and_a_changed_one_is_read_anew(file):
    assert texts(file("empty.txt", ""), file("a.txt", "one\n")) == ["one"]
    assert texts(file("a.txt", "two, and more\n")) == ["two, and more"]


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("a.docx", b"x", r"a\.docx: ffkv cannot read files whose name ends in '\.docx'. It reads csv, json, jsonl"),
        ("noending", b"x", r"noending: ffkv cannot read files whose name ends in ''"),
        ("a.parquet", b"PAR1 and no more", r".*a\.parquet cannot be read: "),
        ("a.jsonl", b'{"text": "a"}\n{"text":\n', r".*a\.jsonl cannot be read \(line 2\): not JSON: Expecting value"),
        ("a.txt.gz", b"no gzip", r".*a\.txt\.gz cannot be read: Not a gzipped file"),
        ("a.txt.gz", gzip.compress(b"one\n" * 1000, mtime=0)[:-20], r".*a\.txt\.gz cannot be read: Compressed file"),
        ("a.jsonl", b'{"text": "\xff"}\n', r"a\.jsonl cannot be read \(line 1\): bytes that are not UTF-8 text"),
        ("a.csv", b"title,n\na,1\n", r"a\.csv has no field 'text'; it has 'title', 'n'\. Set corpus\.text_field"),
        ("a.jsonl", b'{"text": 1}\n', r"line 1: field 'text' contains int, not text\. Set corpus\.text_field"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_message(file, capfd, name, content, message):
    with pytest.raises(UserError, match=message):
        texts(file(name, content))
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("pattern", ["none.txt", "*.txt"])
def test_a_pattern_that_matches_nothing_is_refused(tmp_path, monkeypatch, pattern):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"No corpus file matches '.*': check corpus\.train and corpus\.validation"):
        texts(pattern)


def test_the_hub_that_cannot_be_reached_is_said_in_one_message(capfd, caplog):
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(UserError, match="The data set nobody/nothing cannot be read: HF_HUB_OFFLINE is set, and not"),
    ):
        list(read_documents(Corpus(dataset="nobody/nothing"), "train"))
    assert capfd.readouterr().err == ""


def test_limit_counts_documents(file):
    path = file("a.txt", "\n".join("abcdefgh"))
    assert texts(path, limit=3) == ["a", "b", "c"]
    assert texts(path, limit=0) == list("abcdefgh")
    assert texts(path, limit=99) == list("abcdefgh")


def test_a_text_that_changes_while_another_one_is_read_is_noticed(tmp_path, byte_model, monkeypatch):
    """Else the old text would be analysed, and the new one never read."""
    paths = [tmp_path / f"{name}.txt" for name in "ab"]
    for path in paths:
        path.write_text("a first line\nand a second one\n")
    settings = Corpus(dataset="files", train=[str(path) for path in paths], splitter="line")
    read = sources.documents_of

    def documents_of(path, *arguments):
        if path.endswith("b.txt"):
            paths[0].write_text("somebody writes another text\n")
        return read(path, *arguments)

    monkeypatch.setattr(sources, "documents_of", documents_of)
    with pytest.raises(UserError, match=r"a\.txt changed while it was read"):
        encode_corpus(byte_model, "train", settings, tmp_path / "train.h5")
    assert not (tmp_path / "train.h5").exists()


@pytest.mark.parametrize("pattern", ["**/*.txt", "*/*.txt", "closed/*.txt"])
def test_a_folder_that_may_not_be_read_is_named(tmp_path, pattern):
    """A pattern alone would pass over it without a word."""
    (tmp_path / "closed").mkdir()
    (tmp_path / "closed/a.txt").write_text("a")
    (tmp_path / "b.txt").write_text("b")
    (tmp_path / "closed").chmod(0)
    script = f"from ffkv.corpus.sources import find_files; print(find_files([{pattern!r}]))"
    found = subprocess.run(obeying_rights(sys.executable, "-c", script), cwd=tmp_path, capture_output=True, text=True)
    (tmp_path / "closed").chmod(0o700)
    assert re.search(r"closed\S* cannot be read \(Permission denied\), and corpus files below it may", found.stderr)


@pytest.mark.parametrize("pattern", ["**/*.txt", "*/*.txt", "lin?/a.txt", "link/*", "[ab]*"])
@pytest.mark.parametrize("denied", ["scandir", "listdir", "stat", "lstat"])
def test_what_cannot_be_looked_up_is_named(tmp_path, monkeypatch, pattern, denied):
    """Each path in turn. Without that folder or file the corpus would be a smaller one."""
    (tmp_path / "deep").mkdir()
    for name in ("deep/a.txt", "deep/b.txt", "a.txt"):
        (tmp_path / name).write_text("a")
    (tmp_path / "link").symlink_to("deep")
    monkeypatch.chdir(tmp_path)
    places, original, found = [], getattr(os, denied), find_files([pattern])

    def fail(path, *given, **more):
        places.append(os.path.normpath(path))
        if len(places) == number and not isinstance(path, int):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return original(path, *given, **more)

    monkeypatch.setattr(os, denied, fail)
    number, refused = 1, 0
    while number <= len(places) + 1:
        places.clear()
        try:
            assert find_files([pattern]) == found
        except UserError as error:
            assert "Input/output error" in str(error)
            refused += 1
        number += 1
    assert refused == number - 2


@pytest.mark.parametrize(
    "pattern",
    ["*", "**", "**/*", "*/**", "*/*/*.txt", "**/b/**", ".*", ".h/*", "a/[bc]/**/x.txt", "a/b/x.*", "./*/x.txt"],
)
def test_a_pattern_matches_as_in_python(tmp_path, monkeypatch, pattern):
    monkeypatch.chdir(tmp_path)
    names = "x.txt .x.txt a/x.txt a/b/x.txt a/b/c/x.txt a/c/y.txt .h/x.txt a/.h/x.txt b/b/x.txt"
    for name in names.split():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    for form in (pattern, f"{tmp_path}/{pattern}"):
        found = {path for path in glob.glob(form, recursive=True) if Path(path).is_file()}  # noqa: PTH207 (the reference)
        assert find_files([form]) == sorted(found)


def test_a_file_that_hides_a_pattern_is_refused(tmp_path, monkeypatch):
    """A file called `train*.txt` must not be read alone, in place of all files that match this pattern."""
    monkeypatch.chdir(tmp_path)
    for name in ("train*.txt", "train1.txt", "train2.txt"):
        (tmp_path / name).write_text("a")
    with pytest.raises(UserError, match=r"'train\*\.txt' is the name of a file, and a pattern that matches 2 other"):
        find_files(["train*.txt"])
    assert find_files(["train[*].txt"]) == ["train*.txt"]
    (tmp_path / "train1.txt").unlink()
    (tmp_path / "train2.txt").unlink()
    assert find_files(["train*.txt"]) == ["train*.txt"]


def test_text_of_a_package_is_read_by_its_address(tmp_path, monkeypatch):
    """The name of a document says where it is from, wherever the package is installed."""
    (tmp_path / "some_texts/data").mkdir(parents=True)
    for name in ("b", "a"):
        (tmp_path / f"some_texts/data/{name}.txt").write_text(f"{name}\n")
    (tmp_path / "own.txt").write_text("c\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    corpus = Corpus(dataset="files", train=["package:some_texts/data/*.txt", "own.txt"], validation=["x"])
    addresses = ["package:some_texts/data/a.txt", "package:some_texts/data/b.txt", "own.txt"]
    assert [*read_documents(corpus, "train")] == [Document(f"{name}:0", text) for name, text in zip(addresses, "abc")]
    assert sources.source_files(corpus, "train") == [
        *(str(tmp_path / f"some_texts/data/{name}.txt") for name in "ab"),
        "own.txt",
    ]


def test_a_data_set_in_a_folder_has_all_its_files(tmp_path):
    """So a change of them repeats the step that reads them."""
    for name in ("data[0]/train/0.arrow", "data[0]/state.json", "data[0]/.cache/x"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    corpus = Corpus(dataset=str(tmp_path / "data[0]"))
    found = [str(tmp_path / name) for name in ("data[0]/state.json", "data[0]/train/0.arrow")]
    assert sources.source_files(corpus, "train") == sources.source_files(corpus, "validation") == found
    assert sources.source_files(Corpus(dataset="someone/texts"), "train") == []


def test_a_package_that_is_missing_is_told():
    with pytest.raises(UserError, match=r"no package 'no_texts'.*pip install --no-deps no-texts"):
        texts("package:no_texts/a.txt")
    with pytest.raises(UserError, match=r"No corpus file matches '.*none\.txt'"):
        texts("package:ffkv/none.txt")
