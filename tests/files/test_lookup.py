"""What is missing, and what the system does not let one look up."""

import ast
import os
from pathlib import Path

import pytest

import ffkv
from ffkv.base.errors import UserError
from ffkv.base.lookup import exists, find, is_dir, is_file

ASKED = {"exists", "is_file", "is_dir"}


def test_what_is_there(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "nowhere").symlink_to("missing")
    (tmp_path / "loop").symlink_to("loop")
    for name, found in {
        "file": (True, True, False),
        "link": (True, True, False),
        ".": (True, False, True),
        "": (True, False, True),
        **dict.fromkeys(["missing", "nowhere", "loop", "file/below", "a\0b"], (False, False, False)),
    }.items():
        assert (exists(tmp_path / name), is_file(tmp_path / name), is_dir(str(tmp_path / name))) == found, name


@pytest.mark.parametrize("ask", [exists, is_file, is_dir])
def test_what_may_not_be_looked_up_is_an_error(tmp_path, monkeypatch, ask):
    """A disk that fails, because root may look everything up."""

    def fail(path, **options):
        raise OSError(5, os.strerror(5), str(path))

    monkeypatch.setattr(os, "stat", fail)
    with pytest.raises(OSError, match="Input/output error"):
        ask(tmp_path / "file")


def test_what_fits_a_pattern_is_found_as_pathlib_finds_it(tmp_path):
    for name in ("a/one.csv", "a/.hidden.csv", "b/c/two.csv", "three.csv", "b/four.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "b/back").symlink_to(tmp_path)
    for pattern in ("*", "*.csv", "*/*.csv", "**/*", "**/*.csv", "[!b]*", "b/*.txt", "missing/*"):
        assert find(tmp_path, pattern) == sorted(tmp_path.glob(pattern)), pattern
    assert find(tmp_path / "missing", "**/*") == find(tmp_path / "three.csv", "*") == []


@pytest.mark.parametrize("pattern", ["*", "*/*.csv", "**/*"])
def test_a_folder_that_may_not_be_listed_is_an_error(tmp_path, monkeypatch, pattern):
    (tmp_path / "inner").mkdir()

    def fail(path="."):
        raise PermissionError(13, os.strerror(13), str(path))

    monkeypatch.setattr(os, "listdir", fail)
    monkeypatch.setattr(os, "scandir", fail)
    with pytest.raises(UserError, match="cannot be looked up: Permission denied"):
        find(tmp_path, pattern)


def test_nobody_asks_pathlib():
    """Since Python 3.14 it calls a file missing that may not be looked up."""
    asked = [
        f"{path.name}:{node.lineno}"
        for path in Path(ffkv.__path__[0]).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ASKED
        if not node.args
    ]
    assert asked == []
