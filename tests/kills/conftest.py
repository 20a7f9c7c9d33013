"""A finished run of configs/tiny.yaml that tests copy and damage."""

from pathlib import Path

import pytest
from support import ROOT, snakemake


@pytest.fixture(scope="session")
def finished(tmp_path_factory) -> Path:
    """The folder of the run."""
    directory = tmp_path_factory.mktemp("finished")
    done = snakemake(directory, ROOT / "configs/tiny.yaml")
    assert done.returncode == 0, done.stderr[-8000:]
    return directory
