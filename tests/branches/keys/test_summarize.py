"""Rows of the tables of keys, and their summaries: small cases by hand."""

from dataclasses import fields, replace

import numpy as np
import pandas as pd
import pytest

from ffkv.activations.trigger_file import Negative, TriggerExamples
from ffkv.base.errors import UserError
from ffkv.base.files import tables
from ffkv.branches.keys.key_sample import Examples
from ffkv.branches.keys.patterns import Pattern, pattern_rows, prefix_rows
from ffkv.branches.keys.removal import removal_rows
from ffkv.branches.keys.summarize import (
    average_removals,
    count_categories,
    count_patterns,
    living_layers,
    measure_activity,
)
from ffkv.branches.keys.tables import BY_PREFIX, PATTERNS, REMOVAL

EXAMPLES = [Examples("trigger", 7, [0, 2, 5], [[], [], []]), Examples("random", 0, [0, 1], [[], []])]
FOUND = [
    [Pattern(("last word", "of"), (0, 2), 0.1, 0.01, 0.02), Pattern(("topic", "army, war"), (2,), 0.2, 0.03, 0.04)],
    [],
]


def found_tables(layer=0):
    patterns = PATTERNS.frame(pattern_rows(layer, EXAMPLES, FOUND))
    return patterns, BY_PREFIX.frame(prefix_rows(layer, EXAMPLES, FOUND))


def test_a_row_for_each_pattern_and_for_each_prefix():
    patterns, prefixes = found_tables(3)
    assert patterns.to_dict("records") == [
        {
            "sample": "trigger", "layer": 3, "memory": 7, "pattern": 0, "kind": "last word", "family": "shallow",
            "label": "ends with “of”", "prefixes": 2, "chance": 0.1, "p_value": 0.01, "q_value": 0.02, "ranks": [0, 5],
        },
        {
            "sample": "trigger", "layer": 3, "memory": 7, "pattern": 1, "kind": "topic", "family": "semantic",
            "label": "is about army, war", "prefixes": 1, "chance": 0.2, "p_value": 0.03, "q_value": 0.04, "ranks": [5],
        },
    ]  # fmt: skip
    assert prefixes["rank"].tolist() == [0, 2, 5, 0, 1]
    assert prefixes["category"].tolist() == ["shallow", "none", "shallow and semantic", "none", "none"]
    assert BY_PREFIX.frame([]).dtypes.to_dict() == prefixes.dtypes.to_dict()


def test_figure_2_counts_every_category_of_every_layer():
    shares = count_categories(found_tables()[1], layers=2).set_index(["sample", "layer", "category"]).sort_index()
    assert len(shares) == 2 * 2 * 4
    expected = {"shallow": 1, "shallow and semantic": 1, "semantic": 0, "none": 1}
    assert shares.loc[("trigger", 0)]["prefixes"].to_dict() == expected
    assert shares.loc[("trigger", 0, "shallow"), "share"] == pytest.approx(1 / 3)
    assert shares.loc[("random", 0, "none"), "share"] == 1
    assert shares.loc[("trigger", 1)]["prefixes"].sum() == 0
    assert shares.loc[("trigger", 1)]["share"].isna().all()


def test_patterns_per_key_and_coverage():
    table = count_patterns(*found_tables(), layers=2)
    assert list(table.columns) == ["sample", "layer", "keys", "keys_with_pattern", "patterns_per_key", "coverage"]
    trigger, empty, random, _ = table.to_dict("records")
    assert [*trigger.values()] == ["trigger", 0, 1, 1, 2, pytest.approx(2 / 3)]
    assert [*random.values()] == ["random", 0, 1, 0, 0, 0]
    assert [*empty.values()][:4] == ["trigger", 1, 0, 0] and np.isnan([*empty.values()][4:]).all()
    assert table[["keys", "keys_with_pattern"]].dtypes.tolist() == [int, int]


