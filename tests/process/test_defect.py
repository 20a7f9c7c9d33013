"""An exception that nobody foresaw: one sentence, a file for the developers, exit code 70."""

import re
import sys
from pathlib import Path

import pytest

from ffkv import cli
from ffkv.base.process.defect import explain

SECRET = "a sentence of the corpus"


class Panic(BaseException):
    """What libraries in Rust raise where their own code fails is no `Exception`."""


def run_main(monkeypatch, error) -> int:
    def command(standalone_mode):
        raise error

    monkeypatch.setattr(cli, "ffkv", command)
    monkeypatch.setattr(cli, "end_in_good_order", lambda: None)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return ended.value.code


def test_a_defect_is_one_sentence_and_a_file(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["ffkv", "triggers", "--per-key", "5"])
    assert run_main(monkeypatch, IndexError(SECRET)) == 70
    said = capsys.readouterr().err
    assert "This is a defect of ffkv, not of your files: IndexError." in said
    assert "Traceback (most recent" not in said
    text = Path(re.search(r"are in (\S+)\.", said)[1]).read_text()
    assert "command: ffkv triggers --per-key 5" in text
    assert "raise error" in text
    assert "torch " in text
    assert SECRET not in said + text


def test_without_room_for_the_file_the_traceback_is_printed(monkeypatch, capsys):
    monkeypatch.setattr("ffkv.base.process.defect.write_defect", lambda error: (_ for _ in ()).throw(OSError("full")))
    assert run_main(monkeypatch, IndexError("x")) == 70
    assert "Traceback (most recent call last)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(28, "No space left on device"), "There is no space left on a disk"),
        (MemoryError("Unable to allocate 9 GiB"), "The memory does not suffice"),
        (MemoryError(), "The memory does not suffice. Now "),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "The memory does not suffice"),
        (OSError("Can't write data (memory allocation failed for chunk)"), "The memory does not suffice"),  # HDF5
        (OSError("Couldn't serialize thrift: std::bad_alloc"), "The memory does not suffice"),  # parquet
        (Panic("Regex search error: fail to memory allocation"), "The memory does not suffice"),
        (
            RuntimeError("unable to mmap 8 bytes from file <a>: Cannot allocate memory (12)"),
            "The memory does not suffice",
        ),
        (OSError(24, "Too many open files"), "The system says: Too many open files"),
        (RuntimeError("unable to open file <a>: Too many open files (24)"), "The system says: Too many open files"),
        (RuntimeError("I/O error: Input/output error (os error 5)"), "The system says: Input/output error"),
    ],
)
def test_what_the_system_denies_is_no_defect(error, message):
    told, code = explain(error)
    assert code == 2
    assert told.startswith(message)


def test_a_panic_of_a_library_in_rust_is_one_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert run_main(monkeypatch, Panic("index out of bounds")) == 70
    said = capsys.readouterr().err
    assert "This is a defect of ffkv, not of your files: Panic." in said and "Traceback" not in said


def test_ctrl_c_is_no_defect(monkeypatch):
    with pytest.raises(KeyboardInterrupt):
        run_main(monkeypatch, KeyboardInterrupt())


def test_a_wrong_option_is_told_as_before(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["ffkv", "triggers", "--per-keys", "5"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("Usage: ")
    assert "No such option" in said
