"""A step's table is held to its description: its columns, their types, their limits and their words."""

import numpy as np
import pandas as pd
import pytest

from ffkv.base.files.columns import LAYER, share, table, text, word

TABLE = table(
    "some/table.csv",
    "A layer.",
    LAYER,
    share("rate", "rate"),
    word("kind", "kind", "plain", "gated"),
    text("token", "a token"),
)
GOOD = {"layer": [0, 1], "rate": [0.5, 1 + 1e-6], "kind": ["plain", "gated"], "token": ["=1", "nan"]}


def test_what_is_as_it_is_described_passes():
    """Rounding may go beyond a limit; a share of nothing is NaN; and a table may have no row."""
    for change in ({}, {"rate": [np.nan, 1.0]}, {"rate": np.float32([0, 1])}):
        TABLE.check(pd.DataFrame({**GOOD, **change}))
    TABLE.check(TABLE.frame([]))


@pytest.mark.parametrize(
    ("column", "values", "told"),
    [
        ("layer", [0.5, 1], "column layer has other values than whole numbers"),
        ("layer", [-1, 0], "column layer has numbers below 0"),
        ("rate", ["0.5", "1"], "column rate has other values than numbers"),
        ("rate", [0.5, 7], "column rate has 7, above 1"),
        ("rate", [-0.01, 1], "column rate has -0.01, below 0"),
        ("kind", ["plain", "other"], "column kind has 'other'; described are plain, gated"),
        ("token", [1, 2], "column token has other values than texts"),
    ],
)
def test_other_values_are_refused(column, values, told):
    with pytest.raises(ValueError, match=f"some/table.csv: its {told}"):
        TABLE.check(pd.DataFrame({**GOOD, column: values}))
