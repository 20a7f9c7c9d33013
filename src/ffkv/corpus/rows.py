"""Rows with fields: which of them are documents, and their texts; and how csv, json and parquet files have them.

No type is guessed, and no copy is stored.
"""

import csv
import datetime
import decimal
import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from ffkv.base.errors import UserError
from ffkv.base.lookup import parse_json
from ffkv.base.settings import Corpus
from ffkv.base.settings.messages import shown
from ffkv.corpus import raw_file
from ffkv.corpus.chat import Render, check_messages
from ffkv.corpus.document import Document
from ffkv.corpus.raw_file import PARQUET, lines_of, unreadable

LARGEST_RATIO = 20  # of a parquet file over itself compressed by gzip or zstd
Where = Mapping[str, Sequence[str]]  # name of a column: the values that rows may have there
PLAIN = (str, bool, int, float, decimal.Decimal, datetime.date, datetime.time)
TITLE = "title"  # name of the column that names a row
TEXTS = ("string", "large_string", "string_view")  # types of columns of parquet that hold texts
MISSING = object()  # stands for the value of a column that a row does not have


def row_document(row: Mapping[str, Any], corpus: Corpus, place: str, render: Render | None = None) -> Document | None:
    """Returns the document of a row, without its name; None if `corpus.where` does not want the row.

    Its text is "" if the row has none. A text in a column `title` is its title, unless that is the text itself.

    `row`: value of each column; those of a nested column are a mapping. `render` turns a chat into text, see
    `chat_renderer`; None if rows contain text. `place`: file and row, for messages. Raises UserError if the value in the
    field of the text is of another kind, the template refuses the chat, or `where` cannot be compared.
    """
    if not is_wanted(row, corpus.where, place):
        return None
    field, text, title = corpus.text_field, find_column(row, corpus.text_field), row.get(TITLE)
    if text is None or text is MISSING:
        text = ""
    elif render is not None:
        check_messages(text, f"{place}: field {field!r}")
        try:
            text = render(text) if text else ""
        except UserError as error:
            raise UserError(f"{place}: {error}") from error
    elif not isinstance(text, str):
        remedy = " or corpus.chat_template" if isinstance(text, list) else ""
        raise UserError(
            f"{place}: field {field!r} contains {type(text).__name__}, not text. Set corpus.text_field{remedy}."
        )
    return Document("", text, title if isinstance(title, str) and field != TITLE else "")


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
    for name, wanted in where.items():
        value = find_column(row, name)
        if value is None or value is MISSING:
            return False
        if not isinstance(value, PLAIN):
            inside = f" Name a column inside it: {_all_names({name: value})}." if isinstance(value, dict) else ""
            raise UserError(
                f"{place}: column {name!r} contains {type(value).__name__}, and corpus.where compares one text, number, date or"
                f" truth value.{inside}"
            )
        if isinstance(value, bool):
            fits = str(value).lower() in (text.lower() for text in wanted)
        elif isinstance(value, int | float | decimal.Decimal):
            fits = any(_is_number(text, value) for text in wanted)
        else:
            fits = str(value) in wanted
        if not fits:
            return False
    return True


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


def _is_number(text: str, value: float | decimal.Decimal) -> bool:
    """Tells whether a text says a number: exactly, or as its type rounds it."""
    try:
        exact = decimal.Decimal(text)
        return bool(exact == value) or (isinstance(value, float) and float(text) == value)
    except (decimal.InvalidOperation, ValueError):
        return False


def csv_documents(path: str, stream: TextIO, corpus: Corpus) -> Iterator[Document | None]:
    """Yields the rows of a csv file with a header. See `ffkv.corpus.sources.documents_of` for the arguments and errors."""
    for start, header, row in csv_rows(path, lines_of(path, stream)):
        if row:
            yield row_document(dict(zip(header, row, strict=True)), corpus, f"{path}, line {start:,}")
        else:
            _check_columns(path, header, dict.fromkeys(header, ""), corpus)


def csv_rows(path: str, source: Iterable[str], separator: str = ",") -> Iterator[tuple[int, list[str], Sequence[str]]]:
    """Yields the header with no row, then each row: the line in which it begins, the header, its fields.

    `source`: the lines of the file. Raises UserError if a row is malformed, or too long.
    """
    csv.field_size_limit(raw_file.MAX_CHARACTERS)
    length = 0  # of the row so far, which may have many lines

    def lines() -> Iterator[str]:
        nonlocal length
        for line in source:
            length += len(line)
            if length > raw_file.MAX_CHARACTERS:
                raise unreadable(path, f"the row is longer than {raw_file.MAX_CHARACTERS:,} characters", start)
            yield line

    reader, header, start = csv.reader(lines(), strict=True, delimiter=separator), list[str](), 1
    try:
        for row in reader:
            if row and not header:
                header = row
                yield start, header, ()
            elif row and len(row) != len(header):
                raise unreadable(path, f"a row of {len(row)} fields, where the header has {len(header)}", start)
            elif row:
                yield start, header, row
            start, length = reader.line_num + 1, 0
    except csv.Error as error:
        raise unreadable(path, f"{error} in the row that begins here", start) from error


