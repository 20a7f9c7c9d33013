"""What the steps of `translation` read, of a random model."""

from pathlib import Path

import numpy as np
import pytest
import torch
from support import random_sentences

from ffkv.activations.step import find_triggers, sample_prefixes
from ffkv.activations.trigger_file import write_triggers
from ffkv.base.steps import Part, Work
from ffkv.branches.given import Given
from ffkv.branches.settings import Batches, Prefixes, Translation, Triggers, Values
from ffkv.branches.translation.states import read_states
from ffkv.branches.values.project import project_values
from ffkv.branches.values.projections import write_projections
from ffkv.model.anatomy import read_anatomy
from ffkv.model.checkpoint.tokenizer import load_tokenizer

SETTINGS = Translation(prefixes=120)
BLOCKS = Batches(tokens=100, block_sentences=50)


@pytest.fixture
def files(proven, write_corpus, tmp_path):
    """Makes all that the steps read, of a random model of a kind; states in two shards."""

    def make(kind: str) -> dict[str, Path | list[Path]]:
        model = proven(kind)
        identity, tokenizer = read_anatomy(model).identity, load_tokenizer(model)
        train = write_corpus(random_sentences(0, 60), tokenizer, "train.h5", **identity)
        validation = write_corpus(random_sentences(1, 30), tokenizer, "validation.h5", **identity)
        write_triggers(tmp_path / "triggers.h5", find_triggers(model, train, Triggers(per_key=3), work=Work("cpu")))
        found = {"model": model, "values": model.parent / "values.h5", "triggers": tmp_path / "triggers.h5"}
        projections, _ = project_values(Given(Work("cpu"), **found), Values(top_tokens=4))
        write_projections(tmp_path / "projections.h5", projections)
        sample_prefixes(model, validation, tmp_path / "prefixes.h5", Prefixes(count=40), work=Work("cpu"))
        found |= {"projections": tmp_path / "projections.h5", "prefixes": tmp_path / "prefixes.h5"}
        states = [tmp_path / f"states/{shard}.h5" for shard in range(2)]
        for shard, path in enumerate(states):
            given = Given(Work("cpu", part=Part(shard, 2)), model=model, train=train)
            read_states(given, SETTINGS, Prefixes(), BLOCKS)(path)
        return found | {"train": train, "states": states}

    return make


def made_linear(loaded, w: np.ndarray) -> None:
    """Makes each block of a tiny GPT-2 add r W, with W of the layer [layer, d, d]: no attention, no norm, no activation function."""
    for block, own in zip(loaded.model.transformer.h, w, strict=True):
        for name, tensor in block.named_parameters():
            if name.startswith(("attn.c_proj", "mlp")):
                tensor.data.zero_()
        block.ln_2, block.mlp.act = torch.nn.Identity(), torch.nn.Identity()
        d = len(own)
        block.mlp.c_fc.weight.data[:, :d] = torch.eye(d)
        block.mlp.c_proj.weight.data[:d] = torch.from_numpy(own)
