"""Which rows of a source are documents, by the values of their columns: the setting `corpus.where`."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ffkv.base.errors import UserError
from ffkv.base.settings.messages import shown

Where = Mapping[str, Sequence[str]]  # name of a column: the values that rows may have there
PLAIN = (str, bool, int, float, decimal.Decimal, datetime.date, datetime.time)
MISSING = object()  # stands for the value of a column that a row does not have


def find_column(row: Mapping[str, Any], name: str, empty: Any = None) -> Any:
    """Returns the value of a column; `MISSING` if the row has no such column; `empty` if the one around it has no value.

    A dotted name is that of a column, or else of a column inside another.
    """
    if name in row:
        return row[name]
    value: Any = row
    for part in name.split("."):
        if value is None:
            return empty
        if not isinstance(value, Mapping) or part not in value:
            return MISSING
        value = value[part]
    return value


def is_wanted(row: Mapping[str, Any], where: Where, place: str) -> bool:
    """Tells whether a row has one of the wanted values in each column. A row without a value has no wanted value.

    `row`: value of each column; those of a nested column are a mapping. `place`: file and row, for messages. Raises
    UserError if a column contains something else than one text, number, date or truth value.
    """
    return all(_is_one_of(find_column(row, name), wanted, name, place) for name, wanted in where.items())


def lacking_columns(row: Mapping[str, Any], names: Iterable[str], empty: Any = None) -> set[str]:
    """Returns those columns that a row lacks. One row tells for a table, because all its rows have the same columns.

    `empty`: what a column that has no value contains. With `MISSING` it contains no columns: other rows may have some.
    """
    return {name for name in names if find_column(row, name, empty) is MISSING}


def no_column(source: str, names: set[str], row: Mapping[str, Any]) -> UserError:
    """Makes the error for columns that a source lacks. `row` has the columns of the source."""
    return UserError(f"{source} has no column {min(names)!r}; it has {_all_names(row)}. Change corpus.where.")


def no_field(source: str, field: str, row: Mapping[str, Any]) -> UserError:
    """Makes the error for a source without the field of the text."""
    return UserError(f"{source} has no field {field!r}; it has {_all_names(row)}. Set corpus.text_field.")


def _all_names(row: Mapping[str, Any]) -> str:
    return shown([*_names(row)])[1:-1] or "none"


def _names(row: Mapping[str, Any], above: str = "") -> Iterator[str]:
    for name, value in row.items():
        if isinstance(value, Mapping) and value:
            yield from _names(value, f"{above}{name}.")
        else:
            yield f"{above}{name}"


def _is_one_of(value: Any, wanted: Sequence[str], name: str, place: str) -> bool:
    if value is None or value is MISSING:
        return False
    if not isinstance(value, PLAIN):
        inside = f" Name a column inside it: {_all_names({name: value})}." if isinstance(value, dict) else ""
        raise UserError(
            f"{place}: column {name!r} contains {type(value).__name__}, and corpus.where compares one text, number, date or"
            f" truth value.{inside}"
        )
    if isinstance(value, bool):
        return str(value).lower() in (text.lower() for text in wanted)
    if isinstance(value, int | float | decimal.Decimal):
        return any(_is_number(text, value) for text in wanted)
    return str(value) in wanted


def _is_number(text: str, value: float | decimal.Decimal) -> bool:
    """Tells whether a text says a number: exactly, or as its type rounds it."""
    try:
        exact = decimal.Decimal(text)
        return bool(exact == value) or (isinstance(value, float) and float(text) == value)
    except (decimal.InvalidOperation, ValueError):
        return False
