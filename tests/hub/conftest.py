"""What tests with the emulated hub share."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hub.contents import model_folder
from hub.emulator import Hub


@pytest.fixture
def hub() -> Iterator[Hub]:
    """An emulated hub without repositories, on the network until the test ends."""
    with Hub() as running:
        yield running


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
def child(hub, tmp_path) -> Callable[..., subprocess.CompletedProcess]:
    """Runs Python code in a process that knows the hub of the test and no other, with a cache of the test's own.

    Further arguments are those of `Hub.environment`. Its answer has what the code printed, and the traceback in stderr.
    """

    def run(code: str, cache: str = "cache", **environment) -> subprocess.CompletedProcess:
        settings = hub.environment(tmp_path / cache, **environment)
        return subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env=settings, cwd=tmp_path, timeout=120
        )

    return run
