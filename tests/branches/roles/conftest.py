"""Models of all kinds of layers, with all files that the roles of their memories are read from."""

from dataclasses import replace
from pathlib import Path

import pytest

from ffkv.activations.batches import Batching
from ffkv.activations.trigger_file import write_triggers
from ffkv.activations.triggers import find_triggers
from ffkv.base.steps import Work
from ffkv.branches.given import Given
from ffkv.branches.settings import Triggers, Values
from ffkv.branches.values.project import project_values
from ffkv.branches.values.projections import write_projections
from ffkv.corpus.corpus_file import read_corpus
from ffkv.model.anatomy import read_anatomy
from ffkv.model.checkpoint.load import load
from ffkv.model.checkpoint.tokenizer import load_tokenizer


@pytest.fixture
def files_of(write_corpus, tmp_path):
    """Makes the inputs of `measure_roles` for the folder of a model step; values.h5 lies beside it."""

    def make(model: Path, sentences: list[str]) -> dict[str, Path]:
        corpus_file = write_corpus(sentences, load_tokenizer(model), **read_anatomy(model).identity)
        corpus = read_corpus(corpus_file)
        found = find_triggers(load(model, "cpu"), corpus, Triggers(per_key=5), Batching())
        write_triggers(tmp_path / "triggers.h5", replace(found, attributes={**corpus.attributes, "settings": {}}))
        files = {"model": model, "values": model.parent / "values.h5", "triggers": tmp_path / "triggers.h5"}
        projections, _ = project_values(Given(Work("cpu"), **files), Values(top_tokens=12))
        write_projections(tmp_path / "0.h5", projections)
        return files | {"projections": tmp_path / "0.h5", "train": corpus_file}

    return make
