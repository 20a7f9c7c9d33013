"""Numbers about every memory: how often and how strongly its key fires, and what its value predicts."""

from collections.abc import Sequence

import h5py
import numpy as np
import pandas as pd

from ffkv.activations.trigger_file import FIXED_POINT, NONE


def key_statistics(file: h5py.File, rows: slice = slice(None)) -> pd.DataFrame:
    """Reads how often and how strongly keys fire.

    Args:
        file: `triggers.h5`.
        rows: the memories' rows in the file. Only these are read.
    Returns:
        One row per memory: firing_rate (share of the prefixes on which the coefficient is positive), mean_coefficient,
        maximum_coefficient (0 where none is positive), trigger_examples (number that are kept). Where negative
        coefficients are kept also negative_rate, minimum_coefficient (0 where none is negative),
        negative_trigger_examples.
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
        One row per memory: norm, top_token, top_probability, tied, bottom_token, next_token (the token that follows the
        strongest trigger example; "" where there is none), rank (of next_token in the value's prediction, from 0; -1
        where there is none), agrees (whether top_token is next_token), matching (number of trigger examples that
        top_token follows), first_match (the first of them, from 0; -1 where there is none). Where negative coefficients
        are kept also negative_next_token and negative_agrees (whether it is bottom_token).
    """
    repeated = ["layer", "memory", "triggers", "negative_triggers"]
    values = by_memory.drop(columns=repeated, errors="ignore").reset_index(drop=True)
    tokens = {name: token_texts(values[name], vocabulary) for name in values if name.endswith("token")}
    return values.assign(**tokens)


def token_texts(ids: np.ndarray | pd.Series, vocabulary: Sequence[str]) -> list[str]:
    """The text of each token id; "" where the id is -1, which stands for no token."""
    texts = {token: "" if token == NONE else vocabulary[token] for token in np.unique(ids).tolist()}
    return [texts[token] for token in np.asarray(ids).tolist()]