def test_the_change_is_averaged_by_key_and_then_over_keys():
    changes = np.array([[-10, -50, np.nan], [-30, -70, -20], [0, -100, -40]])
    rows = removal_rows(1, np.array([4, 6, 9]), np.array([4, 4, 6]), changes)
    by_key = REMOVAL.frame(rows)
    assert by_key[by_key["memory"] == 4]["change"].tolist() == [-20, -60, -20]
    assert by_key[by_key["memory"] == 4]["skipped"].tolist() == [0, 0, 1]
    assert by_key[by_key["memory"] == 9]["change"].isna().all()
    table = average_removals(by_key, layers=2)
    assert list(table.columns) == ["layer", "removed", "keys", "triggers", "skipped", "change", "low", "high", "median"]
    assert table["change"].tolist()[3:] == [-10, -80, -30]
    assert table[["keys", "triggers", "skipped"]].to_numpy()[3:].tolist() == [[2, 3, 0], [2, 3, 0], [2, 2, 1]]
    assert (table["low"][3:] <= table["change"][3:]).all() and (table["high"][3:] >= table["change"][3:]).all()
    assert table[:3]["change"].isna().all() and table[:3]["keys"].tolist() == [0, 0, 0]
    # The median shows what a single key does to the mean.
    by_key = REMOVAL.frame([(0, memory, "last", 5, 0, change) for memory, change in enumerate([-90, -80, 7874])])
    last = average_removals(by_key, layers=1).set_index("removed").loc["last"]
    assert (last["change"], last["median"]) == (2568, -80)


def test_activity_counts_keys_that_fire_never_or_seldom(corpus, make_triggers):
    triggers = make_triggers(corpus, [[[(0, 1)], [], [(0, 1), (1, 1)]], [[], []]], per_key=2)
    first, second = measure_activity(triggers).to_dict("records")
    expected = {"layer": 0, "keys": 3, "dead": 1, "fewer": 2, "one_token": 1, "tied": 0}
    assert first == expected | {"firing_q1": 0.001, "firing_median": 0.002, "firing_q3": 0.003}
    assert (second["keys"], second["dead"], second["fewer"], second["firing_q3"]) == (2, 2, 2, 0)
    assert second["one_token"] == 0
    assert measure_activity(replace(triggers, prefixes=1))["firing_q3"].tolist() == [3, 0]


def test_activity_counts_trigger_examples_of_one_token(corpus, make_triggers):
    triggers = make_triggers(corpus, [[[(0, 1), (1, 2), (3, 1)], [(2, 3)]]], per_key=3)
    assert measure_activity(triggers)["one_token"].tolist() == [0.5]
    assert measure_activity(make_triggers(corpus, [[[(0, 1)], []]], per_key=3))["one_token"].tolist() == [1]


def test_activity_counts_keys_whose_first_trigger_examples_are_tied(corpus, make_triggers):
    """Of the second key they agree in 15 binary digits, of the third only in the one before; the fourth has one alone."""
    triggers = make_triggers(corpus, [[[(0, 1), (1, 1)], [(0, 1), (1, 1)], [(0, 1), (1, 1)], [(0, 1)]]], per_key=2)
    coefficient = np.array([[4, 3], [4, 4.0002], [4, 3.9999], [4, 0]], np.float32)
    negative = Negative(
        **{field.name: getattr(triggers, field.name) for field in fields(TriggerExamples)}
        | {"coefficient": -coefficient},
        minimum=-triggers.maximum,
    )
    row = measure_activity(replace(triggers, coefficient=coefficient, negative=negative)).iloc[0]
    assert (row["tied"], row["negative_tied"]) == (1, 1)


def test_activity_tells_how_often_keys_are_negative_where_that_is_known(corpus, make_triggers):
    triggers = make_triggers(corpus, [[[(0, 1)], [], [(0, 1), (1, 1)]], [[], []]], per_key=2)
    assert not [name for name in measure_activity(triggers) if "negative" in name]
    examples = {field.name: getattr(triggers, field.name) for field in fields(TriggerExamples)}
    side = Negative(**{**examples, "fires": np.array([500, 600, 700, 0, 1000])}, minimum=-triggers.maximum)
    first, second = measure_activity(replace(triggers, negative=side)).to_dict("records")
    names = ["negative_tied", "negative_q1", "negative_median", "negative_q3"]
    assert [first[name] for name in names] == pytest.approx([0, 0.55, 0.6, 0.65])
    assert [second[name] for name in names] == pytest.approx([0, 0.25, 0.5, 0.75])
    assert first["firing_median"] == 0.002


def test_groups_that_do_not_make_a_whole_are_refused(corpus, make_triggers):
    triggers = make_triggers(corpus, [[[(0, 1)]], [[]], [[(0, 1)]]])
    first, last = found_tables(0)[1], found_tables(2)[1]
    identity = ["sample", "layer", "memory", "rank"]
    tables.check_layers(pd.concat([first, last]), identity, living_layers(triggers), "--by-prefix")
    with pytest.raises(UserError, match=r"layers \[2\] are missing"):
        tables.check_layers(first, identity, living_layers(triggers), "--by-prefix")
    with pytest.raises(UserError, match=r"layers \[0\] are there more than once"):
        tables.check_layers(pd.concat([first, last, first]), identity, living_layers(triggers), "--by-prefix")
