"""The test cluster, and a finished local run to compare with."""

from pathlib import Path

import pytest
from slurm.cluster import Cluster, cluster, missing
from support import ROOT, snakemake

SHARDS = ("--config", "shards=3")


@pytest.fixture(scope="session")
def slurm(tmp_path_factory) -> Cluster:
    """A cluster of two nodes that runs."""
    if reason := missing():
        pytest.skip(reason)
    with cluster(tmp_path_factory.mktemp("slurm")) as running:
        yield running


@pytest.fixture(scope="session")
def undisturbed(slurm, tmp_path_factory) -> Path:
    """The folder of a run of configs/tiny.yaml in three shards, by local processes."""
    directory = tmp_path_factory.mktemp("local")
    done = snakemake(directory, ROOT / "configs/tiny.yaml", *SHARDS)
    assert done.returncode == 0, done.stderr[-8000:]
    return directory
