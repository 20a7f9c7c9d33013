"""Numbers about every memory: how often and how strongly its key fires, and what its value predicts."""

from collections.abc import Sequence

import h5py
import numpy as np
import pandas as pd

from ffkv.activations.trigger_file import FIXED_POINT, NONE


def key_statistics(file: h5py.File, rows: slice = slice(None)) -> pd.DataFrame:
    """Reads how often and how strongly keys fire.

    Args:
        rows: the memories' rows in the file. Only these are read.
    Returns:
        One row per memory, with the columns of `Run.memories` from firing_rate to negative_trigger_examples.
    """
    prefixes = max(int(file.attrs["prefixes"]), 1)
    columns = {
        "firing_rate": file["fires"][rows] / prefixes,
        "mean_coefficient": file["total"][rows] * FIXED_POINT / prefixes,
        "maximum_coefficient": file["maximum"][rows],
        "trigger_examples": file["count"][rows],
    }
    if "negative" in file:
        columns |= {
            "negative_rate": file["negative/fires"][rows] / prefixes,
            "minimum_coefficient": file["negative/minimum"][rows],
            "negative_trigger_examples": file["negative/count"][rows],
        }
    return pd.DataFrame(columns)


def value_statistics(by_memory: pd.DataFrame, vocabulary: Sequence[str]) -> pd.DataFrame:
    """Takes from a table of values the numbers that are about the value, with tokens as texts instead of ids.

    Args:
        by_memory: rows of `values/by_memory`.
        vocabulary: the text of every token id.
    Returns:
        One row per memory, with the columns of `Run.memories` from norm to negative_agrees.
    """
    repeated = ["layer", "memory", "triggers", "negative_triggers"]
    values = by_memory.drop(columns=repeated, errors="ignore").reset_index(drop=True)
    tokens = {name: token_texts(values[name], vocabulary) for name in values if name.endswith("token")}
    return values.assign(**tokens)


def token_texts(ids: np.ndarray | pd.Series, vocabulary: Sequence[str]) -> list[str]:
    """Returns the text of each token id; "" where the id is -1, which stands for no token."""
    texts = {token: "" if token == NONE else vocabulary[token] for token in np.unique(ids).tolist()}
    return [texts[token] for token in np.asarray(ids).tolist()]
