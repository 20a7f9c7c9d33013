"""Explorers of a small run that is known in every number, and of a finished tiny run."""

import contextlib
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from starlette.testclient import TestClient
from support import OFFLINE

from ffkv.activations.prefix_file import SampledPrefixes
from ffkv.base.files import datasets, hdf5, tables
from ffkv_explorer.application import create_application
from ffkv_explorer.security import Guard
from ffkv_explorer.shelf import Shelf, open_shelf
from tests.run.results.conftest import IDENTITY, MEMORIES, SENTENCES, TOP, write_small_run

WIDTH = 4
# Sampled validation prefixes: sentence, position.
SAMPLED = [(0, 1), (0, 2), (1, 3), (2, 1)]


def coefficients() -> np.ndarray:
    """[prefix, memory]; memory 2, which is dead, is 0 everywhere."""
    m = np.random.default_rng(0).normal(size=(len(SAMPLED), sum(MEMORIES))).astype(np.float32)
    m[:, 2] = 0
    return m


def values() -> np.ndarray:
    """[memory, width]"""
    return np.random.default_rng(1).normal(size=(sum(MEMORIES), WIDTH)).astype(np.float32)


def complete(folder: Path) -> Path:
    """Adds to the small run what only the explorer reads."""
    with hdf5.create(folder / "values.h5", "values", IDENTITY) as file:
        hdf5.put(file, "value", values(), ["memory", "width"], "1", "values")
    with hdf5.open(folder / "corpus/validation.h5", "corpus") as corpus:
        identity = {**IDENTITY, "corpus_hash": corpus.attrs["corpus_hash"]}
    sentence, position = np.array(SAMPLED, np.int32).T
    states = np.zeros((len(MEMORIES), len(SAMPLED), WIDTH), np.float32)
    record = SampledPrefixes(
        layer_offset=np.cumsum([0, *MEMORIES]), sentence=sentence, position=position,
        next_token=np.array([SENTENCES[s][p] for s, p in SAMPLED], np.int32), y=states, o=states, m=coefficients(),
    )  # fmt: skip
    with hdf5.create(folder / "sampled_prefixes.h5", "sampled prefixes", identity) as file:
        sizes = {"states_per_chunk": 2, "coefficients_per_chunk": 2, "largest_layer": max(MEMORIES)}
        datasets.write(file, record, sizes)
    for group in range(len(MEMORIES)):
        path = folder / f"keys/patterns/{group}.parquet"
        tables.write(tables.read(path).assign(chance=0.01, p_value=0.001), path)
        path = folder / f"values/by_memory/{group}.parquet"
        negative = {"bottom_token": 0, "negative_next_token": -1, "negative_agrees": False}
        tables.write(tables.read(path).assign(contribution=0.5, **negative), path)
    assert len(TOP) == sum(MEMORIES)
    return folder


@pytest.fixture(scope="session")
def small(tmp_path_factory) -> Path:
    """The folder of the small run. Whoever changes a file there takes a copy."""
    return complete(write_small_run(tmp_path_factory.mktemp("explorer") / "results" / "small"))


@pytest.fixture
def own_small(small, tmp_path) -> Path:
    """A small run of one's own."""
    return shutil.copytree(small, tmp_path / "results/small")


class Visitor:
    """A browser without a screen that may enter an explorer.

    Attributes:
        client: follows redirects, and keeps cookies.
        guard: the explorer's secrets.
        shelf: its runs.
    """

    def __init__(self, shelf: Shelf):
        self.shelf, self.guard = shelf, Guard(base="")  # so that addresses here are as in docs/explorer.md
        self.client = TestClient(create_application(shelf, self.guard), base_url="http://127.0.0.1:8000")
        self.client.get(f"/?token={self.guard.token}")

    def get(self, address: str, status: int = 200) -> str:
        """The page of an address."""
        answer = self.client.get(address)
        assert answer.status_code == status, (address, answer.status_code, text_of(answer.text)[:2000])
        return answer.text


def text_of(page: str) -> str:
    """The words of a page, without its markup."""
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", page)).split())


class Process:
    """A running explorer.

    Attributes:
        address: what it printed, with the token.
        base: the same without path and token.
        line: the whole line.
        process: the process.
    """

    def __init__(self, process: subprocess.Popen):
        self.process = process
        self.line = process.stdout.readline()
        self.address = self.line.split()[0] if self.line else ""
        self.base = self.address.split("/?")[0]


@contextlib.contextmanager
def running(folder: Path, *arguments: str, results: str = "results/tiny") -> Iterator[Process]:
    """Starts `ffkv explore` in a folder; ends it with Ctrl-C."""
    command = [sys.executable, "-m", "ffkv", "explore", results, "--no-browser", *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=folder, env=OFFLINE, **pipes) as process:
        try:
            yield Process(process)
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            process.kill()


@pytest.fixture(scope="session")
def visit() -> Callable[..., Visitor]:
    """Opens an explorer of the runs in some folders."""
    return lambda *folders: Visitor(open_shelf(folders))


@pytest.fixture(scope="session")
def visitor(visit, small) -> Visitor:
    """An explorer of the small run."""
    return visit(small)


@pytest.fixture(scope="module")
def tiny_visitor(tiny, visit) -> Iterator[Visitor]:
    """An explorer of the tiny run, in whose folder the paths of its checkpoint start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tiny)
        visitor = visit(tiny / "results/tiny")
        visitor.shelf.history = False  # nothing is kept beside the run of all tests
        yield visitor
