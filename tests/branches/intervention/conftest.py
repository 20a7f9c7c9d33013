"""What interventions read, made from tiny checkpoints by the steps of the workflow."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support import random_sentences

import ffkv
from ffkv.base.steps import Work
from ffkv.branches.given import Given
from ffkv.branches.settings import Batches, Corpus, Model, Prefixes, Triggers, Values
from ffkv.branches.values.project import project_values
from ffkv.branches.values.projections import write_projections


def write_inputs(
    folder: Path, checkpoint: Path, sentences: list[str], dtype: str = "float32", per_key: int = 6
) -> dict[str, Path]:
    """Writes the files that `measure_interventions` reads."""
    folder.mkdir(parents=True)
    (folder / "text.txt").write_text("\n".join(sentences))
    corpus = Corpus(dataset="files", train=[str(folder / "text.txt")], splitter="line", validation_share=0.3)
    (folder / "model").mkdir()
    ffkv.prove(Model(checkpoint=str(checkpoint), device="cpu", dtype=dtype)).write(
        folder / "model", folder / "values.h5"
    )
    for split in ("train", "validation"):
        ffkv.encode_corpus(folder / "model", split, corpus, folder / f"{split}.h5")
    triggers = ffkv.find_triggers(
        folder / "model", folder / "train.h5", Triggers(per_key=per_key), Batches(tokens=64), work=Work("cpu")
    )
    ffkv.write_triggers(folder / "triggers.h5", triggers)
    files = {"model": folder / "model", "triggers": folder / "triggers.h5"}
    projections, _ = project_values(Given(Work("cpu"), **files, values=folder / "values.h5"), Values(top_tokens=5))
    write_projections(folder / "projections.h5", projections)
    ffkv.sample_prefixes(
        folder / "model", folder / "validation.h5", folder / "sampled.h5", Prefixes(count=20), work=Work("cpu")
    )
    files |= {"projections": folder / "projections.h5", "prefixes": folder / "sampled.h5"}
    return files | {split: folder / f"{split}.h5" for split in ("train", "validation")}


@pytest.fixture(scope="session")
def inputs(checkpoints, write_checkpoint, tmp_path_factory) -> Callable[..., dict[str, Path]]:
    """The files that `measure_interventions` reads, by kind of a tiny random checkpoint ("fairseq" too)."""
    made: dict[tuple[str, str], dict[str, Path]] = {}

    def get(kind: str, dtype: str = "float32") -> dict[str, Path]:
        if (kind, dtype) not in made:
            torch.manual_seed(0)
            folder = tmp_path_factory.mktemp(kind)
            checkpoint = write_checkpoint(folder / "checkpoint") if kind == "fairseq" else checkpoints(kind)
            made[kind, dtype] = write_inputs(folder / "run", checkpoint, random_sentences(0, 60, words=40), dtype)
        return made[kind, dtype]

    return get
