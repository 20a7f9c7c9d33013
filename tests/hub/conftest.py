"""What tests with the emulated hub share."""

import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from forks import with_forks
from hub.contents import model_folder
from hub.emulator import Hub


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
def child(hub, cache, tmp_path) -> Callable[..., subprocess.CompletedProcess]:
    """Runs Python code in a process that knows the hub of the test and no other, with a cache of the test's own.

    timeout: see `Hub.environment`; with another one than the usual the process is no fork. The answer has what the code
    printed, and the traceback in stderr.
    """

    def run(code: str, timeout: int | None = None) -> subprocess.CompletedProcess:
        if timeout is None:
            command, environment = ["python-code", code], with_forks(hub.environment(cache))
        else:
            command, environment = [sys.executable, "-c", code], hub.environment(cache, timeout=timeout)
        return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=120)

    return run
