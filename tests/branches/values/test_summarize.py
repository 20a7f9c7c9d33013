"""Summaries of values: small cases by hand, every statistic against a naive one."""

from dataclasses import replace
from itertools import permutations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import WORDS

from ffkv.base.intervals import wilson
from ffkv.branches.values import summarize
from ffkv.branches.values.project import compare
from ffkv.branches.values.tables import PREDICTIVE_VALUES
from ffkv.model.checkpoint.vocabulary import read_vocabulary

COUNTS = ["agreeing", "keys", "dead", "rate"]


def test_agreement_by_layer_counts_dead_keys_beside_the_others(worked):
    rates = summarize.summarize_agreement(worked.table, worked.unigram, seed=0).set_index(["layer", "source"])
    assert rates.loc[(0, "trigger"), COUNTS].tolist() == pytest.approx([1, 3, 1, 1 / 3])
    assert rates.loc[(1, "trigger"), COUNTS].tolist() == pytest.approx([2, 3, 1, 2 / 3])
    assert rates.loc[(0, "uniform"), COUNTS].tolist() == pytest.approx([3 / 17, 3, 1, 1 / 17])
    # layer 0 predicts b, c, c; of the 15 tokens that follow a prefix 1 is b and 3 are c
    assert rates.loc[(0, "unigram"), "rate"] == pytest.approx((1 / 15 + 2 * 3 / 15) / 3)
    # tops b, c, c against next tokens b, p, p: one pair of nine
    assert rates.loc[(0, "permuted"), COUNTS].tolist() == pytest.approx([1 / 3, 3, 1, 1 / 9])


@pytest.mark.parametrize("keys", [1, 3, 49, 1_000_003])
def test_a_count_of_agreeing_keys_stays_a_count(keys):
    """1/49 times 49 is 0.9999...: a count is not computed from its rate."""
    agreement = summarize.count_agreeing(pd.Series(np.arange(keys) == 0))
    assert agreement.agreeing == 1
    assert agreement.rate == 1 / keys


def test_agreement_of_negative_triggers(worked, negative_triggers):
    bottom = worked.projections.bottom.copy()
    bottom[[0, 1, 2, 3, 4]] = [WORDS.index(word) for word in "bcbcp"]
    table = compare(replace(worked.projections, bottom=bottom), worked.ranks, negative_triggers)
    rates = summarize.summarize_agreement(table, worked.unigram, seed=0).set_index(["layer", "source"])
    row = rates.loc[(0, "negative")]
    assert row[COUNTS].tolist() == pytest.approx([2, 3, 1, 2 / 3])
    assert (row["low"], row["high"]) == tuple(float(bound) for bound in wilson(2, 3))
    assert rates.loc[(1, "negative"), COUNTS].tolist() == [1, 1, 3, 1]
    # the other sources do not change
    without = summarize.summarize_agreement(worked.table, worked.unigram, seed=0).set_index(["layer", "source"])
    pd.testing.assert_frame_equal(rates.drop("negative", level="source"), without)
    # a layer without negative triggers has no rate of them
    table = worked.table.assign(negative_triggers=0, negative_next_token=-1, negative_agrees=False)
    row = summarize.summarize_agreement(table, worked.unigram, 0).set_index(["source", "layer"]).loc[("negative", 1)]
    assert np.isnan(row["rate"]) and row[["agreeing", "keys", "dead", "low", "high"]].tolist() == [0, 0, 4, 0, 1]


def test_a_layer_of_dead_keys_has_no_rate_but_is_counted(worked):
    dead = worked.table.assign(triggers=np.where(worked.table["layer"] == 1, 0, worked.table["triggers"]))
    row = summarize.summarize_agreement(dead, worked.unigram, 0).set_index("layer").loc[1]
    assert row[["source", "keys", "dead", "agreeing"]].tolist() == ["trigger", 0, 4, 0]
    assert np.isnan(row["rate"])


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=5))
def test_the_expected_agreement_of_permuted_keys_is_the_mean_over_all_permutations(pairs):
    top, w = np.array(pairs).T
    every = [np.mean(top == np.array(order)) for order in permutations(w)]
    baseline = summarize.permute(top, w, np.random.default_rng(0))
    assert baseline.rate == pytest.approx(np.mean(every))
    assert baseline.agreeing == pytest.approx(np.mean(every) * len(pairs))
    assert baseline.low <= baseline.high


def test_a_null_at_its_known_value():
    """Values and next tokens drawn alike from 5 tokens: both the rate and its permuted baseline are about a fifth."""
    generator = np.random.default_rng(0)
    n = 20_000
    table = pd.DataFrame(
        {"layer": 0, "top_token": generator.integers(0, 5, n), "next_token": generator.integers(0, 5, n), "triggers": 1}
    )
    table["agrees"] = table["top_token"] == table["next_token"]
    found = summarize.summarize_agreement(table, np.ones(5), 0).set_index("source")
    rates = found["rate"]
    assert found.loc["permuted", "low"] < rates["permuted"] < found.loc["permuted", "high"] < 0.22
    # standard error sqrt(0.2 * 0.8 / 20000) = 0.0028; four of them
    assert rates.to_numpy() == pytest.approx([0.2] * 4, abs=0.0115)


def test_ranks_and_ties_are_those_of_keys_with_a_trigger(worked):
    assert summarize.summarize_rank(worked.table)[["keys", "median"]].to_numpy().tolist() == [[3, 1], [3, 0]]
    keys = by_memory([{"rank": 4, "tied": True}, {"rank": 6, "tied": True}, {"rank": 99, "tied": True, "triggers": 0}])
    table = pd.concat([keys, keys.assign(layer=3, tied=[True, False, True])])
    boxes = summarize.summarize_rank(table)
    assert boxes[["layer", "keys", "median", "tied"]].to_numpy().tolist() == [[0, 2, 5, 2], [3, 2, 5, 1]]


