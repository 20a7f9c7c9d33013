"""Trigger examples of every key, beside the bare forward pass of the body over the same batches."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from benchmarks import inputs
from benchmarks.inputs import GPT2, SMALL, Shape
from benchmarks.measure import Arm, Row, cpu_ratio
from ffkv.activations.batches import blocks
from ffkv.activations.trigger_file import Triggers
from ffkv.activations.triggers import find_triggers
from ffkv.batching import batches, pad
from ffkv.corpus.corpus_file import read_corpus
from ffkv.model.checkpoint.load import load
from ffkv.process.runtime import configure, torch_with
from ffkv.settings import Activations
from ffkv.settings import Triggers as Settings


def ffkv(scratch: Path, shape: list[int], sentences: int) -> Callable:
    """Our pass: triggers of both signs, and all statistics."""
    configure(1)
    torch_with(1)
    model = inputs.model_folder(scratch, Shape(*shape))
    loaded, corpus = load(model, "cpu"), read_corpus(inputs.corpus_file(scratch, model, sentences))
    warm = read_corpus(inputs.corpus_file(scratch, model, inputs.WARM))
    find_triggers(loaded, warm, Settings(), Activations())
    return lambda: (digest(find_triggers(loaded, corpus, Settings(), Activations())), {})


def forward(scratch: Path, shape: list[int], sentences: int) -> Callable:
    """The model's body alone, without hooks and without the projection onto the vocabulary."""
    configure(1)
    torch_with(1)
    model = inputs.model_folder(scratch, Shape(*shape))
    loaded, corpus = load(model, "cpu"), read_corpus(inputs.corpus_file(scratch, model, sentences))
    body, cut = loaded.model.base_model, Activations()

    def work(sentences: int = len(corpus)) -> None:
        for block in blocks(sentences, cut.block_sentences):
            for rows in batches(corpus.lengths[block.start : block.stop], cut.batch_tokens):
                ids = pad([np.concatenate([corpus.bos, corpus.ids(s)[:-1]]) for s in rows + block.start], "cpu")
                with torch.inference_mode():
                    body(input_ids=ids, use_cache=False)

    work(32)
    return work


def digest(found: Triggers) -> str:
    """Of the coefficients, with five digits, and of where they stand: what every right implementation finds."""
    parts = [np.round(found.coefficient, 5), found.sentence, found.position]
    return hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()[:16]


def row(shape: Shape, sentences: int, target: float, rounds: int) -> Row:
    """Triggers of so many sentences over the bare forward pass."""
    same = {"shape": list(shape), "sentences": sentences}
    return Row(
        "triggers",
        f"{shape}, {sentences:,} sentences",
        {name: Arm(f"{__name__}:{name}", same) for name in ("forward", "ffkv")},
        cpu_ratio("ffkv", "forward"),
        target,
        "times the CPU time of the bare forward pass",
        rounds=rounds,
    )


ROWS = [row(GPT2, 500, 1.10, 3), row(SMALL, 4000, 1.25, 2)]
