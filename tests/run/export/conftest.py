"""Finished runs of tiny random models with all that an export reads."""

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import torch
from small_runs import write_run

import ffkv
from ffkv.base.files import tables
from ffkv.base.steps import Work
from ffkv.branches.given import Given
from ffkv.branches.keys.tables import PATTERNS
from ffkv.branches.settings import Values
from ffkv.branches.values.project import project_values
from ffkv.branches.values.projections import write_projections
from ffkv.run.export.settings import Export
from ffkv.run.export.step import export
from ffkv.run.results.run import Run

MEMORIES = ["L0.3, 0/10-14", "L1.0-4", "L1D63", "L2.0"]
CHOSEN = [(0, 3), *((0, n) for n in range(10, 15)), *((1, n) for n in range(5)), (1, 63), (2, 0)]
TOP = 5  # tokens at each end of a value


def complete(folder: Path) -> Path:
    """Adds projections, patterns and the tables that `Run` reads to a run of `small_runs`."""
    files = {"model": folder / "model", "values": folder / "values.h5", "triggers": folder / "triggers.h5"}
    projections, _ = project_values(Given(Work("cpu"), **files), Values(top_tokens=TOP))
    write_projections(folder / "values/projections/0.h5", projections)
    rows = [("trigger", 0, 3, 0, "last word", "shallow", "ends with “w1”", 3, 0.1, 0.01, 0.02, [0, 2, 3])]
    tables.write(pd.DataFrame(rows, columns=PATTERNS.names), folder / "keys/patterns/0.parquet")
    return folder


@pytest.fixture(scope="session")
def exported_run(checkpoints, tmp_path_factory) -> Callable[[str], Path]:
    """The folders of runs of tiny random checkpoints, by kind. Whoever changes a file there takes a copy."""
    made: dict[str, Path] = {}

    def get(kind: str) -> Path:
        if kind not in made:
            torch.manual_seed(0)
            made[kind] = complete(
                write_run(tmp_path_factory.mktemp(kind) / "run", checkpoints(kind), "auto", "float32")
            )
        return made[kind]

    return get


@pytest.fixture(scope="session")
def run(exported_run) -> Run:
    """A run of a GPT-2 with GELU, whose coefficients have both signs."""
    return ffkv.open(exported_run("gpt2"))


@pytest.fixture(scope="session")
def exported(run, tmp_path_factory) -> Callable[[str], Path]:
    """Exports of the memories `CHOSEN` of this run, by format."""
    made: dict[str, Path] = {}

    def get(format_name: str) -> Path:
        if format_name not in made:
            made[format_name] = tmp_path_factory.mktemp("exports") / format_name
            wanted = Export(memories=MEMORIES, examples=3, sentences=8)
            export(run, format_name, made[format_name], wanted, "cpu")
        return made[format_name]

    return get