def test_the_table_of_predictive_values_shows_a_trigger_that_matches(worked, detector):
    predictive, tokens = summarize.select_predictive(worked.table, 5), read_vocabulary(detector)
    table = summarize.describe_predictive(predictive, worked.triggers, worked.corpus, tokens)
    shown = table.set_index(["layer", "memory"])
    assert shown.loc[(1, 1), ["token", "prefix", "next_token", "precision"]].tolist() == ["f", "p d", "f", 0.25]
    assert shown.loc[(0, 2), ["token", "prefix", "next_token"]].tolist() == ["c", "p c", "c"]
    counts = summarize.count_predictive(predictive, 2)
    assert counts["values"].tolist() == [2, 3]  # the dead ones are flat, and value (0, 1) is short: LayerNorm's epsilon
    assert counts["matching"].tolist() == [2, 3]


def test_a_key_shows_the_trigger_that_it_has(worked, detector):
    """One of one or of several; none of a dead key; the first one if the value follows none."""
    living = worked.table[worked.table["triggers"] > 0]
    one = replace(worked.triggers, count=np.minimum(worked.triggers.count, 1))
    tokens = read_vocabulary(detector)
    table, few = (summarize.describe_predictive(living, of, worked.corpus, tokens) for of in (worked.triggers, one))
    assert list(table) == [*PREDICTIVE_VALUES.names] and table.index.tolist() == [*range(6)]
    pd.testing.assert_frame_equal(table, few)
    dead = worked.table[worked.table["triggers"] == 0]
    table = summarize.describe_predictive(dead, worked.triggers, worked.corpus, tokens)
    assert table[["prefix", "next_token"]].to_numpy().tolist() == [["", ""]] * 2
    value = worked.table.set_index(["layer", "memory"]).loc[[(0, 1), (1, 1)]].reset_index()
    first = value.assign(first_match=-1, matching=0)
    table = summarize.describe_predictive(first, worked.triggers, worked.corpus, tokens)
    rows = [worked.triggers.layer_offset[layer] + memory for layer, memory in ((0, 1), (1, 1))]
    assert worked.triggers.count[rows].tolist() == [2, 3]
    places = zip(worked.triggers.sentence[rows, 0], worked.triggers.position[rows, 0])
    assert table["prefix"].tolist() == [worked.corpus.prefix_text(*place) for place in places]
    assert table["precision"].tolist() == [0, 0]


def test_matching_values_are_counted_in_every_layer():
    predictive = pd.DataFrame({"layer": [1, 1, 0], "matching": [2, 0, 0]})
    counts = summarize.count_predictive(predictive, 3)
    assert counts.to_dict("list") == {"layer": [0, 1, 2], "values": [1, 2, 0], "matching": [0, 1, 0]}


def by_memory(rows: list[dict]) -> pd.DataFrame:
    """A table of values with a trigger example, from what tells them apart."""
    return pd.DataFrame(
        [{"layer": 0, "memory": n, "triggers": 1, "agrees": False, **row} for n, row in enumerate(rows)]
    )


def test_bins_of_the_top_probability_by_hand():
    """0 to 1 in four bins: an edge belongs to the bin above it, the last one to the last bin. The third is empty."""
    probabilities = [0.0, 0.125, 0.25, 1.0, 0.875, 0.5 - 1e-9]
    table = by_memory([{"top_probability": p, "agrees": p in (0.125, 0.25, 1.0)} for p in probabilities])
    table = pd.concat([table, by_memory([{"top_probability": 2.0, "triggers": 0}])])
    bins = summarize.summarize_top_probability(table, 4)
    np.testing.assert_allclose(bins["low"], [0, 0.25, 0.5, 0.75])
    np.testing.assert_allclose(bins["high"], [0.25, 0.5, 0.75, 1])
    assert bins["values"].tolist() == [2, 2, 0, 2] and bins["agreeing"].tolist() == [1, 1, 0, 1]
    np.testing.assert_array_equal(bins["rate"], [0.5, 0.5, np.nan, 0.5])
    low, high = wilson(np.array([1]), np.array([2]))
    np.testing.assert_allclose(bins.loc[[0, 1, 3], ["rate_low", "rate_high"]], [[low[0], high[0]]] * 3)
    assert bins.loc[2, ["rate_low", "rate_high"]].tolist() == [0, 1]
    assert summarize.summarize_top_probability(table[table["triggers"] == 0], 4).columns.tolist() == [*bins.columns]


def test_bins_at_the_end_that_no_key_agrees_in_are_there():
    table = by_memory([{"top_probability": 0.0, "agrees": True}, {"top_probability": 1.0}])
    bins = summarize.summarize_top_probability(table, 3)
    assert bins["agreeing"].tolist() == [1, 0, 0] and bins["values"].tolist() == [1, 0, 1]
    same = summarize.summarize_top_probability(table.assign(top_probability=0.5), 3)
    assert same["values"].sum() == 2  # of one probability alone


def test_predictive_values_come_by_probability_then_layer_then_memory():
    rows = [(0.5, 1, 0), (0.9, 2, 3), (0.5, 0, 1), (0.5, 0, 0), (0.9, 2, 1)]
    table = pd.DataFrame(rows, columns=["top_probability", "layer", "memory"])
    found = summarize.select_predictive(table, 4)[["layer", "memory"]].to_numpy().tolist()
    assert found == [[2, 1], [2, 3], [0, 0], [0, 1]]
