"""Finished runs of tiny random models: the files that a trace reads, made by the steps of the workflow."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from small_runs import write_run

import ffkv
from ffkv.model.checkpoint.load import LoadedModel, load
from ffkv.run.results.run import Run


@pytest.fixture(scope="session")
def traced(checkpoints, write_checkpoint, tmp_path_factory) -> Callable[..., Run]:
    """Runs of tiny random checkpoints by kind ("fairseq" too), open, made when first asked for."""
    made: dict[tuple[str, ...], Run] = {}

    def get(kind: str, bos: str = "auto", dtype: str = "float32") -> Run:
        if (kind, bos, dtype) not in made:
            torch.manual_seed(0)
            folder = tmp_path_factory.mktemp(kind)
            checkpoint = write_checkpoint(folder / "checkpoint") if kind == "fairseq" else checkpoints(kind)
            made[kind, bos, dtype] = ffkv.open(write_run(folder / "run", checkpoint, bos, dtype))
        return made[kind, bos, dtype]

    return get


@pytest.fixture(scope="session")
def loaded() -> Callable[[Run], LoadedModel]:
    """The models of the runs, loaded apart from those of the traces."""
    made: dict[Path, LoadedModel] = {}

    def get(run: Run) -> LoadedModel:
        if run.folder not in made:
            made[run.folder] = load(run.folder / "model", "cpu")
        return made[run.folder]

    return get
