"""The tables of a trace about its layers: what each predicts, and what its FF output is the sum of."""

from collections.abc import Collection

import numpy as np
import pandas as pd
from torch import Tensor

from ffkv.branches.refinement.cases import classify
from ffkv.model.tap.change import Place
from ffkv.run.results import indexes
from ffkv.run.results.memory_name import memory_name
from ffkv.run.results.memory_statistics import token_texts
from ffkv.run.results.run import Run
from ffkv.run.results.run_model import RunModel
from ffkv.run.trace.contributions import LayerParts, logit_changes, split_layers
from ffkv.run.trace.predictions import predict_layers
from ffkv.run.trace.states import States, residual_deviations


def describe_layers(
    run: Run, model: RunModel, states: States, token: int, top: int, memories: int, changed: Collection[Place]
) -> dict[str, pd.DataFrame]:
    """Returns the tables of `Trace` about layers: predictions, layers, contributions, remainders and sums, by name.

    `token` is the chosen next token. `top` and `memories`: see `TraceOptions`. Memories in `changed` are listed anyway.
    """
    by_layer = predict_layers(model.head, states, top)
    parts = split_layers(model, states, token, memories, changed)
    changes = logit_changes(model, states.end, parts, token)
    sums = {"memories": [part.deviation for part in parts], "residual": residual_deviations(model, states)}
    return {
        "predictions": by_layer.table(run.vocabulary),
        "layers": _layer_table(run, states, by_layer.ids[:, :, states.position, 0], parts, changes),
        "contributions": _contribution_table(run, parts, changes),
        "remainders": _remainder_table(parts, changes),
        "sums": pd.DataFrame({"layer": range(len(parts)), **sums}),
    }


def _layer_table(
    run: Run, states: States, ids: np.ndarray, parts: list[LayerParts], changes: list[Tensor]
) -> pd.DataFrame:
    """`Trace.layers`. `ids`: top(r), top(y) and top(o) at the chosen token [layer, point]."""
    top_r, top_y, top_o = ids.T
    at_token = [(y[states.position], o[states.position]) for y, o in zip(states.y, states.o)]
    return pd.DataFrame(
        {
            "layer": range(len(parts)),
            "case": classify(top_r, top_y, top_o),
            "top_residual": token_texts(top_r, run.vocabulary),
            "top_ffn": token_texts(top_y, run.vocabulary),
            "top_output": token_texts(top_o, run.vocabulary),
            "norm_residual": [float((o - y).norm()) for y, o in at_token],
            "norm_ffn": [float(y.norm()) for y, _ in at_token],
            "norm_output": [float(o.norm()) for _, o in at_token],
            "factor": [float(s) for s in states.s],
            "logit": [float(change[-1]) for change in changes],
            "active": [int((m > 0).sum()) for m in states.m],
            "nonzero": [int((m != 0).sum()) for m in states.m],
            "listed": [len(part.listed) for part in parts],
            "listed_share": [float(part.size.double().sum()) / (part.all_sizes or np.nan) for part in parts],
        }
    )


def _contribution_table(run: Run, parts: list[LayerParts], changes: list[Tensor]) -> pd.DataFrame:
    """`Trace.contributions`. What the values predict comes from the run's table."""
    rows = [
        (layer, memory, memory_name(layer, memory), *numbers)
        for layer, (part, change) in enumerate(zip(parts, changes, strict=True))
        for memory, *numbers in zip(
            part.listed.tolist(), part.coefficient.tolist(), part.size.tolist(), part.shares.tolist(), change.tolist()
        )
    ]
    table = pd.DataFrame(rows, columns=["layer", "memory", "name", "coefficient", "size", "share", "logit"])
    places = np.asarray(run.anatomy.layer_offset)[table["layer"].astype(int)] + table["memory"].astype(int)
    values = indexes.values_by_memory(run.files).iloc[places]
    return table.assign(
        top_token=token_texts(values["top_token"], run.vocabulary), top_probability=values["top_probability"].to_numpy()
    )


def _remainder_table(parts: list[LayerParts], changes: list[Tensor]) -> pd.DataFrame:
    """`Trace.remainders`."""
    rows = []
    for layer, (part, change) in enumerate(zip(parts, changes, strict=True)):
        norms, shares = part.vectors[-3:-1].norm(dim=1).tolist(), part.shares[-2:].tolist()
        rows.append((layer, "other memories", part.others, norms[0], shares[0], float(change[-3])))
        rows.append((layer, "bias", 0, norms[1], shares[1], float(change[-2])))
    return pd.DataFrame(rows, columns=["layer", "part", "memories", "norm", "share", "logit"])
