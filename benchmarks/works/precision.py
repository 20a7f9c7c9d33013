"""What bfloat16 weights (`model.dtype`) do to the triggers: how many of the top 50 stay, and how many where twice as many
finalists are rescored in float32."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from benchmarks import inputs
from benchmarks.inputs import SMALL, Shape
from benchmarks.measure import Arm, Row
from ffkv.activations.last_token import last_coefficients
from ffkv.activations.trigger_file import Triggers
from ffkv.activations.triggers import find_triggers
from ffkv.corpus.corpus_file import Corpus, read_corpus
from ffkv.keys.precision import rescore
from ffkv.model.checkpoint.load import LoadedModel, load
from ffkv.process.runtime import configure, torch_with
from ffkv.settings import Activations
from ffkv.settings import Triggers as Settings

TOP = Settings().per_key


def both(scratch: Path, shape: list[int], sentences: int) -> Callable:
    """The triggers of float32, and twice as many of bfloat16, one after the other."""
    configure(1)
    torch_with(1)
    model = inputs.model_folder(scratch, Shape(*shape))
    corpus = read_corpus(inputs.corpus_file(scratch, model, sentences))

    def find(dtype: torch.dtype, count: int) -> tuple[Triggers, float]:
        loaded = load(model, "cpu")
        loaded = replace(loaded, model=loaded.model.to(dtype))
        begin = time.process_time()
        found = find_triggers(loaded, corpus, Settings(per_key=count, negative=False), Activations())
        return found, time.process_time() - begin

    def work() -> tuple[str, dict[str, float]]:
        (exact, slow), (rough, fast) = find(torch.float32, TOP), find(torch.bfloat16, 2 * TOP)
        right, finalists = places(exact), places(rough)
        order = np.argsort(-coefficients(load(model, "cpu"), corpus, rough), axis=1, kind="stable")
        again = np.take_along_axis(finalists, order, 1)
        shares = {"same": shared(right, finalists[:, :TOP]), "rescored": shared(right, again[:, :TOP])}
        return "", {"float32": slow, "bfloat16": fast, **shares}

    return work


def places(found: Triggers) -> np.ndarray:
    """Where the trigger examples stand in the corpus, a number each [memory, rank]."""
    return found.sentence.astype(np.int64) * 2**20 + found.position


def coefficients(loaded: LoadedModel, corpus: Corpus, found: Triggers) -> np.ndarray:
    """Of trigger examples in the model as it is loaded here [memory, rank]; -inf where there is none."""
    again = np.full(found.sentence.shape, -np.inf, np.float32)
    for layer in range(found.layers):
        counts = found.count[found.rows(layer)]

        def compute(rows: list[np.ndarray], memories: np.ndarray, layer: int = layer) -> np.ndarray:
            return last_coefficients(loaded, layer, rows, memories, Activations().batch_tokens)

        *_, exact = rescore(found, corpus, layer, np.arange(len(counts)), compute)
        again[found.rows(layer)][np.arange(again.shape[1]) < counts[:, None]] = exact
    return again


def shared(right: np.ndarray, found: np.ndarray) -> float:
    """Share of the trigger examples that are among those of the other, too, over all keys."""
    both = [np.isin(mine, others).sum() for mine, others in zip(right, found, strict=True)]
    return float(sum(both) / right.size)


def row(name: str, work: str, note: str) -> Row:
    """One of the shares."""
    return Row(
        work,
        f"{SMALL}, 1,000 sentences",
        {"both": Arm(f"{__name__}:both", {"shape": list(SMALL), "sentences": 1000})},
        lambda samples: samples["both"].extra[name],
        None,
        f"of the top {TOP} are those of float32",
        rounds=1,
        note=note,
    )


ROWS = [
    row("same", "triggers in bfloat16", "a random model, whose coefficients lie closer together than a trained one's"),
    row("rescored", f"triggers in bfloat16, {2 * TOP} finalists a key rescored", "by the float32 weights; all keys"),
]
