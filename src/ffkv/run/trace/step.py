"""Traces one prompt."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ffkv.base.errors import UserError
from ffkv.branches.refinement.cases import classify
from ffkv.model.head.topk import highest
from ffkv.model.tap.hooks import relative_error
from ffkv.run.results import indexes
from ffkv.run.results.memory_name import memory_name
from ffkv.run.results.memory_statistics import token_texts
from ffkv.run.results.run import Run
from ffkv.run.results.run_model import RunModel
from ffkv.run.results.tokens import find_token
from ffkv.run.trace.changes import read_changes
from ffkv.run.trace.contributions import (
    LayerParts,
    contribution_table,
    logit_changes,
    remainder_table,
    split_layers,
)
from ffkv.run.trace.predictions import ByLayer, effect_table, final_table, predict_layers
from ffkv.run.trace.prompt import place, read_prompt
from ffkv.run.trace.result import Trace
from ffkv.run.trace.states import States, end_with_changes, residual_deviations, run_prompt


def trace(
    run: Run,
    text: str,
    *,
    position: int | None = None,
    off: Sequence[str] = (),
    scale: Mapping[str, float] | Sequence[str] = (),
    everywhere: bool = False,
    token: str | int | None = None,
    top: int = 10,
    memories: int = 20,
    device: str = "auto",
) -> Trace:
    """Runs one prompt through the model of a run, and says which memories made its prediction.

    The first trace of a run loads the model, see `Run.model`. `docs/trace.md` defines every number.

    Args:
        run: a finished run.
        text: the prompt, to the letter. What precedes every sentence of the corpus precedes it, too.
        position: the token to look at, as a position in `Trace.tokens`; negative: from the end; None: the last token.
        off: memories to switch off: names such as "L3.17". Their coefficient becomes 0.
        scale: memories to scale, with the factor of their coefficient: {"L3.17": 2}, or ["L3.17:2"].
        everywhere: change them at every token; else at `position` only.
        token: the next token that contributions are measured on: its text to the letter, or its id. None: the token that
            the unchanged model predicts.
        top: number of tokens per prediction.
        memories: number of memories with the largest size per layer, and of memories with the largest effect on the token's logit.
            Both are listed.
        device: as in `Run.model`.
    Raises:
        UserError: the prompt is empty, and the model reads nothing in front of a text; it is longer than the context; a
            position, a memory, a token or a factor does not exist or is malformed; a memory is changed twice; the
            checkpoint is gone or its weights have changed.
    Examples:
        >>> run = ffkv.open("results/tiny")
        >>> trace = ffkv.trace(run, "The function returns")
        >>> trace.contributions.columns.tolist()[:5]  # the memories that make the prediction
        ['layer', 'memory', 'name', 'coefficient', 'size']
    """
    if top < 1 or memories < 0:
        raise UserError(
            f"top is {top} and memories is {memories}. Ask for 1 token or more, and for 0 memories or more."
        )
    vocabulary, factors = run.vocabulary, read_changes(off, scale, run.anatomy)
    wanted = None if token is None else find_token(run.files, token)
    model = run.model(device)
    prompt = read_prompt(run, model.tokenizer, text)
    at, top = place(position, len(prompt.ids)), min(top, len(vocabulary))
    ids = torch.from_numpy(prompt.ids)[None].to(model.device)

    states = run_prompt(model, ids, at)
    logits = model.final_logits(states.end)
    chosen = int(highest(logits[None]).first) if wanted is None else wanted
    by_layer = predict_layers(model.head, states, top)
    parts = split_layers(model, states, at, chosen, memories, factors)
    changes = logit_changes(model, states.end, parts, chosen)
    sums = _sum_table(model, states, parts)
    logits_deviation = relative_error(logits.cpu(), states.logits.cpu())
    effect, divergence = None, None
    if factors:
        after = model.final_logits(end_with_changes(model, ids, at, factors, everywhere))
        effect, divergence = effect_table(logits, after, chosen, top, vocabulary)
    return Trace(
        run=run.name,
        text=prompt.text,
        note=prompt.note,
        position=at,
        token_id=chosen,
        token=vocabulary[chosen],
        changes={memory_name(*changed): factor for changed, factor in factors.items()},
        everywhere=everywhere,
        tokens=prompt.tokens,
        predictions=by_layer.table(vocabulary),
        final=final_table(logits, chosen, top, vocabulary),
        layers=_layer_table(states, by_layer, parts, changes, at, vocabulary),
        contributions=contribution_table(parts, changes, _value_predictions(run, parts)),
        remainders=remainder_table(parts, changes),
        sums=sums,
        logits_deviation=logits_deviation,
        deviation=max(logits_deviation, *sums["memories"], *sums["residual"]),
        effect=effect,
        divergence=divergence,
    )


def _sum_table(model: RunModel, states: States, parts: list[LayerParts]) -> pd.DataFrame:
    """`Trace.sums`."""
    residual = residual_deviations(model, states)
    return pd.DataFrame(
        {"layer": range(len(parts)), "memories": [part.deviation for part in parts], "residual": residual}
    )


def _value_predictions(run: Run, parts: list[LayerParts]) -> pd.DataFrame:
    """top_token and top_probability of the values of the listed memories, from the run's table."""
    offsets = run.anatomy.layer_offset
    rows = np.concatenate([offset + part.listed.cpu().numpy() for offset, part in zip(offsets, parts)])
    found = indexes.values_by_memory(run.files).iloc[rows]
    return found.assign(top_token=token_texts(found["top_token"], run.vocabulary))[["top_token", "top_probability"]]


def _layer_table(
    states: States,
    by_layer: ByLayer,
    parts: list[LayerParts],
    changes: list[Tensor],
    position: int,
    vocabulary: Sequence[str],
) -> pd.DataFrame:
    """`Trace.layers`."""
    top_r, top_y, top_o = by_layer.ids[:, :, position, 0].T
    vectors = [(o[position] - y[position], y[position], o[position]) for y, o in zip(states.y, states.o)]
    norms = [[float(vector.norm()) for vector in column] for column in zip(*vectors)]
    return pd.DataFrame(
        {
            "layer": range(len(parts)),
            "case": classify(top_r, top_y, top_o),
            "top_residual": token_texts(top_r, vocabulary),
            "top_ffn": token_texts(top_y, vocabulary),
            "top_output": token_texts(top_o, vocabulary),
            "norm_residual": norms[0],
            "norm_ffn": norms[1],
            "norm_output": norms[2],
            "factor": [float(s) for s in states.s],
            "logit": [float(change[-1]) for change in changes],
            "active": [int((m > 0).sum()) for m in states.m],
            "nonzero": [int((m != 0).sum()) for m in states.m],
            "listed": [len(part.listed) for part in parts],
            "listed_share": [float(part.size.double().sum()) / (part.all_sizes or np.nan) for part in parts],
        }
    )
