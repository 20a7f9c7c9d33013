"""What the memories of one layer do, read out by the head."""

import pandas as pd

from ffkv.activations.prefix_file import PrefixLayer
from ffkv.composition.composition import compose
from ffkv.model.head.head import Head, predictions
from ffkv.model.values_file import Values


def read_out(head: Head, at: PrefixLayer, memories: Values, layer: int, mass: float) -> pd.DataFrame:
    """`compose` of one layer: its values and its outputs y go through the head.

    Args:
        at: y and m of the sampled prefixes. memories: of this layer. mass: as in `compose`.
    """
    top_v, top_y = (predictions(head, vectors, layer).ids for vectors in (memories.value, at.y))
    return compose(at.m, top_v, top_y, memories.norm, mass)
