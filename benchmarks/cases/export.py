"""An export of memories with the texts that trigger them, beside the bare forward pass over these texts.

A whole export of GPT-2 small has 36,864 memories at 20 sentences of each sign. That would take too long here, so every 256th memory is
exported, on 300 sentences: a sentence is wanted by 19 memories, as in a whole export over 78,000 different sentences. What an
export keeps in memory is measured on 36,864 memories, of a narrow model.
"""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.inputs import GPT2, Shape, prepare_model
from benchmarks.made_up_run import make_run
from benchmarks.measure import Comparison, Contender, Work, cpu_ratio
from ffkv.activations.batches import Batching
from ffkv.base.batching import batches, pad
from ffkv.model.checkpoint.load import load
from ffkv.run.export.selection import select
from ffkv.run.export.settings import Export
from ffkv.run.export.step import export
from ffkv.run.results.run import Run, open

EVERY = 256  # memories
EXAMPLES, RANDOM = 20, 100  # sentences of a memory, and sentences that all share
NARROW = [12, 64, 3072, 500]


def ffkv(scratch: Path, shape: list[int], sentences: int, every: int = EVERY) -> Work:
    """Exports the memories as NeuronRecords, with their random sentences, from nothing to the files."""
    run, output = _run(scratch, shape, sentences), scratch / "exported"
    run.model("cpu")

    def work() -> dict[str, Any]:
        shutil.rmtree(output, ignore_errors=True)
        wanted = Export(memories=_names(shape, every), examples=EXAMPLES, sentences=RANDOM)
        export(run, "neuron-record", output, wanted, "cpu")
        return {"files": len([*output.glob("positive/*/*.json")])}

    return work


def forward(scratch: Path, shape: list[int], sentences: int) -> Work:
    """The body of the model alone over the same sentences, each once, without hooks and without the projection."""
    run = _run(scratch, shape, sentences)
    layer, memory = _places(shape, EVERY)
    numbers = select(run, layer, memory, EXAMPLES, RANDOM).sentences
    corpus, body = run.corpus("train"), load(run.folder / "model", "cpu").model.base_model
    ids = [np.concatenate([corpus.bos, corpus.ids(int(number))]) for number in numbers]
    groups = batches(np.array([len(row) for row in ids]), Batching().tokens)

    def work() -> dict[str, Any]:
        for rows in groups:
            with torch.inference_mode():
                body(input_ids=pad([ids[row] for row in rows]), use_cache=False)
        return {"sentences": len(numbers)}

    return work


def _run(scratch: Path, shape: list[int], sentences: int) -> Run:
    return open(make_run(scratch, shape, sentences, prepare_model(scratch, shape)))


def _places(shape: list[int], every: int) -> tuple[np.ndarray, np.ndarray]:
    sizes = Shape(*shape)
    memory = np.arange(0, sizes.memories, min(every, sizes.memories))
    return np.repeat(np.arange(sizes.layers), len(memory)), np.tile(memory, sizes.layers)


def _names(shape: list[int], every: int) -> list[str]:
    return [f"L{layer}.{memory}" for layer, memory in zip(*_places(shape, every), strict=True)]


COMPARISONS = [
    Comparison(
        "export",
        f"{GPT2}, 144 memories at {EXAMPLES} sentences of each sign, of 300",
        {name: Contender(f"{__name__}:{name}", {"shape": GPT2, "sentences": 300}) for name in ("forward", "ffkv")},
        cpu_ratio("ffkv", "forward"),
        1.3,
        "times the CPU time of the bare forward pass over the sentences",
        rounds=1,
    ),
    Comparison(
        "export",
        f"all 36,864 memories beside every 16th, d=64, {EXAMPLES} sentences of each sign, of 300",
        {
            name: Contender(f"{__name__}:ffkv", {"shape": NARROW, "sentences": 300, "every": every})
            for name, every in (("few", 16), ("all", 1))
        },
        lambda measurements: measurements["all"].peak / measurements["few"].peak,
        1.3,
        "times the peak",
        rounds=1,
    ),
]
