"""Summaries of composition: small cases by hand."""

import numpy as np
import pandas as pd

from ffkv.branches.composition import summarize

TABLE = pd.DataFrame(
    {
        "layer": [0, 0, 0, 0, 1, 1],
        "share": [0.1, 0.2, 0.3, 0.4, 0.5, 0.5],
        "agreeing": [0, 0, 1, 2, 0, 0],
        "agreeing_all": [0, 1, 1, 2, 0, 3],
        "effective": [1, 2, 3, 4, 5, 5],
        "participation": [1.0, 2, 3, 4, 5, 5],
        "target_is_stop_word": [True, True, True, False, False, False],
        "words": [1, 5, 4, 9, 2, 2],
    }
)


def test_the_share_of_prefixes_without_an_agreeing_memory():
    table = summarize.summarize_no_agreement(TABLE)
    assert table["reading"].tolist() == ["active", "active", "all", "all"]
    assert table["layer"].tolist() == [0, 1, 0, 1] and table.index.tolist() == [0, 1, 2, 3]
    rates = table.set_index(["reading", "layer"])
    assert rates.loc[("active", 0), ["prefixes", "no_agreement", "share"]].tolist() == [4, 2, 0.5]
    assert rates.loc[("all", 0), ["no_agreement", "share"]].tolist() == [1, 0.25]
    assert rates.loc[("active", 1), "share"] == 1
    assert (rates["low"] <= rates["share"]).all() and (rates["share"] <= rates["high"]).all()


def test_cases_of_agreement_beside_all_prefixes():
    cases = summarize.summarize_cases(TABLE, short_prefix=5).set_index("layer")
    columns = ["cases", "stop_word", "short", "base_stop_word_share", "base_short_share"]
    assert cases.loc[0, columns].tolist() == [2, 1, 1, 0.75, 0.5]
    assert cases.loc[-1, ["cases", "stop_word_share", "short_share"]].tolist() == [2, 0.5, 0.5]
    assert cases.loc[1, "cases"] == 0
    assert cases.loc[1, ["stop_word", "short"]].tolist() == [0, 0]
    assert cases.loc[1, ["stop_word_share", "short_share"]].isna().all()
    one = summarize.summarize_cases(TABLE.iloc[2:3], short_prefix=4).set_index("layer")
    assert one.loc[0, columns].tolist() == [1, 1, 0, 1, 0]  # a prefix of as many words is not short
    without_a_list = summarize.summarize_cases(TABLE.assign(target_is_stop_word=np.nan), short_prefix=5)
    assert without_a_list[["stop_word_share", "base_stop_word_share"]].isna().all(axis=None)
    assert without_a_list["short"].tolist() == cases["short"].tolist()


def test_quartiles_by_layer():
    numbers = summarize.summarize_effective(TABLE, {0: 10, 1: 20})
    assert numbers["effective_median"].tolist() == [2.5, 5]
    assert numbers["layer"].tolist() == [0, 1]
    assert numbers["participation_median"].tolist() == [2.5, 5]
    assert numbers[["effective_q1", "effective_q3"]].to_numpy().tolist() == [[1.75, 3.25], [5, 5]]
    assert numbers["memories"].tolist() == [10, 20]
