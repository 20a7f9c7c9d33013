"""Trigger examples of every key, beside the bare forward pass of the model's body over the same batches."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.inputs import GPT2, SMALL, ids_of, make_corpora, prepare_model
from benchmarks.measure import Comparison, Work, cpu_ratio, digest, same_work
from ffkv.activations.batches import Batching, batches_of
from ffkv.activations.triggers import find_triggers
from ffkv.base.settings import Triggers
from ffkv.corpus.competing import CompetingPrefixes
from ffkv.corpus.corpus_file import Corpus
from ffkv.model.checkpoint.load import load


def ffkv(scratch: Path, shape: list[int], sentences: int) -> Work:
    """The pass of ffkv: triggers of both signs, and all statistics. Its digest has coefficients with five digits."""
    folder = prepare_model(scratch, shape)
    loaded, (corpus, warm) = load(folder, "cpu"), make_corpora(scratch, folder, sentences)
    find_triggers(loaded, warm, Triggers(), Batching())

    def work() -> dict[str, Any]:
        triggers = find_triggers(loaded, corpus, Triggers(), Batching())
        places = digest(np.round(triggers.coefficient, 5), triggers.sentence, triggers.position)
        return {"digest": places, "tokens": len(corpus.tokens)}

    return work


def forward(scratch: Path, shape: list[int], sentences: int) -> Work:
    """The body of the model alone, without hooks and without the projection onto the vocabulary."""
    folder = prepare_model(scratch, shape)
    return forward_of(load(folder, "cpu").model.base_model, *make_corpora(scratch, folder, sentences))


def forward_of(body: torch.nn.Module, corpus: Corpus, warm: Corpus) -> Work:
    """The forward pass of a body over a corpus. Before it is measured, it has read a smaller one."""

    def work(corpus: Corpus = corpus) -> None:
        for rows in batches_of(CompetingPrefixes(corpus, once=True), Batching()):
            with torch.inference_mode():
                body(input_ids=ids_of(corpus, rows), use_cache=False)

    work(warm)
    return work


COMPARISONS = [
    Comparison(
        "triggers",
        f"{shape}, {sentences:,} sentences",
        same_work(__name__, ("forward", "ffkv"), shape=shape, sentences=sentences),
        cpu_ratio("ffkv", "forward"),
        target,
        "times the CPU time of the bare forward pass",
        rounds=rounds,
    )
    for shape, sentences, target, rounds in ((GPT2, 500, 1.10, 3), (SMALL, 4000, 1.25, 2))
]
