"""Runs of Snakemake itself."""

from pathlib import Path

import pytest
from support import ROOT, snakemake


@pytest.fixture(scope="session")
def tiny(tmp_path_factory) -> Path:
    """The folder of a finished run of configs/tiny.yaml."""
    directory = tmp_path_factory.mktemp("tiny")
    done = snakemake(directory, ROOT / "configs/tiny.yaml")
    assert done.returncode == 0, done.stderr[-8000:]
    return directory
