"""Reads the texts of files whose rows have fields: csv, json and parquet. No type is guessed, and no copy is stored."""

from __future__ import annotations

import csv
import json
import tempfile
from collections import Counter
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from ffkv.base.errors import UserError
from ffkv.base.settings import Corpus
from ffkv.base.settings.messages import shown
from ffkv.corpus import raw_file
from ffkv.corpus.chat import Render, row_text
from ffkv.corpus.raw_file import PARQUET, lines_of, unreadable
from ffkv.corpus.where import MISSING, find_column, is_wanted, lacking_columns, no_column, no_field

LARGEST_RATIO = 20  # of a parquet file over itself compressed by gzip or zstd


def csv_texts(path: str, stream: TextIO, corpus: Corpus) -> Iterator[str | None]:
    """Yields the texts of a csv file with a header. See `ffkv.corpus.text_files.texts` for the arguments and errors."""
    csv.field_size_limit(raw_file.MAX_CHARACTERS)
    length = 0  # of the row so far, which may have many lines

    def lines() -> Iterator[str]:
        nonlocal length
        for line in lines_of(path, stream):
            length += len(line)
            if length > raw_file.MAX_CHARACTERS:
                raise unreadable(path, f"the row is longer than {raw_file.MAX_CHARACTERS:,} characters", start)
            yield line

    reader = csv.reader(lines(), strict=True)
    header = None
    while True:
        start, length = reader.line_num + 1, 0
        try:
            row = next(reader, None)
        except csv.Error as error:
            raise unreadable(path, f"{error} in the row that begins here", start) from error
        if row is None:
            return
        if not row:  # an empty line
            continue
        if header is None:
            header = row
            _check_columns(path, row, dict.fromkeys(row, ""), corpus)
        elif len(row) != len(header):
            raise unreadable(path, f"a row of {len(row)} fields, where the header has {len(header)}", start)
        elif is_wanted(dict(zip(header, row, strict=True)), corpus.where, f"{path}, line {start:,}"):
            yield row[header.index(corpus.text_field)]
        else:
            yield None


def json_texts(path: str, file: BinaryIO, corpus: Corpus, render: Render | None) -> Iterator[str | None]:
    """Yields the texts of a file with one JSON object per line, or with a list of them. See `text_files.texts`."""
    first: dict[str, Any] | None = None
    field, where = corpus.text_field, corpus.where
    lacking = {field, *where}
    for place, row in json_rows(path, file, numbers=render is not None or bool(where)):
        if not isinstance(row, dict):
            raise UserError(f"{path}, {place}: contains {type(row).__name__}, not an object with fields.")
        first = first or row
        lacking = lacking_columns(row, lacking, MISSING)
        wanted = is_wanted(row, where, f"{path}, {place}")
        value = find_column(row, field, MISSING)
        yield row_text(value, field, f"{path}, {place}", render) if wanted else None
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
        return json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_unique,
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
    except RecursionError as error:
        raise unreadable(path, "its JSON is nested too deeply", line) from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = next(name for name, count in counts.items() if count > 1)
        raise ValueError(f"the field {shown(twice)} occurs twice")
    return row


def _unpack(path: str, packed: Any, whole: BinaryIO) -> None:
    """Unpacks a parquet file into a temporary one. Parquet is compressed: what gets much smaller is something else."""
    most = LARGEST_RATIO * Path(path).stat().st_size + raw_file.MAX_CHARACTERS
    if packed.read(len(PARQUET)) != PARQUET:
        raise unreadable(path, "it is not a parquet file that was compressed")
    whole.write(PARQUET)
    while piece := packed.read(2**20):
        if whole.tell() > most:
            raise unreadable(path, f"it unpacks to more than {most:,} bytes, {LARGEST_RATIO} times its size")
        whole.write(piece)


def parquet_texts(path: str, file: Any, corpus: Corpus, render: Render | None) -> Iterator[str | None]:
    """Yields the texts of a parquet file, which may be compressed as a whole. See `text_files.texts`."""
    import pyarrow as pa
    from pyarrow import parquet

    field, where, number = corpus.text_field, corpus.where, 0
    with tempfile.TemporaryFile() as whole:
        if not isinstance(file, BufferedReader):  # parquet is read from the end of the file
            _unpack(path, file, whole)
            file = whole
        try:
            opened = parquet.ParquetFile(file, page_checksum_verification=True)
            columns = _parquet_columns(opened.schema_arrow)
            _check_columns(path, opened.schema_arrow.names, columns, corpus)
            needed = {_outermost(name, columns) for name in (field, *where)}
            for batch in opened.iter_batches(256, columns=[field, *where], use_threads=False):
                # Of "a.b" pyarrow also reads the field b of a column a.
                names = batch.schema.names
                for index in range(len(batch)):
                    place = f"{path}, row {number:,}"
                    row = {name: batch.column(names.index(name))[index].as_py() for name in needed}
                    value = find_column(row, field)
                    yield row_text(value, field, place, render) if is_wanted(row, where, place) else None
                    number += 1
        except UnicodeDecodeError as error:
            fields = " or ".join(map(repr, dict.fromkeys([field, *where])))
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
