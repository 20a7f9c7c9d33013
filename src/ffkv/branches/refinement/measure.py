"""Reads the predictions of each layer on sampled prefixes, and names the case of each (paper section 5.2)."""

import numpy as np
import pandas as pd

from ffkv.activations.prefix_file import PrefixLayer
from ffkv.base.files import tables
from ffkv.branches.given import Given
from ffkv.branches.refinement.tables import BY_PREFIX
from ffkv.model.head.lens import Lens
from ffkv.model.head.topk import predictions


def measure_refinement(given: Given) -> pd.DataFrame:
    """Reads the predictions of r, y and o on each sampled prefix in a group of layers (paper section 5.2): `BY_PREFIX`."""
    head = given.head()
    final = predictions(head, given.end, given.anatomy.read_as).ids
    by_layer = []
    for layer in given.each_layer("refinement"):
        predicted = measure_layer(head, given.states(layer, "ryo"), final, layer)
        by_layer.append(predicted.assign(layer=layer, prefix=np.arange(len(final), dtype=np.int32)))
    return tables.frame(BY_PREFIX, by_layer, given.sample_identity)


def measure_layer(lens: Lens, states: PrefixLayer, final: np.ndarray, layer: int) -> pd.DataFrame:
    """Reads the predictions of one layer from r, y and o of the sampled prefixes.

    `final`: the model's final prediction [prefix]. Returns the columns of `BY_PREFIX`, but for layer and prefix.
    """
    r = predictions(lens, states.r, layer, final)
    y, o = predictions(lens, states.y, layer, change=True), predictions(lens, states.o, layer)
    return pd.DataFrame(
        {
            "top_residual": r.ids,
            "top_ffn": y.ids,
            "top_output": o.ids,
            "final": final,
            "probability": r.probability,
            "case": classify(r.ids, y.ids, o.ids),
            "tied": r.tied.astype(np.int8) + y.tied + o.tied,
        }
    )


def classify(top_r: np.ndarray, top_y: np.ndarray, top_o: np.ndarray) -> np.ndarray:
    """Names the case of each prefix in one layer, from the predictions of r, y and o [prefix] (paper section 5.2).

    - residual: top(o) = top(r), not top(y)
    - agreement: top(o) = top(r) = top(y)
    - ffn: top(o) = top(y), not top(r)
    - composition: all three differ
    - other: top(r) = top(y), not top(o); possible with a final norm or an adaptive softmax, not with a linear head
    """
    from_r, from_y, inputs_agree = top_o == top_r, top_o == top_y, top_r == top_y
    conditions = [from_r & from_y, from_r, from_y, inputs_agree]
    return np.select(conditions, ["agreement", "residual", "ffn", "other"], "composition")
