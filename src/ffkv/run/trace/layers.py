"""The tables of a trace about its layers: what each predicts, and what its FF output is the sum of."""

from collections.abc import Collection, Sequence

import numpy as np
import pandas as pd
from torch import Tensor

from ffkv.branches.refinement.cases import classify
from ffkv.model.tap.change import Place
from ffkv.run.results import indexes
from ffkv.run.results.memory_statistics import token_texts
from ffkv.run.results.run import Run
from ffkv.run.results.run_model import RunModel
from ffkv.run.trace.contributions import LayerParts, contribution_table, logit_changes, remainder_table, split_layers
from ffkv.run.trace.predictions import ByLayer, predict_layers
from ffkv.run.trace.states import States, residual_deviations


def describe_layers(
    run: Run,
    model: RunModel,
    states: States,
    position: int,
    token: int,
    top: int,
    memories: int,
    changed: Collection[Place],
) -> dict[str, pd.DataFrame]:
    """Returns the tables of `Trace` about layers: predictions, layers, contributions, remainders and sums, by name.

    Args:
        run: the run.
        model: its model.
        states: of the prompt.
        position: the chosen token.
        token: the chosen next token.
        top, memories: see `TraceOptions`.
        changed: memories to list in any case.
    """
    by_layer = predict_layers(model.head, states, top)
    parts = split_layers(model, states, position, token, memories, changed)
    changes = logit_changes(model, states.end, parts, token)
    sums = {"memories": [part.deviation for part in parts], "residual": residual_deviations(model, states)}
    return {
        "predictions": by_layer.table(run.vocabulary),
        "layers": _layer_table(states, by_layer, parts, changes, position, run.vocabulary),
        "contributions": contribution_table(parts, changes, _value_predictions(run, parts)),
        "remainders": remainder_table(parts, changes),
        "sums": pd.DataFrame({"layer": range(len(parts)), **sums}),
    }


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
