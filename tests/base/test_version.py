"""The version names the commit, in every kind of copy of the code, and voids no result."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from packaging.version import Version
from support import ROOT

import ffkv
from ffkv.activations.resume import identity
from ffkv.base import version as module
from ffkv.base.dependencies import code_files
from ffkv.base.files import stored
from ffkv.base.version import RELEASE
from ffkv.workflow.jobs import STEPS

PARTS = ("__init__.py", "__init__.pyi", "base/__init__.py", "base/public.py", "base/version.py")
AUTHOR = {f"GIT_{who}_{what}": f"{what}@test" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}


def git(folder: Path, *words: str) -> str:
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "-C", str(folder), "-c", "protocol.file.allow=always", *words]
    return subprocess.run(command, env=own | AUTHOR, capture_output=True, text=True, check=True).stdout.strip()


def commit(folder: Path) -> str:
    """Makes a commit of all that is there. Returns the beginning of its name."""
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--allow-empty", "-m", "One.")
    return "g" + git(folder, "rev-parse", "--short=9", "HEAD")


def told(folder: Path, **environment: str) -> str:
    """What the copy of ffkv in a folder says of itself, after "1.0.0": "" for the release."""
    script = "import ffkv; print(ffkv.__version__)"
    own = {**os.environ, **environment, "PYTHONPATH": str(folder / "src")}
    done = subprocess.run([sys.executable, "-c", script], cwd="/", env=own, capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    version = done.stdout.strip()
    assert str(Version(version)) == version and version.startswith(RELEASE)  # pip writes it in the same way
    return version.removeprefix(RELEASE)


@pytest.fixture
def clone(tmp_path) -> Path:
    """A repository with the parts of ffkv that its version needs."""
    folder = tmp_path / "clone"
    for name in PARTS:
        (folder / "src/ffkv" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "src/ffkv" / name, folder / "src/ffkv" / name)
    (folder / "packages").mkdir()
    (folder / "workflow").mkdir()
    (folder / "workflow/Snakefile").touch()
    (folder / "config.yaml").touch()
    shutil.copy(ROOT / ".gitattributes", folder)
    (folder / ".gitignore").write_text("__pycache__/\n")
    git(tmp_path, "init", "--quiet", "clone")
    commit(folder)
    return folder


def test_a_clone_tells_the_release_and_what_is_behind_it(clone):
    assert told(clone) == "+g" + git(clone, "rev-parse", "--short=9", "HEAD")  # a fresh clone without tags
    git(clone, "tag", f"v{RELEASE}")
    git(clone, "tag", "another")
    assert told(clone) == ""
    (clone / "config.yaml").write_text("runs: {}")  # settings are no code
    assert told(clone) == ""
    behind = [commit(clone), commit(clone)]
    assert told(clone) == f"+2.{behind[-1]}"
    git(clone, "tag", "v99.0.0")  # no release of this code
    assert told(clone) == f"+2.{behind[-1]}"


@pytest.mark.parametrize(
    "name", ["src/ffkv/base/public.py", "src/ffkv/new.py", "packages/new.py", "workflow/Snakefile"]
)
def test_code_that_no_commit_has_is_told(clone, name):
    git(clone, "tag", f"v{RELEASE}")
    with (clone / name).open("a") as file:
        file.write("\n# changed\n")
    assert told(clone) == "+changed"
    assert told(clone, PYTHONDONTWRITEBYTECODE="1") == "+changed"
    commit(clone)
    assert told(clone).startswith("+1.g") and "changed" not in told(clone)


def test_a_shallow_clone_and_a_second_working_tree_tell_their_commit(clone, tmp_path):
    git(clone, "tag", f"v{RELEASE}")
    name = commit(clone)
    git(tmp_path, "clone", "--quiet", "--depth", "1", f"file://{clone}", "shallow")
    git(clone, "worktree", "add", "--quiet", str(tmp_path / "second"))
    assert told(tmp_path / "shallow") == f"+{name}" and told(tmp_path / "second") == f"+1.{name}"


def test_an_archive_tells_its_commit(clone, tmp_path):
    (tmp_path / "archive").mkdir()
    packed = subprocess.run(["git", "-C", str(clone), "archive", "HEAD"], capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x", "-C", str(tmp_path / "archive")], input=packed, check=True)
    assert told(tmp_path / "archive") == "+g" + git(clone, "rev-parse", "--short", "HEAD")


def test_what_no_git_can_tell_is_unknown_and_another_repository_is_not_asked(clone, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(clone / "src", other / "lib/src")
    git(tmp_path, "init", "--quiet", "other")
    commit(other)
    assert told(other / "lib") == "+unknown"  # an environment inside of a repository
    assert told(clone, GIT_DIR=str(other / ".git")).endswith(git(clone, "rev-parse", "--short=9", "HEAD"))  # in a hook
    assert told(clone, PATH="") == "+unknown"
    shutil.rmtree(clone / ".git/objects")
    assert told(clone) == "+unknown"


def test_what_is_built_says_what_it_was_built_of(clone):
    (clone / "src/ffkv/version.txt").write_text(f"{RELEASE}+3.g123456789\n")
    assert told(clone) == "+3.g123456789"


def test_git_is_asked_once_and_writes_nothing(clone, monkeypatch):
    before = {path: path.stat().st_mtime_ns for path in (clone / ".git").rglob("*")}
    os.utime(clone / "src/ffkv/base/public.py", (1, 1))  # git would note that nothing changed
    assert "changed" not in told(clone)
    assert {path: path.stat().st_mtime_ns for path in (clone / ".git").rglob("*")} == before
    ffkv.__version__  # noqa: B018
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("git is asked again"))
    assert ffkv.__version__ == module.version() and "__version__" in dir(ffkv)


def test_a_commit_voids_nothing_that_is_kept(monkeypatch):
    """No rule's code, no saved shard and no other key of what is kept says the commit. Files that are made say it."""
    for step in STEPS.values():
        assert not {Path(module.__file__), Path(ffkv.__file__)} & {*code_files(step.function, step.also)}
    before, kept = stored.versions(), identity("code", {}, "cpu")
    monkeypatch.setattr(stored, "version", lambda: f"{RELEASE}+1.gabc")
    assert identity("code", {}, "cpu") == kept and kept["versions"]["ffkv"] == RELEASE
    assert stored.versions() == before | {"ffkv": f"{RELEASE}+1.gabc"}


def test_release_changelog_and_citation_agree():
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == RELEASE
    first = next(line for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if line.startswith("## "))
    assert first == f"## {RELEASE}"
