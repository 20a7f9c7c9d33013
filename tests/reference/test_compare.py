"""The comparison with the reference finds what is planted, and the reference has the tables that a run makes."""

import numpy as np
import pytest
from reference.compare import FOLDER, NUMBERS, compare, compared

from ffkv.base.files import tables

TABLES = {table.name: table for table in compared() if (FOLDER / f"{table.name}.csv").exists()}


def test_the_reference_has_the_columns_of_the_tables(subtests):
    for name in TABLES:
        with subtests.test(name=name):
            found = tables.read(FOLDER / f"{name}.csv")
            assert list(found.columns) == [column.name for column in TABLES[name].columns if column.name in found]
            assert not compare(TABLES[name], found, found)["deviation"].any()


def test_all_branches_have_a_table_in_the_reference():
    assert {table.path.partition("/")[0] for table in TABLES.values()} >= {
        "keys",
        "values",
        "composition",
        "refinement",
    }


@pytest.mark.parametrize("change", [0.5 * NUMBERS, 2 * NUMBERS, np.nan])
def test_a_number_that_is_off_is_found(change):
    expected = tables.read(FOLDER / "figure_9_residual_agreement.csv")
    found = expected.copy()
    found.loc[3, "share"] += change * expected["share"].max()
    by_column = compare(TABLES["figure_9_residual_agreement"], expected, found).set_index("column")
    assert by_column["deviation"].drop("share").eq(0).all()
    refused = by_column.loc["share", "deviation"] > by_column.loc["share", "allowed"]
    assert refused == (not change < NUMBERS)


def test_a_row_that_is_missing_is_found():
    expected = tables.read(FOLDER / "figure_5_rank.csv")
    assert np.isinf(compare(TABLES["figure_5_rank"], expected, expected.iloc[1:])["deviation"]).all()


@pytest.mark.parametrize("change", [1, 2])
def test_a_count_may_be_off_by_one(change):
    """One case that is nearly tied. Two of the counts of ties, of which most are 0, are found."""
    expected = tables.read(FOLDER / "activity.csv")
    found = expected.copy()
    found.loc[3, "tied"] += change
    by_column = compare(TABLES["activity"], expected, found).set_index("column")
    assert by_column["deviation"].drop("tied").eq(0).all()
    assert (by_column.loc["tied", "deviation"] > NUMBERS) == (change == 2)
