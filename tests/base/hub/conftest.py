"""What tests with the emulated hub share."""

import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from forks import with_forks

from tests.base.hub.contents import model_folder
from tests.base.hub.emulator import Hub

# What code of child processes begins with: they try many cases and report each one, because a process takes seconds to start.
# `attempt` gives what a call returned, its refusal and what it said; any other error than UserError ends the child.
# `over` tells the test that it may change something on the hub, which `Hub.when` of "/over/<name>" does.
BEGIN = """
import contextlib, io, json, os, sys, time
from pathlib import Path
from urllib.request import urlopen
from ffkv.base.errors import UserError
from ffkv.base.settings import Corpus, Model

wait = time.sleep
time.sleep = lambda seconds: wait(min(seconds, 0.05))  # between the tries of the hub's clients

def attempt(call, *arguments, **options):
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        try:
            return {"answer": call(*arguments, **options), "refusal": "", "said": said.getvalue()}
        except UserError as error:
            return {"answer": None, "refusal": str(error), "said": said.getvalue()}

def over(name):
    with contextlib.suppress(OSError):
        urlopen(os.environ["HF_ENDPOINT"] + "/over/" + name)

def offline(yes=True):
    import datasets
    import huggingface_hub.constants
    os.environ["HF_HUB_OFFLINE"] = "1" if yes else "0"
    huggingface_hub.constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = yes
"""


@pytest.fixture(scope="session")
def port() -> Iterator[int]:
    """The port of the hubs of all tests, which nobody else gets: libraries read it once, for all forks of a process."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@pytest.fixture
def hub(port) -> Iterator[Hub]:
    """An emulated hub without repositories, on the network until the test ends."""
    with Hub(port) as running:
        yield running


@pytest.fixture(scope="session")
def home(tmp_path_factory) -> Path:
    """A folder for HF_HOME, which libraries read once, too."""
    return tmp_path_factory.mktemp("home") / "cache"


@pytest.fixture
def cache(home) -> Path:
    """HF_HOME of a test, empty: nothing is fetched yet."""
    shutil.rmtree(home, ignore_errors=True)
    return home


@pytest.fixture(scope="session")
def model_folders(tmp_path_factory) -> Callable[..., Path]:
    """Folders of tiny models, by the arguments of `hub.contents.model_folder` but the first, made when first asked for."""
    made: dict[tuple, Path] = {}

    def get(kind: str = "llama", form: str = "safetensors", seed: int = 0) -> Path:
        if (kind, form, seed) not in made:
            made[kind, form, seed] = model_folder(tmp_path_factory.mktemp("model") / "folder", kind, form, seed)
        return made[kind, form, seed]

    return get


@pytest.fixture
def child(hub, cache, tmp_path) -> Callable[..., Any]:
    """Runs Python code in a process that knows the hub of the test and no other, with a cache of the test's own.

    timeout: see `Hub.environment`; with another one than the usual the process is no fork. Returns what the code printed last,
    as JSON. The library's own log says nothing.
    """

    def run(code: str, timeout: int | None = None) -> Any:
        if timeout is None:
            command, environment = ["python-code", BEGIN + code], with_forks(hub.environment(cache))
        else:
            command, environment = [sys.executable, "-c", BEGIN + code], hub.environment(cache, timeout)
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=120)
        assert done.returncode == 0 and "thrown while requesting" not in done.stderr, done.stderr[-3000:]
        lines = [line for line in done.stdout.splitlines() if line.startswith(("[", "{"))]
        assert lines, done.stdout
        return json.loads(lines[-1])

    return run
