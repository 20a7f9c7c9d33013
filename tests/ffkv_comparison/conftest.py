"""A finished run, and a copy of it under another name."""

import shutil
from pathlib import Path

import pytest

from ffkv.base.settings import Comparison
from ffkv.run.results.run import open as open_run
from ffkv_comparison.comparison_file import Compared


def opened(folders: list[Path], settings: Comparison) -> Compared:
    """The runs of a comparison."""
    return Compared("by hand", settings, [open_run(folder) for folder in folders])


@pytest.fixture(scope="module")
def folders(tiny, tmp_path_factory) -> list[Path]:
    """results/tiny, and a copy of it that is called `again`. Both are in a folder in which their checkpoint is found."""
    top = tmp_path_factory.mktemp("pair")
    for name in ("tiny", "again"):
        shutil.copytree(tiny / "results/tiny", top / "results" / name)
    return [top / "results/tiny", top / "results/again"]


@pytest.fixture
def pair(folders, monkeypatch) -> Compared:
    """Both runs, opened."""
    monkeypatch.chdir(folders[0].parents[1])
    return opened(folders, Comparison(runs=["tiny", "again"], permutations=2))
