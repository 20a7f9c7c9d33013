"""Tables of several readings: each has the rows of its own reading."""

import numpy as np
import pandas as pd

from ffkv.base.intervals import boxes
from ffkv.branches.composition.summaries import summarize_no_agreement
from ffkv.branches.refinement.summaries import summarize_residual_agreement
from ffkv.branches.translation import tables
from ffkv.branches.translation.summaries import summarize_prefixes, summarize_values
from ffkv.branches.values.summaries import summarize_agreement, summarize_rank


def of_reading(table: pd.DataFrame, reading: str) -> pd.DataFrame:
    """The rows of one reading, which stands in the first column."""
    assert table.columns[0] == "reading" and table.index.tolist() == [*range(len(table))]
    return table[table["reading"] == reading].drop(columns="reading").reset_index(drop=True)


def test_values_of_each_reading():
    generator = np.random.default_rng(0)
    columns = {name: generator.integers(0, 3, 40) for name in ("layer", "top_token", "next_token", "rank", "triggers")}
    table = pd.DataFrame(columns).assign(tied=False, agrees=columns["top_token"] == columns["next_token"])
    table["reading"] = np.repeat(["shuffled", "translated"], 20)
    found = summarize_values(table, np.array([1, 2, 3]), 0)
    assert [*found] == [tables.AGREEMENT.name, tables.RANK.name]
    for reading in tables.READINGS:
        own = table[table["reading"] == reading]
        expected = summarize_agreement(own, np.array([1, 2, 3]), 0), summarize_rank(own)
        for one, other in zip(found.values(), expected, strict=True):
            pd.testing.assert_frame_equal(of_reading(one, reading), other)


def test_prefixes_of_each_reading():
    generator = np.random.default_rng(0)
    names = ("layer", "top_residual", "final", "agreeing", "agreeing_all", "tied")
    table = pd.DataFrame({name: generator.integers(0, 3, 40) for name in names})
    table = table.assign(probability=generator.random(40), reading=np.repeat(["shuffled", "translated"], 20))
    found = summarize_prefixes(table)
    assert [*found] == [tables.NO_AGREEMENT.name, tables.RESIDUAL.name, tables.PROBABILITY.name]
    for reading in tables.READINGS:
        own = table[table["reading"] == reading]
        expected = (
            summarize_no_agreement(own).rename(columns={"reading": "counted"}),
            summarize_residual_agreement(own),
            boxes(own, "probability", "prefixes"),
        )
        for one, other in zip(found.values(), expected, strict=True):
            pd.testing.assert_frame_equal(of_reading(one, reading), other, check_like=True)
