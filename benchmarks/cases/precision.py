"""The effect of bfloat16 weights (`model.dtype`) on triggers.

Two shares of float32's top t are measured: those in the top t of bfloat16, and those in its top 2t. The second ones are found
if the coefficients of the top 2t are computed again in float32.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from benchmarks.inputs import SMALL, make_corpora, prepare_model
from benchmarks.measure import Comparison, Work, same_work
from ffkv.activations.batches import Batching
from ffkv.activations.triggers import find_triggers
from ffkv.base.settings import Triggers
from ffkv.model.checkpoint.load import load

TOP = Triggers().per_key


def both(scratch: Path, shape: list[int], sentences: int) -> Work:
    """The triggers of float32, then twice as many of bfloat16."""
    folder = prepare_model(scratch, shape)
    corpus, _ = make_corpora(scratch, folder, sentences)

    def find_places(dtype: torch.dtype, count: int) -> np.ndarray:
        loaded = load(folder, "cpu")
        loaded = replace(loaded, model=loaded.model.to(dtype))
        triggers = find_triggers(loaded, corpus, Triggers(per_key=count, negative=False), Batching())
        return triggers.sentence.astype(np.int64) * 2**20 + triggers.position

    def work() -> dict[str, float]:
        exact, low = find_places(torch.float32, TOP), find_places(torch.bfloat16, 2 * TOP)
        found = {count: [np.isin(row, places[:count]) for row, places in zip(exact, low)] for count in (TOP, 2 * TOP)}
        return {f"in top {count}": float(np.mean(share)) for count, share in found.items()}

    return work


def compare(count: int, case: str, note: str) -> Comparison:
    """The share of float32's top t in the top `count` of bfloat16."""
    return Comparison(
        case,
        f"{SMALL}, 1,000 sentences",
        same_work(__name__, ("both",), shape=SMALL, sentences=1000),
        lambda measurements: measurements["both"].extra[f"in top {count}"],
        None,
        f"of the top {TOP} of float32 are among them",
        rounds=1,
        note=note,
    )


COMPARISONS = [
    compare(TOP, "triggers in bfloat16", "a random model; coefficients of a trained one are farther apart"),
    compare(2 * TOP, f"{2 * TOP} triggers per key in bfloat16", "computing them again in float32 finds these"),
]
