"""The package of a stranger in `toy`, installed into a folder, and processes that find it there or do not."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from forks import with_forks
from support import OFFLINE

from ffkv.base.doors import ALONE

TOY = Path(__file__).with_name("toy")
# The code of each rule, as it is, and after an edit of each file that is named; nothing is kept from one to the next.
CODE = """
import json, os, sys
from ffkv.workflow.jobs import STEPS
for path in ["", *sys.argv[1:]]:
    if path:
        with open(path, "a") as file:
            file.write("# edited\\n")
    if os.fork() == 0:
        print(json.dumps({name: step.code for name, step in STEPS.items()}), flush=True)
        os._exit(0)
    os.wait()
"""

BESIDE = """
from ffkv.branches.settings import Settings
from ffkv.workflow.inputs import code_beside
settings = Settings(model={"checkpoint": %r}, corpus={"dataset": %r})
print([code_beside(what, settings) for what in ("checkpoint", "corpus")])
"""


def finding(site: Path) -> dict[str, str]:
    """The environment of processes that find what is installed in a folder."""
    path = os.pathsep.join([str(site), OFFLINE.get("PYTHONPATH", "")])
    commands = os.pathsep.join([str(Path(sys.executable).parent), OFFLINE["PATH"]])
    return {name: value for name, value in OFFLINE.items() if name != ALONE} | {"PYTHONPATH": path, "PATH": commands}


@pytest.fixture(scope="session")
def site(tmp_path_factory) -> Path:
    """The folder into which the package is installed."""
    folder = tmp_path_factory.mktemp("toy")
    copy = shutil.copytree(TOY, folder / "source")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--target", folder / "site", copy], check=True)
    return folder / "site"


@pytest.fixture
def own(site, tmp_path) -> dict[str, str]:
    """The environment of processes that find the package in `tmp_path / "site"`, where a test may change it."""
    return finding(shutil.copytree(site, tmp_path / "site"))


@pytest.fixture(scope="module")
def without() -> dict[str, str]:
    """The environment of commands that do not find the package: forks, see `forks`."""
    return with_forks(OFFLINE)


@pytest.fixture(scope="module")
def of_others(without) -> str:
    """The codes of all rules without the package, see `CODE`."""
    return python(without, CODE)


@pytest.fixture(scope="module")
def beside(without, site) -> dict[str, str]:
    """The environment of commands that find the package: forks of a process of their own."""
    return with_forks(finding(site))


def ffkv(environment: dict[str, str], *arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess:
    return subprocess.run(["ffkv", *arguments], capture_output=True, text=True, env=environment, cwd=folder)


def edit(folder: Path, name: str, there: str, instead: str) -> None:
    """Changes a file of the package in `folder / "site"`."""
    file = folder / "site/ffkv_toy" / name
    text = file.read_text()
    assert there in text
    file.write_text(text.replace(there, instead))


def python(environment: dict[str, str], code: str, folder: Path | None = None, *words: str) -> str:
    command = [shutil.which("python-code", path=environment["PATH"]) or sys.executable, "-c", code, *words]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
