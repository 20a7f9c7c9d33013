"""Columns of the tables of the room with their types, and the words in them. docs/architecture.md says what they mean."""

import pandas as pd

REACHES = ("direct", "total")
# What is changed: a memory's own coefficient, on its trigger examples or where it is silent; or a control.
OWN, PLACEBO, MEMORIES, DIRECTIONS, SIMILAR = "own", "placebo", "random_memories", "random_directions", "similar_size"

BY_PREFIX = {
    "layer": "int64",
    "memory": "int64",
    "side": "str",
    "source": "str",
    "sentence": "int64",
    "position": "int64",
    "coefficient": "float64",
    "size": "float64",
    "change": "str",
    "scale": "float64",
    "reach": "str",
    "top": "float64",
    "next": "float64",
    "divergence": "float64",
    "changed": "bool",
}
BY_MEMORY = {
    "layer": "int64",
    "memory": "int64",
    "side": "str",
    "reach": "str",
    "prefixes": "int64",
    "silent_prefixes": "int64",
    "similar_prefixes": "int64",
    "coefficient": "float64",
    "size": "float64",
    "own": "float64",
    "random_memories": "float64",
    "random_directions": "float64",
    "similar_size": "float64",
    "placebo": "float64",
    "other_tokens": "float64",
    "specific": "float64",
    "p_value": "float64",
    "next": "float64",
    "divergence": "float64",
    "changed": "float64",
}
KEPT = {
    "layer": "int64",
    "prefix": "int64",
    "choice": "str",
    "kept": "int64",
    "unchanged": "bool",
    "divergence": "float64",
}


def make_table(rows: list[dict], columns: dict[str, str]) -> pd.DataFrame:
    """A table of rows with these columns, in this order, also if there is no row."""
    return pd.DataFrame(rows, columns=[*columns]).astype(columns)
