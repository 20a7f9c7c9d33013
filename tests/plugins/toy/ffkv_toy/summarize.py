"""Summarizes how long the values of each layer are."""

import numpy as np
import pandas as pd

from ffkv.branches.given import Given
from ffkv.model.values_file import read_values

from .settings import Lengths
from .tables import BY_LAYER


def summarize_lengths(given: Given, settings: Lengths = Lengths()) -> pd.DataFrame:
    """Returns one row per layer: the quantile of the lengths of its values."""
    found = read_values(given.files["values"])
    lengths = np.linalg.norm(found.value, axis=1)
    return BY_LAYER.frame(
        [
            (layer, len(own), np.quantile(own, settings.quantile))
            for layer in np.unique(found.layer)
            for own in [lengths[found.layer == layer]]
        ]
    )
