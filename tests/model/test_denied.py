"""What the machine denies while a checkpoint is read is named, and no file is blamed for it."""

import errno
import os

import pytest

from ffkv.base.errors import UserError
from ffkv.base.hub.commit import is_local
from ffkv.model.checkpoint import weight_files
from ffkv.model.checkpoint.failures import words_of


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES])
def test_a_folder_that_cannot_be_looked_up_is_not_sought_on_the_hub(monkeypatch, code):
    def fail(path, **options):
        raise OSError(code, os.strerror(code), path)

    monkeypatch.setattr(os, "stat", fail)
    with pytest.raises(UserError, match=f"gpt2 cannot be looked up: {os.strerror(code)}"):
        is_local("gpt2")


def test_a_name_that_no_file_can_have_is_not_local():
    assert not is_local("a" * 5000) and not is_local("a\0b")


def test_a_part_of_a_model_that_is_there_and_cannot_be_opened_is_named(tmp_path, monkeypatch):
    """safetensors calls it missing, whatever the system says."""
    part = tmp_path / "model-00001-of-00002.safetensors"
    part.touch()

    def fail(file, framework):
        raise FileNotFoundError(f"No such file or directory: {file}")

    monkeypatch.setattr(weight_files, "safe_open", fail)
    with pytest.raises(UserError, match=rf"{part.name} is there, but it cannot be opened\. Check the memory"):
        weight_files.tensors_in(part)


def test_what_the_system_said_is_not_lost_behind_the_words_of_a_library():
    error = OSError("Unable to load vocabulary from file.")
    assert words_of(error) == "Unable to load vocabulary from file."
    error.__context__ = OSError(errno.EMFILE, os.strerror(errno.EMFILE), "tiny.gguf")
    assert words_of(error) == "Unable to load vocabulary from file. (Too many open files)"
    assert words_of(error.__context__) == str(error.__context__)
