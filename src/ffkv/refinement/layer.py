"""What one layer predicts, read out by the head."""

import numpy as np
import pandas as pd

from ffkv.activations.prefix_file import PrefixLayer
from ffkv.model.head.head import Head
from ffkv.model.head.predictions import predictions
from ffkv.refinement.refinement import classify


def read_out(head: Head, at: PrefixLayer, final: np.ndarray, layer: int) -> pd.DataFrame:
    """One row a prefix: what r, y and o of a layer predict, and the probability that r gives to the final prediction.

    Args:
        at: r, y and o of the sampled prefixes. final: the model's prediction [prefix].
    """
    r, y, o = predictions(head, at.r, layer, final), predictions(head, at.y, layer), predictions(head, at.o, layer)
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
