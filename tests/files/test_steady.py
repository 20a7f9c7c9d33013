"""A file that changes while it is read is noticed."""

import os

import pytest

from ffkv.base.errors import UserError
from ffkv.base.files.steady import files_in, unchanged


def grow(path):
    path.write_text("ab and more")


def rewrite_in_the_same_size(path):
    path.write_text("cd")
    os.utime(path, (1, 1))


def replace(path):
    entry, other = path.stat(), path.with_name("other")
    other.write_text("cd")
    os.utime(other, ns=(entry.st_atime_ns, entry.st_mtime_ns))
    other.replace(path)


@pytest.mark.parametrize("change", [grow, rewrite_in_the_same_size, replace, lambda path: path.unlink()])
def test_a_change_is_refused(tmp_path, change):
    (tmp_path / "a").write_text("ab")
    (tmp_path / "b").write_text("b")
    message = r"a changed while it was read\. Nothing is made from it"
    with pytest.raises(UserError, match=message), unchanged(files_in(tmp_path)):
        change(tmp_path / "a")


def test_what_is_only_read_passes(tmp_path):
    (tmp_path / "a").write_text("ab")
    with unchanged([tmp_path / "a", str(tmp_path / "missing")]):
        assert (tmp_path / "a").read_text() == "ab"


def test_a_folder_that_is_none_has_no_files(tmp_path):
    assert files_in(tmp_path / "none") == []
