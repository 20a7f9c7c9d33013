"""The effect of bfloat16 weights (`model.dtype`) on triggers.

Two shares are measured: the top t of bfloat16 that are in the top t of float32, and the same after the top 2t of bfloat16
were computed again in float32.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from benchmarks.inputs import SMALL, make_corpora, prepare_model
from benchmarks.measure import Comparison, Work, same_work
from ffkv.activations.last_token import last_coefficients
from ffkv.activations.trigger_file import Triggers
from ffkv.activations.triggers import find_triggers
from ffkv.corpus.corpus_file import Corpus
from ffkv.keys.precision import rescore
from ffkv.model.checkpoint.load import LoadedModel, load
from ffkv.settings import Activations
from ffkv.settings import Triggers as Settings

TOP = Settings().per_key


def both(scratch: Path, shape: list[int], sentences: int) -> Work:
    """The triggers of float32, then twice as many of bfloat16."""
    folder = prepare_model(scratch, shape)
    corpus, _ = make_corpora(scratch, folder, sentences)

    def find(dtype: torch.dtype, count: int) -> Triggers:
        loaded = load(folder, "cpu")
        loaded = replace(loaded, model=loaded.model.to(dtype))
        return find_triggers(loaded, corpus, Settings(per_key=count, negative=False), Activations())

    def work() -> tuple[str, dict[str, float]]:
        exact, low = find(torch.float32, TOP), find(torch.bfloat16, 2 * TOP)
        order = np.argsort(-exact_coefficients(load(folder, "cpu"), corpus, low), axis=1, kind="stable")
        exact_places, places = (
            triggers.sentence.astype(np.int64) * 2**20 + triggers.position for triggers in (exact, low)
        )
        rescored = np.take_along_axis(places, order, 1)
        shares = {"same": share_in_both(exact_places, places), "rescored": share_in_both(exact_places, rescored)}
        return "", shares

    return work


def exact_coefficients(loaded: LoadedModel, corpus: Corpus, triggers: Triggers) -> np.ndarray:
    """Coefficients of trigger examples, computed again by the loaded model [memory, rank]; -inf if there is none."""
    coefficients = np.full(triggers.sentence.shape, -np.inf, np.float32)
    for layer in range(triggers.layers):
        counts = triggers.count[triggers.rows(layer)]

        def compute(rows: list[np.ndarray], memories: np.ndarray, layer: int = layer) -> np.ndarray:
            return last_coefficients(loaded, layer, rows, memories, Activations().batch_tokens)

        *_, exact = rescore(triggers, corpus, layer, np.arange(len(counts)), compute)
        coefficients[triggers.rows(layer)][np.arange(coefficients.shape[1]) < counts[:, None]] = exact
    return coefficients


def share_in_both(exact: np.ndarray, places: np.ndarray) -> float:
    """Share of the exact places [memory, rank] that are among the first `TOP` places of the same memory, too."""
    return float(np.mean([np.isin(row, others[:TOP]) for row, others in zip(exact, places, strict=True)]))


def compare(share: str, case: str, note: str) -> Comparison:
    """One of the shares."""
    return Comparison(
        case,
        f"{SMALL}, 1,000 sentences",
        same_work(__name__, ("both",), shape=SMALL, sentences=1000),
        lambda measurements: measurements["both"].extra[share],
        None,
        f"of the top {TOP} are the same as in float32",
        rounds=1,
        note=note,
    )


COMPARISONS = [
    compare("same", "triggers in bfloat16", "a random model; coefficients of a trained one are farther apart"),
    compare(
        "rescored", f"triggers in bfloat16, {2 * TOP} finalists per key rescored", "with float32 weights; all keys"
    ),
]
