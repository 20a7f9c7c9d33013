"""Where a run writes."""

import pytest

from ffkv.base.errors import UserError
from ffkv.base.system import disk
from ffkv.base.system.disk import temporary_folders


def test_a_disk_with_room_passes_and_what_is_not_there_is_not_asked(tmp_path):
    disk.check_disk([tmp_path, tmp_path / "none"])


def test_a_full_disk_is_named_once(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    monkeypatch.setattr(disk, "FULL", float("inf"))
    assert disk.full([tmp_path, tmp_path / "a"]) == [tmp_path]
    with pytest.raises(
        UserError, match=f"The disk of {tmp_path} is full. Free some space, then start the same command again"
    ):
        disk.check_disk([tmp_path, tmp_path / "a"])


def test_a_folder_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(disk.os, "access", lambda folder, mode: folder != tmp_path / "a")
    (tmp_path / "a").mkdir()
    with pytest.raises(
        UserError, match=f"{tmp_path}/a cannot be written: its disk is read-only, or it belongs to somebody else"
    ):
        disk.check_disk([tmp_path, tmp_path / "a"])


def test_folders_of_temporary_files_that_the_environment_names_are_checked_too(monkeypatch, tmp_path):
    """Python takes another folder than one that is full; the solver of Snakemake does not."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert tmp_path in temporary_folders()
