"""What bfloat16 weights (`model.dtype`) do to the triggers: how many of the top 50 stay."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from benchmarks import inputs
from benchmarks.inputs import SMALL, Shape
from benchmarks.measure import Arm, Row
from ffkv.activations.data import Triggers
from ffkv.activations.triggers import find_triggers
from ffkv.corpus import data
from ffkv.model.load import load
from ffkv.runtime import configure, torch_with
from ffkv.settings import Activations
from ffkv.settings import Triggers as Settings


def both(scratch: Path, shape: list[int], sentences: int) -> Callable:
    """The triggers of float32 and of bfloat16, one after the other."""
    configure(1)
    torch_with(1)
    model = inputs.model_folder(scratch, Shape(*shape))
    corpus = data.read(inputs.corpus_file(scratch, model, sentences))

    def find(dtype: torch.dtype) -> tuple[Triggers, float]:
        loaded = load(model, "cpu")
        loaded = replace(loaded, model=loaded.model.to(dtype))
        begin = time.process_time()
        return find_triggers(loaded, corpus, Settings(), Activations()), time.process_time() - begin

    def work() -> tuple[str, dict[str, float]]:
        (exact, slow), (rough, fast) = find(torch.float32), find(torch.bfloat16)
        return "", {"float32": slow, "bfloat16": fast, "same": shared(exact, rough), "first": first(exact, rough)}

    return work


def shared(exact: Triggers, rough: Triggers) -> float:
    """Share of the trigger examples that are among those of the other, too, over all keys."""
    places = [found.sentence.astype(np.int64) * 2**20 + found.position for found in (exact, rough)]
    both = [np.isin(mine, others).sum() for mine, others in zip(*places, strict=True)]
    return float(sum(both) / places[0].size)


def first(exact: Triggers, rough: Triggers) -> float:
    """Share of the keys whose highest trigger example is the same."""
    same = (exact.sentence[:, 0] == rough.sentence[:, 0]) & (exact.position[:, 0] == rough.position[:, 0])
    return float(same.mean())


ROWS = [
    Row(
        "triggers in bfloat16",
        f"{SMALL}, 1,000 sentences",
        {"both": Arm(f"{__name__}:both", {"shape": list(SMALL), "sentences": 1000})},
        lambda samples: samples["both"].extra["same"],
        None,
        "of the top 50 are those of float32",
        rounds=1,
        note="not rescored; a random model, whose coefficients lie closer together than a trained one's",
    )
]
