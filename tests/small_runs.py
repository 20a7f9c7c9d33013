"""Runs of tiny random models, made by the steps of the workflow."""

from pathlib import Path

from support import random_sentences

import ffkv
from ffkv.base.files import tables
from ffkv.base.steps import Work
from ffkv.branches.given import Given
from ffkv.branches.settings import Settings
from ffkv.branches.values.project import project_values

BATCH_TOKENS = 64


def write_run(folder: Path, checkpoint: Path, bos: str, dtype: str) -> Path:
    """Writes settings, model, corpus, triggers and the table of values into `folder`."""
    for split, seed in (("train", 0), ("validation", 1)):
        (folder.parent / f"{folder.name}-{split}.txt").write_text("\n".join(random_sentences(seed, 24, words=40)))
    settings = Settings.model_validate(
        {
            "model": {"checkpoint": str(checkpoint), "device": "cpu", "dtype": dtype},
            "corpus": {
                "dataset": "files",
                "train": [str(folder.parent / f"{folder.name}-train.txt")],
                "validation": [str(folder.parent / f"{folder.name}-validation.txt")],
                "txt_document": "line",
                "splitter": "line",
                "bos": bos,
            },
            "triggers": {"per_key": 4},
            "values": {"top_tokens": 5},
            "batches": {"tokens": BATCH_TOKENS},
        }
    )
    (folder / "model").mkdir(parents=True)
    (folder / "settings.json").write_text(settings.model_dump_json())
    ffkv.prove(settings.model).write(folder / "model", folder / "values.h5")
    for split in ("train", "validation"):
        ffkv.encode_corpus(folder / "model", split, settings.corpus, folder / f"corpus/{split}.h5")
    triggers = ffkv.find_triggers(
        folder / "model", folder / "corpus/train.h5", settings.triggers, settings.batches, work=Work("cpu")
    )
    ffkv.write_triggers(folder / "triggers.h5", triggers)
    files = {"model": folder / "model", "values": folder / "values.h5", "triggers": folder / "triggers.h5"}
    _, by_memory = project_values(Given(Work("cpu"), **files), settings.values)
    tables.write(by_memory, folder / "values/by_memory/0.parquet")
    return folder
