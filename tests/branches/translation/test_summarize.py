"""Tables of several readings: each has the rows of its own reading, and they are compared above chance."""

import numpy as np
import pandas as pd
import pytest

from ffkv.base.intervals import boxes, paired_interval, wilson
from ffkv.branches.composition.summarize import summarize_no_agreement
from ffkv.branches.refinement.summarize import summarize_residual_agreement
from ffkv.branches.translation import tables
from ffkv.branches.translation.summarize import summarize_differences, summarize_readings
from ffkv.branches.values.summarize import summarize_agreement, summarize_rank


def of_reading(table: pd.DataFrame, reading: str) -> pd.DataFrame:
    """The rows of one reading, which stands in the first column."""
    assert table.columns[0] == "reading" and table.index.tolist() == [*range(len(table))]
    return table[table["reading"] == reading].drop(columns="reading").reset_index(drop=True)


def of_both(keys: pd.DataFrame) -> pd.DataFrame:
    """The same rows in each reading."""
    return pd.concat([keys.assign(reading=reading) for reading in tables.READINGS])


def test_each_reading_is_summarized_by_itself():
    generator = np.random.default_rng(0)
    names = [
        "layer",
        "top_token",
        "next_token",
        "rank",
        "triggers",
        "top_residual",
        "final",
        "agreeing",
        "agreeing_all",
    ]
    table = pd.DataFrame({name: generator.integers(0, 3, 40) for name in names}).assign(tied=0)
    table = table.assign(agrees=table["top_token"] == table["next_token"], probability=generator.random(40))
    table["reading"] = np.repeat(["shuffled", "translated"], 20)
    unigram = np.array([1, 2, 3])
    found = summarize_readings(table, table, unigram, 0)
    for reading in tables.READINGS:
        own = table[table["reading"] == reading]
        expected = {
            tables.AGREEMENT.name: summarize_agreement(own, unigram, 0),
            tables.RANK.name: summarize_rank(own),
            tables.NO_AGREEMENT.name: summarize_no_agreement(own).rename(columns={"reading": "counted"}),
            tables.RESIDUAL.name: summarize_residual_agreement(own),
            tables.PROBABILITY.name: boxes(own, "probability", "prefixes"),
        }
        assert [*found] == [*expected]
        for name, table_of_reading in expected.items():
            pd.testing.assert_frame_equal(of_reading(found[name], reading), table_of_reading, check_like=True)


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
    agrees = {"translated": [1, 1, 1, 1, 0], "head": [1, 0, 0, 0, 0], "translated - head": [0, 1, 1, 1, 0],
              "translated - shuffled": [1, 1, 1, 0, -1]}  # fmt: skip
    for half, of_half in zip(tables.HALVES, (slice(2), slice(3, 5), slice(5)), strict=True):
        for compared, of_keys in above.items():
            own, sample = np.array(of_keys[of_half]), np.array(agrees[compared][of_half])
            ends = paired_interval(sample) if "-" in compared else wilson(sample.sum(), len(sample))
            expected = [len(own), own.mean(), *(end - (sample - own).mean() for end in ends)]
            assert found.loc[(half, compared)].tolist() == pytest.approx(expected)


def test_no_agreement_at_all_says_little():
    """Of 144 memories none agrees, in no reading: the truth could be 1 % with a probability of 0.23."""
    keys = pd.DataFrame({"layer": np.repeat([0, 1], 144), "memory": [*range(144)] * 2, "next_token": 5, "triggers": 9})
    keys = keys.assign(head_top_token=6, head_agrees=False, top_token=7, agrees=False)
    rows = of_both(keys)
    found = summarize_differences(rows, 2).set_index(["half", "compared"])
    half = 1.96 * np.sqrt(2 / 146 / 146)
    for compared in ("translated - head", "translated - shuffled"):
        assert found.loc[("lower", compared)].tolist() == pytest.approx([144, 0, -half, half], abs=1e-5)
    assert found.loc[("lower", "translated")].tolist() == pytest.approx([144, 0, 0, 0.026], abs=1e-4)
    two = rows.assign(agrees=rows["memory"] < 2)
    found = summarize_differences(two, 2).set_index(["half", "compared"])
    assert found.loc[("lower", "translated"), ["low", "high"]].tolist() == pytest.approx(
        [0.35536 / 144, 0.0492], abs=1e-4
    )


def test_a_model_of_one_layer_has_no_halves():
    keys = pd.DataFrame({"layer": [0, 0], "memory": [0, 1], "next_token": 5, "triggers": 9, "head_top_token": 6})
    keys = keys.assign(head_agrees=False, top_token=7, agrees=False)
    found = summarize_differences(of_both(keys), 1)
    assert found.set_index("half").loc["lower", ["mean", "low", "high"]].isna().all(axis=None)


def test_a_reading_that_says_the_most_frequent_token_gains_nothing():
    """All values say a, which follows two of four keys: half agree, and so do half of permuted keys."""
    follow = np.array([1, 1, 2, 3] * 5)
    keys = pd.DataFrame(
        {"layer": np.repeat(range(5), 4), "memory": [*range(4)] * 5, "next_token": follow, "triggers": 1}
    )
    keys = keys.assign(head_top_token=4, head_agrees=False)
    top = np.where(keys["layer"] < 2, 1, follow)
    translated = keys.assign(reading="translated", top_token=top, agrees=top == follow)
    shuffled = keys.assign(reading="shuffled", top_token=4, agrees=False)
    found = summarize_differences(pd.concat([translated, shuffled]), 5).set_index(["half", "compared"])
    assert found["memories"].groupby("half").first().to_dict() == {"all": 20, "lower": 8, "upper": 8}
    assert found.loc["lower", "mean"].to_dict() == {
        "translated": 0, "head": 0, "translated - head": 0, "translated - shuffled": 0
    }  # fmt: skip
    # In the upper half all agree, and 6 of 16 permuted ones.
    assert found.loc[("upper", "translated - head"), "mean"] == 0.625
    assert ((found["low"] <= found["mean"]) & (found["mean"] <= found["high"])).all()
    assert found.loc[("upper", "translated"), "high"] == 0.625
    assert found.loc[("upper", "translated"), "low"] == pytest.approx(wilson(8, 8)[0] - 0.375)  # 8 of 8 are not all
