"""Edges between the strongest memories of a trace."""

from typing import Any

import pandas as pd
from torch import Tensor

from ffkv.model.effects import edges as method
from ffkv.run.results.run_model import RunModel


def describe_edges(
    model: RunModel, ids: Tensor, position: int, contributions: pd.DataFrame, count: int, batch_tokens: int
) -> dict[str, Any]:
    """Returns the attributes `edges`, `parts` and `edge_notes` of `Trace`, of the unchanged model.

    Args:
        ids: the prompt [1, token].
        position: the chosen token.
        contributions: those of the trace; the `count` memories with the largest change of the logit are connected.
        batch_tokens: maximum number of tokens per pass.
    """
    order = contributions["logit"].abs().sort_values(ascending=False, kind="stable").index[:count]
    memories = contributions.loc[order].sort_values(["layer", "memory"], ignore_index=True).assign(position=position)
    found = method.edges(model, ids, memories, memories, batch_tokens=batch_tokens)
    names = memories["name"].to_numpy()
    named = {name: names[found.edges[name]] for name in ("source", "target")}
    return {
        "edges": found.edges.assign(**named),
        "parts": found.parts.assign(target=names[found.parts["target"]]),
        "edge_notes": " ".join(found.notes),
    }
