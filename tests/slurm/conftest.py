"""The test cluster, a finished local run to compare with, and what each failure cost."""

from collections.abc import Callable
from pathlib import Path

import pytest
from slurm.cluster import Cluster, cluster, missing
from support import ROOT, snakemake

SHARDS = ("--config", "shards=3")
COSTS: list[str] = []


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


@pytest.fixture
def cost() -> Callable[[str, float], None]:
    """Notes the seconds that a failure cost, for the summary at the end."""
    return lambda failure, seconds: COSTS.append(f"{failure}: {seconds:.0f} s")


def pytest_terminal_summary(terminalreporter) -> None:
    """Prints what the failures cost."""
    if COSTS:
        terminalreporter.section("what each failure cost on the test cluster")
        terminalreporter.write_line("\n".join(COSTS))