def json_documents(path: str, file: BinaryIO, corpus: Corpus, render: Render | None) -> Iterator[Document | None]:
    """Yields the rows of a file with one JSON object per line, or with a list of them. See `sources.documents_of`."""
    first: dict[str, Any] | None = None
    field, where = corpus.text_field, corpus.where
    lacking = {field, *where}
    for place, row in json_rows(path, file, numbers=render is not None or bool(where)):
        if not isinstance(row, dict):
            raise UserError(f"{path}, {place}: contains {type(row).__name__}, not an object with fields.")
        first = first or row
        lacking = lacking_columns(row, lacking, MISSING)
        yield row_document(row, corpus, f"{path}, {place}", render)
    if first is not None and field in lacking:
        raise no_field(path, field, first)
    if first is not None and lacking:
        raise no_column(path, lacking, first)


def json_rows(path: str, file: BinaryIO, numbers: bool) -> Iterator[tuple[str, Any]]:
    """Yields place and content of each row, one per line or all in one list. `numbers`: whether any is needed."""
    for number, line in enumerate(lines_of(path, file), 1):
        line = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
        if line.isspace() or not line:
            continue
        if line.lstrip().startswith(b"["):
            rest = file.read(raw_file.MAX_CHARACTERS + 1 - len(line))
            if len(line) + len(rest) > raw_file.MAX_CHARACTERS:
                reason = f"its list is longer than {raw_file.MAX_CHARACTERS:,} bytes: write one object per line"
                raise unreadable(path, reason, number)
            rows = _parsed(path, line + rest, number, numbers)
            yield from ((f"row {index}", row) for index, row in enumerate(rows))
            return
        yield f"line {number:,}", _parsed(path, line.rstrip(), number, numbers)


def _parsed(path: str, data: bytes, line: int, numbers: bool) -> Any:
    try:
        return parse_json(
            data.decode("utf-8"),
            # A number that nobody needs may have any number of digits.
            parse_int=None if numbers else lambda digits: 0,
            parse_float=None if numbers else lambda digits: 0.0,
        )
    except UnicodeDecodeError as error:  # JSON is UTF-8 by definition
        raise unreadable(path, f"bytes that are not UTF-8 text ({error.reason} at byte {error.start})", line) from error
    except json.JSONDecodeError as error:
        raise unreadable(path, f"not JSON: {error.msg} at character {error.colno}", line + error.lineno - 1) from error
    except ValueError as error:
        raise unreadable(path, error, line) from error


def parquet_documents(path: str, file: Any, corpus: Corpus, render: Render | None) -> Iterator[Document | None]:
    """Yields the rows of a parquet file, which may be compressed as a whole. See `sources.documents_of`."""
    import pyarrow as pa
    from pyarrow import parquet

    read, number = [corpus.text_field, *corpus.where], 0
    with tempfile.TemporaryFile() as whole:
        if not isinstance(file, BufferedReader):  # parquet is read from the end of the file, so it is unpacked first
            # Parquet is compressed: what gets much smaller is something else.
            most = LARGEST_RATIO * Path(path).stat().st_size + raw_file.MAX_CHARACTERS
            if file.read(len(PARQUET)) != PARQUET:
                raise unreadable(path, "it is not a parquet file that was compressed")
            whole.write(PARQUET)
            while piece := file.read(2**20):
                if whole.tell() > most:
                    raise unreadable(path, f"it unpacks to more than {most:,} bytes, {LARGEST_RATIO} times its size")
                whole.write(piece)
            file = whole
        try:
            opened = parquet.ParquetFile(file, page_checksum_verification=True)
            columns = _parquet_columns(opened.schema_arrow)
            names = opened.schema_arrow.names
            _check_columns(path, names, columns, corpus)
            if names.count(TITLE) == 1 and str(opened.schema_arrow.field(TITLE).type) in TEXTS:
                read.append(TITLE)
            needed = {_outermost(name, columns) for name in read}
            for batch in opened.iter_batches(256, columns=read, use_threads=False):
                # Of "a.b" pyarrow also reads the field b of a column a.
                there = batch.schema.names
                for index in range(len(batch)):
                    row = {name: batch.column(there.index(name))[index].as_py() for name in needed}
                    yield row_document(row, corpus, f"{path}, row {number:,}", render)
                    number += 1
        except UnicodeDecodeError as error:
            fields = " or ".join(map(repr, dict.fromkeys(read)))
            raise unreadable(path, f"field {fields} contains bytes that are not UTF-8 text, row {number:,}") from error
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:  # errors of damaged files
            raise unreadable(path, error) from error


def _parquet_columns(fields: Any) -> dict[str, Any]:
    """Returns the columns of a schema or of the type of a nested column: an empty text, or the columns inside."""
    from pyarrow import types

    return {field.name: _parquet_columns(field.type.fields) if types.is_struct(field.type) else "" for field in fields}


def _check_columns(path: str, names: list[str], columns: dict[str, Any], corpus: Corpus) -> None:
    """Refuses a table that lacks a column that is needed, or has two of its name."""
    if lacking_columns(columns, [corpus.text_field]):
        raise no_field(path, corpus.text_field, columns)
    if lacking := lacking_columns(columns, corpus.where):
        raise no_column(path, lacking, columns)
    for name in (_outermost(needed, columns) for needed in (corpus.text_field, *corpus.where)):
        if names.count(name) > 1:
            raise UserError(f"{path} has more than one field {name!r}: rename one of them.")


def _outermost(name: str, columns: dict[str, Any]) -> str:
    """Returns the column of a table that is, or contains, a column of that name."""
    return name if name in columns else name.partition(".")[0]
