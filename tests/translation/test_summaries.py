"""Tables of several readings: each has the rows of its own reading."""

import numpy as np
import pandas as pd
import pytest

from ffkv.base.intervals import boxes, mean_interval
from ffkv.branches.composition.summaries import summarize_no_agreement
from ffkv.branches.refinement.summaries import summarize_residual_agreement
from ffkv.branches.translation import tables
from ffkv.branches.translation.summaries import summarize_differences, summarize_prefixes, summarize_values
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


def test_readings_are_compared_above_chance_key_by_key():
    """Three layers, of which the middle one is in neither half; the last key has no trigger example."""
    keys = pd.DataFrame(
        [(0, 0, 1, 1, 2, 1), (0, 1, 2, 2, 3, 3), (1, 0, 5, 5, 6, 6), (2, 0, 1, 1, 1, 3), (2, 1, 1, 2, 1, 3), (2, 2, 1, 1, 2, 1)],
        columns=["layer", "memory", "next_token", "translated", "shuffled", "head_top_token"],
    )  # fmt: skip
    keys = keys.assign(triggers=[9] * 5 + [0], head_agrees=keys["next_token"] == keys["head_top_token"])
    rows = [keys.assign(reading=reading, top_token=keys[reading]) for reading in tables.READINGS]
    rows = [table.assign(agrees=table["top_token"] == table["next_token"]) for table in rows]
    found = summarize_differences(pd.concat(rows), 3).set_index(["half", "compared"])
    # By chance: of two keys, the pairs of a value and a key that agree, by 4. In the middle layer: 1 and 0.
    above = {
        "translated": [1 - 2 / 4, 1 - 2 / 4, 0, 1 - 2 / 4, -2 / 4],
        "head": [1 - 1 / 4, -1 / 4, 0, 0, 0],
        "translated - head": [-1 / 4, 3 / 4, 0, 0.5, -0.5],
        "translated - shuffled": [0.5 + 1 / 4, 0.5 + 1 / 4, 0, 0.5, -0.5],
    }
    assert len(found) == 3 * len(above)
    for half, of_half in zip(tables.HALVES, (slice(2), slice(3, 5), slice(5)), strict=True):
        for compared, of_keys in above.items():
            sample = np.array(of_keys[of_half])
            expected = [len(sample), sample.mean(), *mean_interval(sample, -2, 2)]
            assert found.loc[(half, compared)].tolist() == pytest.approx(expected)
    assert found.loc[(tables.HALVES[0], "translated - head")].tolist()[2:] == [-2, 2]  # two numbers say little
