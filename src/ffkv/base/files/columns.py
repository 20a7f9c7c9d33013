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

    from ffkv.branches.settings import Settings

GROUP = "{group}"  # in the path of a table that is written in parts, one for each group of layers
# Parts of a path that stand for many files: groups of layers, shards of prompts, behaviours.
WILD = re.compile(r"\{(\w+)\}")
ROUNDING = 1e-4  # by which a number may be beyond a limit, such as a sum of shares in float32
# Types of columns that hold no numbers: what pandas infers of their values, and what they are called.
NOT_NUMBERS = {"bool": ("boolean", "truth values"), "str": ("string", "texts")}


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
    since: str = ""  # the edition of ffkv that added it; it is empty in tables of earlier ones. "": it was always there

    def outside(self, values: "pd.Series") -> str:
        """Says which limit values of its type do not keep, but for `ROUNDING`, or which word it may not hold; "" if there is none."""
        known = values[:0] if self.dtype == "object" else values.dropna()
        if self.choices and (strange := {*known} - {*self.choices}):
            return (
                f"its column {self.name} has {', '.join(map(repr, strange))}; described are {', '.join(self.choices)}"
            )
        if self.lowest is not None and (known < self.lowest - ROUNDING).any():
            return f"its column {self.name} has {known.min():g}, below {self.lowest:g}"
        if self.highest is not None and (known > self.highest + ROUNDING).any():
            return f"its column {self.name} has {known.max():g}, above {self.highest:g}"
        return ""


NEGATIVE = "with negative coefficients"  # when columns about them are there


# `others` of the functions below: the other attributes of `Column`.


def count(name: str, about: str, dtype: str = "int64", lowest: int = 0, **others: Any) -> Column:
    """Returns a column of counts. `lowest`: 0, or a number below it that stands for none."""
    return Column(name, dtype, about, "1", lowest, **others)


def share(name: str, about: str, dtype: str = "float64", **others: Any) -> Column:
    """Returns a column of shares or probabilities, 0 to 1; NaN if there is nothing to take a share of."""
    return Column(name, dtype, about, "1", 0, 1, **others)


def number(name: str, about: str, unit: str = "1", dtype: str = "float64", **others: Any) -> Column:
    """Returns a column of numbers."""
    return Column(name, dtype, about, unit, **others)


def token_id(name: str, about: str, **others: Any) -> Column:
    """Returns a column of token ids; -1 if there is no token."""
    return Column(name, "int32", about, "token", -1, **others)


def flag(name: str, about: str, **others: Any) -> Column:
    """Returns a column of truth values."""
    return Column(name, "bool", about, **others)


def word(name: str, about: str, *choices: str, **others: Any) -> Column:
    """Returns a column of words of ffkv."""
    return Column(name, "str", about, choices=choices, **others)


def text(name: str, about: str, **others: Any) -> Column:
    """Returns a column of text that strangers wrote."""
    return Column(name, "str", about, foreign=True, **others)


def layer(about: str = "the layer, from 0", dtype: str = "int64") -> Column:
    """Returns the column `layer`."""
    return Column("layer", dtype, about, "1", -1 if "-1" in about else 0)


LAYER = layer()
MEMORY = count("memory", "the memory in its layer, from 0")
REACHES = ("direct", "total")  # of an effect
REACH = word("reach", "`direct`: in the last residual alone; `total`: the blocks after it run again", *REACHES)


def bounds(of: str = "its interval (95 %)", name: str = "", **others: Any) -> tuple[Column, Column]:
    """Returns the columns of the ends of an interval of numbers: `low` and `high`; or `<name>_low` and `<name>_high`. `of`: what it is."""
    low, high = (f"{name}_{end}".removeprefix("_") for end in ("low", "high"))
    return number(low, f"lower end of {of}", **others), number(high, "upper end", **others)


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


def always(settings: "Settings") -> bool:
    """Says that every run has a table or a file, whatever its settings."""
    return True


@dataclass(frozen=True)
class Written:
    """What a step writes."""

    path: str  # its file below the folder of the run; with "{group}", "{shard}", "{behaviour}" if each one has its own

    @property
    def name(self) -> str:
        """The name of the file: of a file by group, the name of its folder."""
        path = PurePath(self.path)
        return path.parent.name if WILD.fullmatch(path.stem) else path.stem


@dataclass(frozen=True)
class Table(Written):
    """What a table holds."""

    about: str  # one sentence that says what a row is
    columns: tuple[Column, ...]  # its columns, in their order
    split: str = ""  # the split of the corpus that it is about; "" for that of its branch
    only: str = ""  # when a run has it; "" if always
    since: str = ""  # the edition of ffkv that added it, to a branch that was there before; "": it was always there
    applies: "Callable[[Settings], bool]" = always  # whether a run with such settings has it

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

    def completed(self, frame: "pd.DataFrame") -> "pd.DataFrame":
        """Returns a table that was read with the columns that an earlier ffkv did not write: they have no value, or the empty text."""
        lacking = [column for column in self.columns if column.since and column.name not in frame.columns]
        if not lacking:
            return frame
        empty = {column.name: "" if column.dtype == "str" else float("nan") for column in lacking}
        known = [name for name in self.names if name in frame.columns or name in empty]
        return frame.assign(**empty)[[*known, *frame.columns.difference(known, sort=False)]]

    def problem(self, frame: "pd.DataFrame") -> str:
        """Says what keeps a table that was read from being this one: a column that is missing, or of another type; "" if nothing does.

        Columns that a later edition added may be missing.
        """
        from pandas.api.types import infer_dtype

        if not frame.columns.is_unique:
            return "it has a column twice"
        for column in self.columns:
            if column.name not in frame.columns:
                if column.optional or column.since:
                    continue
                return f"it lacks the column {column.name}"
            values = frame[column.name].dropna()
            word = column.dtype == "str" and not column.foreign  # of ffkv; it may look like a number in a CSV file
            if column.dtype == "object" or word or not len(values):
                continue
            if column.dtype in NOT_NUMBERS:
                kind, what = NOT_NUMBERS[column.dtype]
                if infer_dtype(values) != kind:
                    return f"its column {column.name} has other values than {what}"
                continue
            whole = "int" in column.dtype
            if values.dtype.kind not in ("iu" if whole else "iuf"):
                return f"its column {column.name} has other values than {'whole ' if whole else ''}numbers"
            if whole and column.lowest is not None and values.min() < column.lowest:
                return f"its column {column.name} has numbers below {column.lowest:g}"
        return ""

    def check(self, frame: "pd.DataFrame") -> None:
        """Raises ValueError, a defect of its step, if a table does not have the described columns in their order, or other values in one."""
        expected = [each.name for each in self.columns if not each.optional or each.name in frame.columns]
        if frame.columns.tolist() != expected:
            raise ValueError(f"{self.path} has the columns {frame.columns.tolist()}; described are {expected}")
        outside = (each.outside(frame[each.name]) for each in self.columns if each.name in expected)
        if wrong := self.problem(frame) or next(filter(None, outside), ""):
            raise ValueError(f"{self.path}: {wrong}")


def table(path: str, about: str, *columns: Column, **others: Any) -> Table:
    """Returns the description of a table. `others`: the other attributes of `Table`."""
    return Table(path, about, columns, **others)
