"""What is there, what is missing, what changes, and what the system does not let one look up, though libraries take it for what is not there."""

import ast
import errno
import os
import resource
from pathlib import Path

import pytest
from safetensors import safe_open
from support import random_checkpoint, refused, word_tokenizer

import ffkv
from ffkv.base.hub.commit import Commit
from ffkv.base.lookup import exists, files_in, find, is_dir, is_file, looks_told, save_pretrained, unchanged
from ffkv.base.settings import Model
from ffkv.model.checkpoint.checks import explain_failure
from ffkv.model.checkpoint.load import load_checkpoint, load_form
from ffkv.model.checkpoint.tokenizer import load_tokenizer

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
    with refused("cannot be looked up: Permission denied"):
        find(tmp_path, pattern)


def test_nobody_asks_pathlib():
    """Since Python 3.14 it calls a file missing that may not be looked up."""
    asked = [
        f"{path.name}:{node.lineno}"
        for path in Path(ffkv.__path__[0]).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ASKED
        if not node.args
        and not node.keywords  # `follow_symlinks=False` is asked of the entries of a folder, which tell
    ]
    assert asked == []


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
    with refused(message), unchanged(files_in(tmp_path)):
        change(tmp_path / "a")


def test_what_is_only_read_passes(tmp_path):
    (tmp_path / "a").write_text("ab")
    with unchanged([tmp_path / "a", str(tmp_path / "missing")]):
        assert (tmp_path / "a").read_text() == "ab"


def test_a_folder_that_is_none_has_no_files(tmp_path):
    assert files_in(tmp_path / "none") == []


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
    with refused(f"a cannot be looked up: {EIO}"), looks_told(tmp_path):
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
    with refused(f"a cannot be looked up: {EIO}"), unchanged([tmp_path / "a"]):
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
        with refused(f"{name} cannot be looked up: {EIO}"):
            read(settings)


def test_a_folder_that_cannot_be_looked_up_is_not_called_one_that_exists(tmp_path, deny):
    tokenizer = word_tokenizer(["<bos>", "a"])
    save_pretrained(tmp_path, tokenizer)
    for number in (1, 2):
        deny(tmp_path, number)
        with refused(f"{tmp_path.name} cannot be looked up: {EIO}"):
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
        ("ffkv.model.checkpoint.load.build_empty", load_form),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(name, fail)
            with refused(r"^The memory does not suffice"):
                read(Model(checkpoint=str(folder), device="cpu"))
