"""Compares the tables of the default run with those of `tests/reference/demo`, column by column.

    python tests/reference/compare.py results/demo            # exit code 1 if a number is further off than it may be
    python tests/reference/compare.py results/demo --write    # make them the reference, after a change of numbers on purpose

The same machine, versions and threads give the same bytes. Others round otherwise: a trigger example, a drawn p-value or a top
token that is nearly tied becomes another one. So each kind of column has a tolerance.
"""

import argparse
import shutil
import sys
from pathlib import Path

import numpy as np
import pandas as pd

from ffkv.base.files import tables
from ffkv.base.files.columns import Column, Table
from ffkv.branches.registry import BRANCHES

FOLDER = Path(__file__).parent / "demo"
# Share of rows whose words, tokens or counts may differ; largest difference of numbers, as a share of the column's largest.
ROWS, NUMBERS = 0.02, 0.02


def compared() -> list[Table]:
    """The tables of the figures: small ones, in one file each, that hold no text of the corpus."""
    described = [table for branch in BRANCHES.values() for table in branch.tables]
    return [table for table in described if table.path.endswith(".csv") and not table.foreign]


def deviation(column: Column, expected: pd.Series, found: pd.Series) -> float:
    """Returns how far a column is off, as a share: of rows, or of the column's largest number. Infinite if numbers are missing.

    Of a count, one more or less is not off: one case that is nearly tied. Counts of ties themselves are 0, 1 or 2.
    """
    if not column.unit or column.unit == "token":
        return float((expected.fillna("").to_numpy() != found.fillna("").to_numpy()).mean())
    a, b = (each.to_numpy(np.float64) for each in (expected, found))
    if (np.isnan(a) != np.isnan(b)).any():
        return np.inf
    known = np.isfinite(a)
    off = np.abs(a[known] - b[known])
    if pd.api.types.is_integer_dtype(expected) and pd.api.types.is_integer_dtype(found):
        off = np.maximum(off - 1, 0)
    return float(off.max(initial=0) / max(np.abs(a[known]).max(initial=0), 1e-12))


def compare(table: Table, expected: pd.DataFrame, found: pd.DataFrame) -> pd.DataFrame:
    """Returns a row per column: how far it is off, and how far it may be. Tables of other lengths or columns are infinitely far off."""
    same = len(expected) == len(found) and list(expected.columns) == list(found.columns)
    rows = [
        {
            "table": table.name,
            "column": column.name,
            "deviation": deviation(column, expected[column.name], found[column.name]) if same else np.inf,
            "allowed": NUMBERS if column.unit and column.unit != "token" else ROWS,
        }
        for column in table.columns
        if column.name in expected
    ]
    return pd.DataFrame(rows)


def main() -> None:
    """Prints the columns that differ; the exit code says whether one is further off than it may be."""
    parser = argparse.ArgumentParser(description="Compare the tables of a run with the reference.")
    parser.add_argument("results", type=Path, help="such as results/demo")
    parser.add_argument("--write", action="store_true", help="make the tables of the run the reference")
    asked = parser.parse_args()
    wanted = [table for table in compared() if (asked.results / table.path).exists()]
    if asked.write:
        shutil.rmtree(FOLDER, ignore_errors=True)
        FOLDER.mkdir()
        for table in wanted:
            shutil.copyfile(asked.results / table.path, FOLDER / f"{table.name}.csv")
        return
    parts = [
        compare(table, tables.read(FOLDER / f"{table.name}.csv"), tables.read(asked.results / table.path))
        for table in wanted
    ]
    found = pd.concat(parts)
    differs = found[found["deviation"] > 0]
    print(differs.to_string(index=False) if len(differs) else "Every number is that of the reference.")
    print(
        f"{len(found)} columns of {len(parts)} tables; {len(differs)} differ; largest deviation {found['deviation'].max():.2g}."
    )
    sys.exit(bool((found["deviation"] > found["allowed"]).any()))


if __name__ == "__main__":
    main()
