"""Contrast and screen of every memory on prompts, beside bare forward passes over the same prompts, on SmolLM2."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.cases.smollm2 import prepare
from benchmarks.measure import Comparison, Work, cpu_ratio, same_work
from ffkv.activations.batches import Batching
from ffkv.base.batching import batches, pad
from ffkv.branches.behaviours.states import AtTokens, read_states
from ffkv.branches.behaviours.stored import BLOCK, Encoded
from ffkv.model.checkpoint.load import LoadedModel
from ffkv.model.effects.gradient import link
from ffkv.model.head.head import Head
from ffkv.model.head.head_file import load_head
from ffkv.model.keys_and_values import values_in_place
from ffkv.model.tap.tap import tap

PROMPTS, TOKENS = 200, (6, 14)  # number of pairs; fewest and most tokens of a prompt, BOS included


def pairs(loaded: LoadedModel) -> list[Encoded]:
    """Pairs of random tokens, of equal length."""
    generator, vocabulary = np.random.default_rng(0), loaded.anatomy.vocabulary
    lengths = generator.integers(*TOKENS, PROMPTS)
    rows = [generator.integers(0, vocabulary, (2, length)) for length in lengths]
    answers = [generator.choice(vocabulary, 2, replace=False).tolist() for _ in rows]
    return [Encoded(*row, *answer, "") for row, answer in zip(rows, answers, strict=True)]


def groups(prompts: list[Encoded]) -> list[list[Encoded]]:
    """The batches of `read_states`."""
    found = []
    for start in range(0, len(prompts), BLOCK):
        block = prompts[start : start + BLOCK]
        lengths = np.array([len(each.clean) for each in block])
        found += [[block[n] for n in batch] for batch in batches(lengths, Batching().tokens)]
    return found


def _model(scratch: Path) -> tuple[LoadedModel, Head, list[list[Encoded]]]:
    folder, loaded, _ = prepare(scratch)
    return loaded, load_head(folder, "cpu"), groups(pairs(loaded))


def bare(scratch: Path) -> Work:
    """The body of the model over the clean prompts."""
    loaded, _, found = _model(scratch)

    def work(count: int | None = None) -> None:
        for group in found[:count]:
            with torch.inference_mode():
                loaded.model.base_model(input_ids=pad([each.clean for each in group]), use_cache=False)

    work(1)
    return work


def contrast(scratch: Path) -> Work:
    """Coefficients of all memories at the last token of the clean prompts."""
    loaded, _, found = _model(scratch)

    def work(count: int | None = None) -> None:
        for group in found[:count]:
            states = AtTokens(loaded, [each.clean for each in group], [1] * len(group))
            with tap(loaded.model, loaded.anatomy.layers, "ms") as run:
                run(states.ids, states.receive)

    work(1)
    return work


def screen(scratch: Path) -> Work:
    """The screen of all memories on the clean prompts: a forward and a backward pass."""
    loaded, head, found = _model(scratch)
    values = [values_in_place(loaded.model, layer)[0] for layer in loaded.anatomy.layers]

    def work(count: int | None = None) -> None:
        for group in found[:count]:
            states = AtTokens(loaded, [each.clean for each in group], [1] * len(group))
            answers = torch.tensor([(each.answer, each.wrong) for each in group])

            def of_end(end: Tensor, answers: Tensor = answers) -> Tensor:
                return head.difference_gradients(end, answers, loaded.anatomy.read_as)[1]

            gradients, _ = link(loaded, states.ids, states.receive, "ms").at(states.last, of_end)
            for gradient, v in zip(gradients, values, strict=True):
                states.at(gradient) @ v.T

    work(1)
    return work


def everything(scratch: Path) -> Work:
    """The work of `ffkv behaviours read`: both prompts of each pair, the screen and the frozen screen."""
    loaded, head, found = _model(scratch)
    mean = np.zeros(loaded.anatomy.layer_offset[-1], np.float32)

    def work(count: int | None = None) -> None:
        prompts = [each for group in found[:count] for each in group]
        read_states(loaded, head, prompts, mean, "patch", Batching().tokens, {})

    work(1)
    return work


def comparison(case: str, contender: str, target: float | None) -> Comparison:
    """A row; all rows share the runs of all contenders."""
    contenders = same_work(__name__, ("bare", "contrast", "screen", "everything"))
    unit = "times the CPU time of the bare forward pass over the clean prompts"
    shape = f"{PROMPTS} pairs of {TOKENS[0]} to {TOKENS[1] - 1} tokens"
    return Comparison(f"behaviours: {case} on SmolLM2", shape, contenders, cpu_ratio(contender, "bare"), target, unit)


COMPARISONS = [
    comparison("contrast", "contrast", 1.1),
    comparison("screen", "screen", 3.2),
    comparison("both prompts, contrast, screen and frozen screen", "everything", None),
]
