"""One description per table: its columns, and what follows from them: outputs of rules, files of a finished run, empty
tables, types of what is read, docs/formats.md, and the made-up tables of tests.

    FIGURE_9 = table(
        "refinement/figure_9_residual_agreement.csv",
        "How often the residual of a layer predicts what the model predicts.",
        LAYER,
        count("prefixes", "sampled prefixes"),
        count("matching", "prefixes on which both agree"),
        *WILSON,
    )
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # rules read descriptions at every start, without pandas
    import pandas as pd

    from ffkv.base.settings import Settings

GROUP = "{group}"  # in the path of a table that is written in parts, one for each group of layers
# Parts of a path that stand for many files: groups of layers, shards of prompts, behaviours.
WILD = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class Column:
    """What a column holds."""

    name: str
    dtype: str  # pandas' name of its type: "int64", "float32", "bool", "str", or "object" for a list of numbers
    about: str  # a phrase that says what a value means
    unit: str = ""  # "1" for a plain number; "" for words
    lowest: float | None = None  # limit of the values; None where there is none
    highest: float | None = None
    choices: tuple[str, ...] = ()  # the words that it may hold; none if it may hold any
    foreign: bool = False  # whether strangers wrote its text, such as a token. It stays text if it reads "nan" or "1".
    optional: str = ""  # when it is there; "" if always


NEGATIVE = "with negative coefficients"  # when columns about them are there


def count(name: str, about: str, dtype: str = "int64", optional: str = "") -> Column:
    """Returns a column of counts, from 0."""
    return Column(name, dtype, about, "1", 0, optional=optional)


def share(name: str, about: str, dtype: str = "float64", optional: str = "") -> Column:
    """Returns a column of shares or probabilities, 0 to 1; NaN if there is nothing to take a share of."""
    return Column(name, dtype, about, "1", 0, 1, optional=optional)


def number(name: str, about: str, unit: str = "1", dtype: str = "float64", **limits: Any) -> Column:
    """Returns a column of numbers."""
    return Column(name, dtype, about, unit, **limits)


def token_id(name: str, about: str, optional: str = "") -> Column:
    """Returns a column of token ids; -1 if there is no token."""
    return Column(name, "int32", about, "token", -1, optional=optional)


def flag(name: str, about: str, optional: str = "") -> Column:
    """Returns a column of truth values."""
    return Column(name, "bool", about, optional=optional)


def word(name: str, about: str, *choices: str) -> Column:
    """Returns a column of words of ffkv."""
    return Column(name, "str", about, choices=choices)


def text(name: str, about: str) -> Column:
    """Returns a column of text that strangers wrote."""
    return Column(name, "str", about, foreign=True)


def layer(about: str = "the layer, from 0", dtype: str = "int64") -> Column:
    """Returns the column `layer`."""
    return Column("layer", dtype, about, "1", -1 if "-1" in about else 0)


LAYER = layer()
MEMORY = count("memory", "the memory in its layer, from 0")
REACHES = ("direct", "total")  # of an effect
REACH = word("reach", "`direct`: in the last residual alone; `total`: the blocks after it run again", *REACHES)


def interval(about: str) -> tuple[Column, Column]:
    """Returns the columns `low` and `high` of an interval of a share."""
    return share("low", f"lower end of the {about}"), share("high", f"upper end of the {about}")


# What a box of shares or probabilities shows.
BOX = (
    share("whisker_low", "lowest value within 1.5 interquartile ranges of the box"),
    share("q1", "first quartile"),
    share("median", "median"),
    share("q3", "third quartile"),
    share("whisker_high", "highest value within 1.5 interquartile ranges of the box"),
)
WILSON = interval("Wilson interval (95 %)")


@dataclass(frozen=True)
class Table:
    """What a table holds."""

    path: str  # its file below the folder of the run; with "{group}", "{shard}", "{behaviour}" if each one has its own
    about: str  # one sentence that says what a row is
    columns: tuple[Column, ...]  # its columns, in their order
    split: str = ""  # the split of the corpus that it is about; "" for that of its branch
    only: str = ""  # when a run has it; "" if always
    applies: "Callable[[Settings], bool]" = lambda settings: True  # whether a run with such settings has it

    @property
    def name(self) -> str:
        """The name of the table: of a table by group, the name of its folder."""
        path = PurePath(self.path)
        return path.parent.name if WILD.fullmatch(path.stem) else path.stem

    @property
    def names(self) -> list[str]:
        """The names of all columns."""
        return [column.name for column in self.columns]

    @property
    def foreign(self) -> list[str]:
        """The names of the columns that hold text of strangers."""
        return [column.name for column in self.columns if column.foreign]

    def frame(self, rows: "Sequence[Any] | pd.DataFrame") -> "pd.DataFrame":
        """Returns a table of rows, whose columns have their types also if there is no row.

        Optional columns are left out unless the rows, as dictionaries or as a table, have them.
        """
        import pandas as pd

        if isinstance(rows, pd.DataFrame):
            there: Any = rows.columns
        else:
            there = rows[0] if rows and isinstance(rows[0], dict) else {}
        columns = [column for column in self.columns if not column.optional or column.name in there]
        types = {column.name: column.dtype for column in columns}
        return pd.DataFrame(rows, columns=[*types]).astype(types)

    def check(self, frame: "pd.DataFrame") -> None:
        """Raises ValueError, a defect of ffkv, if a table does not have the described columns in their order."""
        expected = [each.name for each in self.columns if not each.optional or each.name in frame.columns]
        if frame.columns.tolist() != expected:
            raise ValueError(f"{self.path} has the columns {frame.columns.tolist()}; described are {expected}")


def table(path: str, about: str, *columns: Column, **others: Any) -> Table:
    """Returns the description of a table. `others`: the other attributes of `Table`."""
    return Table(path, about, columns, **others)
