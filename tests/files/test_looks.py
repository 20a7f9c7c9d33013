"""What the system denies to look up is told, though libraries take it for what is not there."""

import errno
import os
import resource
from pathlib import Path

import pytest
from safetensors import safe_open
from support import random_checkpoint, word_tokenizer

from ffkv.base.errors import UserError
from ffkv.base.files.looks import looks_told, save_pretrained
from ffkv.base.files.steady import unchanged
from ffkv.base.hub.commit import Commit
from ffkv.base.settings import Model
from ffkv.model.checkpoint.failures import explain_failure
from ffkv.model.checkpoint.read import load_checkpoint, load_form
from ffkv.model.checkpoint.tokenizer import load_tokenizer

EIO = os.strerror(errno.EIO)


def there(path: Path) -> bool:
    """As libraries ask it."""
    return os.path.exists(path)  # noqa: PTH110


@pytest.fixture
def deny(monkeypatch):
    """Lets one look at a file fail: the one of a number, from 1."""
    real = os.stat

    def once(path: Path, number: int = 1, code: int = errno.EIO) -> None:
        looks = []

        def stat(given, *rest, **more):
            if not isinstance(given, int) and Path(os.fsdecode(given)).absolute() == path:
                looks.append(given)
                if len(looks) == number:
                    raise OSError(code, os.strerror(code), given)
            return real(given, *rest, **more)

        monkeypatch.setattr(os, "stat", stat)

    return once


def test_a_denied_look_is_told_whatever_follows(tmp_path, deny):
    (tmp_path / "a").write_text("a")
    deny(tmp_path / "a")
    with pytest.raises(UserError, match=f"a cannot be looked up: {EIO}"), looks_told(tmp_path):
        if not there(tmp_path / "a"):
            raise FileNotFoundError("There is no a.")
    assert there(tmp_path / "a")


def test_what_is_missing_or_elsewhere_is_not_told(tmp_path, deny):
    (tmp_path / "inside").mkdir()
    deny(tmp_path / "outside")
    with looks_told(tmp_path / "inside", ""):
        assert not there(tmp_path / "inside/b")
        assert not there(tmp_path / "outside")


@pytest.mark.parametrize("number", [1, 2])
def test_what_cannot_be_looked_up_has_not_changed(tmp_path, deny, number):
    (tmp_path / "a").write_text("a")
    deny(tmp_path / "a", number)
    with pytest.raises(UserError, match=f"a cannot be looked up: {EIO}"), unchanged([tmp_path / "a"]):
        pass


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("config.json", load_form),
        ("model.safetensors", load_checkpoint),
        ("tokenizer.json", lambda settings: load_tokenizer(settings.checkpoint)),
    ],
)
def test_a_file_of_a_checkpoint_that_cannot_be_looked_up_is_not_called_missing(tmp_path, deny, name, read):
    folder = random_checkpoint(tmp_path / "checkpoint", "gpt2")
    settings = Model(checkpoint=str(folder), device="cpu")
    read(settings)
    for number in (1, 2):
        deny(folder / name, number)
        with pytest.raises(UserError, match=f"{name} cannot be looked up: {EIO}"):
            read(settings)


def test_a_folder_that_cannot_be_looked_up_is_not_called_one_that_exists(tmp_path, deny):
    tokenizer = word_tokenizer(["<bos>", "a"])
    save_pretrained(tmp_path, tokenizer)
    for number in (1, 2):
        deny(tmp_path, number)
        with pytest.raises(UserError, match=f"{tmp_path.name} cannot be looked up: {EIO}"):
            save_pretrained(tmp_path, tokenizer)


def test_a_file_that_cannot_be_opened_is_not_called_missing(tmp_path):
    """safetensors says the same of both."""
    folder = random_checkpoint(tmp_path / "checkpoint", "gpt2")
    file, commit = folder / "model.safetensors", Commit("model", str(folder), "main")
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limit[1]))
    try:
        with pytest.raises(FileNotFoundError) as denied:
            safe_open(file, "np")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    assert f"{file} is there, but it cannot be opened" in explain_failure(denied.value, commit)
    file.unlink()
    with pytest.raises(FileNotFoundError) as missing:
        safe_open(file, "np")
    assert "cannot be opened" not in explain_failure(missing.value, commit)


@pytest.mark.parametrize("lack", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")])
def test_a_lack_of_memory_is_not_blamed_on_a_checkpoint(tmp_path, monkeypatch, lack):
    folder = random_checkpoint(tmp_path / "checkpoint", "gpt2")

    def fail(*arguments, **options):
        raise lack

    for name, read in (
        ("transformers.AutoTokenizer.from_pretrained", lambda settings: load_tokenizer(settings.checkpoint)),
        ("transformers.AutoModelForCausalLM.from_pretrained", load_checkpoint),
        ("ffkv.model.checkpoint.read.build_empty", load_form),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(name, fail)
            with pytest.raises(UserError, match=r"^The memory does not suffice"):
                read(Model(checkpoint=str(folder), device="cpu"))
