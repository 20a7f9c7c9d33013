"""What is missing, and what the system does not let one look up."""

import ast
import os
from pathlib import Path

import pytest

import ffkv
from ffkv.base.lookup import exists, is_dir, is_file

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
