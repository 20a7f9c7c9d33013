"""The test cluster, and a finished local run to compare with."""

import os
import subprocess
from pathlib import Path

import pytest
from filelock import FileLock
from support import ROOT, make_run

from tests.workflow.slurm.cluster import Cluster, cluster, missing
from tests.workflow.slurm.runs import SHARDS, submit


@pytest.fixture(scope="session")
def slurm(tmp_path_factory) -> Cluster:
    """A cluster of two nodes that runs."""
    if reason := missing():
        pytest.skip(reason)
    with cluster(tmp_path_factory.mktemp("slurm")) as running:
        yield running


@pytest.fixture(scope="session")
def undisturbed(slurm, tmp_path_factory) -> Path:
    """The folder of a run of configs/tiny.yaml in three shards, by local processes. All processes of one test run share it."""
    own = tmp_path_factory.getbasetemp()
    directory = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "local"
    with FileLock(f"{directory}.lock"):
        if not (directory / "reports/tiny/index.html").exists():
            directory.mkdir(exist_ok=True)
            make_run(directory, ROOT / "configs/tiny.yaml", *SHARDS)
    return directory


@pytest.fixture
def start(slurm):
    """Starts snakemake on the cluster as a person does, so that it can be interrupted; a test leaves none behind."""
    started = []

    def go(folder: Path, *arguments: str, **files: Path) -> subprocess.Popen:
        started.append(submit(slurm, folder, *arguments, **files))
        return started[-1]

    yield go
    for process in started:
        process.kill()
        process.wait()
