"""What the report says of experts on behaviours."""

from itertools import product

import numpy as np
import pandas as pd

from ffkv.branches.behaviours import section as section_behaviours
from ffkv.branches.behaviours.summary_tables import ALL_EXPERTS as EXPERTS
from ffkv.branches.behaviours.summary_tables import OF_SETS, OF_SIDE_EFFECTS

NAME = "agreement"


def test_experts_stand_in_a_table_those_with_the_smallest_q_values_first(run, change):
    """A dash where a number is not known. Rows from the first insignificant one are muted."""
    places = product([0, 1], [0, 3], ("removed", "renormalised", "replaced"), ("direct", "total"))
    table = pd.DataFrame(places, columns=["layer", "expert", "change", "reach"])
    table = table.assign(behaviour=NAME, clean=0.75, patch=0.25, effect=2.25, beside=0.5, q_value=0.01, effect_q=0.2)
    table = EXPERTS.frame(table.assign(prompts=9, active=3))
    table.loc[(table["layer"] == 1) & (table["expert"] == 3), ["effect", "effect_q"]] = [3.25, 0.01]
    table.loc[table["change"] == "replaced", "effect"] = np.nan
    sets = OF_SETS.frame([{"behaviour": NAME, "choice": "screen", "size": 1, "prompts": 9}])
    tables = {"behaviour_experts": table, "behaviour_sets": sets, "behaviour_side_effects": OF_SIDE_EFFECTS.frame([])}
    (block,) = section_behaviours._experts(change({}, tables=tables))
    assert (block.heading, block.table.muted_from) == (f"Experts of {NAME}", 1)
    assert block.table.headers[0] == "expert" and not block.table.numeric[0]
    first, *others = ([str(cell).replace("\u00a0", " ") for cell in row] for row in block.table.rows)
    assert first == ["L1.e3", "75 %", "25 %", "0.01", "0.01", "3.25", "3.25", "–", "0.50", "3.25"]
    assert [row[0] for row in others] == ["L0.e0", "L0.e3", "L1.e0"]


def test_sets_of_experts_stand_beside_random_ones_of_the_same_size(run, change):
    """What random sets of another size, or sets of memories, lose is not beside them. A dash where nothing was measured."""
    names, every = ("choice", "size", "completeness", "faithfulness"), {"behaviour": NAME, "prompts": 9, "prefixes": 9}
    rows = [
        ("screen", 1, 0.9, 0.9),
        ("experts", 1, 0.5, 0.25),
        ("experts", 2, 0.75, 0.5),
        ("random_experts", 1, 0.05, 0.0),
    ]
    sets = OF_SETS.frame([every | dict(zip(names, row, strict=True)) for row in [*rows, ("all_experts", 8, 1.0, 1.0)]])
    aside = [
        ("screen", 1, 3.0),
        ("experts", 1, 0.25),
        ("random_experts", 1, 0.125),
        ("experts", 2, 0.5),
        ("random", 2, 9.0),
    ]
    aside = OF_SIDE_EFFECTS.frame(
        [every | dict(zip(("choice", "size", "divergence"), row, strict=True)) for row in aside]
    )
    its = change({}, tables={"behaviour_sets": sets, "behaviour_side_effects": aside})
    table = section_behaviours._sets_of_experts(its, NAME)
    assert table.headers == ["experts", "lost", "left", "KL", "lost, random", "left, random", "KL, random"]
    assert [[str(cell).replace("\u00a0", " ") for cell in row] for row in table.rows] == [
        ["1", "50 %", "25 %", "0.250", "5 %", "0 %", "0.125"],
        ["2", "75 %", "50 %", "0.500", "–", "–", "–"],
        ["all", "100 %", "100 %", "–", "–", "–", "–"],
    ]
    assert section_behaviours._sets_of_experts(its, "another") is None


def test_a_model_without_experts_has_a_sentence_and_an_earlier_run_nothing(run, change):
    none = EXPERTS.frame([])
    (block,) = section_behaviours._experts(change({}, tables={"behaviour_experts": none}))
    assert (block.text, block.table) == ("The model has no experts.", None)
    earlier = change({})
    earlier.__dict__["tables"] = [name for name in earlier.tables if name != "behaviour_experts"]
    assert section_behaviours._experts(earlier) == []
