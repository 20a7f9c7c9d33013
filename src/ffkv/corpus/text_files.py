"""Reads the texts of a file, row by row. No type is guessed, and no copy is stored.

Whatever bytes a file contains, the result is its texts or a `UserError` that names the file and the place.
"""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Iterator
from io import BufferedReader, TextIOWrapper
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from ffkv.corpus.chat import Render, row_text
from ffkv.corpus.where import LEFT_OUT, NOWHERE, LeftOut, Where, is_wanted, missing_columns, no_column, unseen_columns
from ffkv.errors import UserError
from ffkv.settings.messages import shown

MAX_CHARACTERS = 2**26  # per document or line; nobody writes longer ones, and they would fill the memory
LARGEST_RATIO = 20  # of a parquet file over itself compressed by gzip or zstd
PARQUET = b"PAR1"  # how a parquet file begins
SAMPLE_BYTES = 4096  # bytes at the beginning that show whether a file is text
# How files begin that are not UTF-8 text, whatever their names say. Longer beginnings come first.
FOREIGN = {
    b"\xff\xfe\0\0": "UTF-32 text: convert it to UTF-8",
    b"\0\0\xfe\xff": "UTF-32 text: convert it to UTF-8",
    b"\xff\xfe": "UTF-16 text: convert it to UTF-8",
    b"\xfe\xff": "UTF-16 text: convert it to UTF-8",
    b"\x1f\x8b": "compressed by gzip: its name must end in .gz, once for each time",
    b"BZh": "compressed by bzip2: unpack it",
    b"\xfd7zXZ\0": "compressed by xz: unpack it",
    b"\x28\xb5\x2f\xfd": "compressed by zstd: its name must end in .zst, once for each time",
    b"PK\x03\x04": "a zip archive: unpack it",
    PARQUET: "a parquet file: its name must end in .parquet",
    b"%PDF-": "a PDF file: extract its text",
}


def texts(
    path: str,
    kind: str,
    field: str,
    unit: str,
    keep: bool = False,
    render: Render | None = None,
    where: Where = NOWHERE,
) -> Iterator[str | LeftOut | None]:
    """Reads the texts of a file, in their order; None for a row without a text.

    Args:
        path: the file. If its name ends in .gz or .zst, it is compressed.
        kind: "text", "json", "csv" or "parquet".
        field: the field of a row that contains the text; not used for the kind "text".
        unit: the unit that is one text in a file of the kind "text": "line", "paragraph" or "file".
        keep: whether line breaks within such a unit stay as they are. Otherwise each one becomes a line feed.
        render: turns a chat into text, see `ffkv.corpus.chat`; None if rows contain text.
        where: which rows are wanted, see `ffkv.corpus.where`. Each other one is told as `LEFT_OUT`.
    Raises:
        UserError: the file cannot be read, is damaged or is of another kind; or a field does not exist or does not
            contain text or, if asked for, chats that can be rendered.
    """
    if render is not None and kind not in ("json", "parquet"):
        raise UserError(
            f"{path}: corpus.chat_template is true, and only rows of jsonl and parquet files and of hub data sets contain"
            " chats."
        )
    if where and kind == "text":
        raise UserError(f"{path}: corpus.where chooses rows by their columns, and a txt file has none.")
    try:
        with _open(path) as file:
            if kind == "parquet":
                yield from _parquet(path, file, field, render, where)
            elif kind == "json":
                yield from _json(path, _checked(path, file), field, render, where)
            else:
                plain = _checked(path, file)
                # The codec utf-8-sig would lose a file that consists of the first byte of the mark alone.
                if plain.peek(len(BOM_UTF8)).startswith(BOM_UTF8):
                    plain.read(len(BOM_UTF8))
                newline = "" if kind == "csv" or keep else None
                stream = TextIOWrapper(plain, "utf-8", errors="replace", newline=newline)
                yield from _csv(path, stream, field, where) if kind == "csv" else _plain(path, stream, unit)
    except (OSError, EOFError, zlib.error) as error:  # from the disk, or from a damaged .gz or .zst
        raise _unreadable(path, getattr(error, "strerror", None) or error) from error


def _unreadable(path: str, reason: object, line: int | None = None) -> UserError:
    text = " ".join(str(reason).split())[:500]
    place = f" (line {line:,})" if line else ""
    return UserError(f"The corpus {path} cannot be read{place}: {text or type(reason).__name__}.".replace("..", "."))


def _no_field(path: str, field: str, fields: list[str]) -> UserError:
    return UserError(f"{path} has no field {field!r}; it has {shown(fields)[1:-1] or 'none'}. Set corpus.text_field.")


def _open(path: str) -> Any:
    """The file, or what it unpacks to, as a stream of bytes."""
    if path.lower().endswith(".zst"):
        import pyarrow as pa

        # The reader of the package zstandard takes a file that is cut off for a whole one.
        return pa.CompressedInputStream(Path(path).open("rb"), "zstd")
    return gzip.open(path) if path.lower().endswith(".gz") else Path(path).open("rb")


def _checked(path: str, file: Any) -> BufferedReader[Any]:
    """The file, still at its beginning. Refused if its beginning shows that it is not UTF-8 text."""
    buffered: BufferedReader[Any] = file if isinstance(file, BufferedReader) else BufferedReader(file, SAMPLE_BYTES)
    sample = buffered.peek(SAMPLE_BYTES)[:SAMPLE_BYTES]
    for beginning, what in FOREIGN.items():
        if sample.startswith(beginning):
            raise _unreadable(path, f"it is {what}")
    if sample.count(0) > len(sample) // 4:
        raise _unreadable(path, "it begins with NUL bytes: it is damaged, or it is UTF-16 text; convert it to UTF-8")
    return buffered


def _lines(path: str, stream: Any) -> Iterator[Any]:
    """The lines of a text or byte stream, with their line ends."""
    for number, line in enumerate(iter(lambda: stream.readline(MAX_CHARACTERS + 1), stream.read(0)), 1):
        if len(line) > MAX_CHARACTERS:
            raise _unreadable(path, f"the line is longer than {MAX_CHARACTERS:,} characters", number)
        yield line


def _plain(path: str, stream: TextIO, unit: str) -> Iterator[str]:
    if unit == "file":
        text = stream.read(MAX_CHARACTERS + 1)
        if len(text) > MAX_CHARACTERS:
            raise _unreadable(
                path, f"as one document it is longer than {MAX_CHARACTERS:,} characters: use another txt_document"
            )
        yield text
        return
    lines = _lines(path, stream)
    yield from map(_without_end, lines) if unit == "line" else _paragraphs(path, lines)


def _paragraphs(path: str, lines: Iterator[str]) -> Iterator[str]:
    paragraph, length = [], 0
    for number, line in enumerate(lines, 1):
        if _without_end(line):
            paragraph.append(line)
            length += len(line)
            if length > MAX_CHARACTERS:
                raise _unreadable(path, f"the paragraph is longer than {MAX_CHARACTERS:,} characters", number)
        elif paragraph:
            yield _without_end("".join(paragraph))
            paragraph, length = [], 0
    if paragraph:
        yield _without_end("".join(paragraph))


def _without_end(line: str) -> str:
    """A line without its line break: a line feed, a carriage return, or both. Others are not read as line breaks here."""
    return line.removesuffix("\n").removesuffix("\r")


def _csv(path: str, stream: TextIO, field: str, where: Where) -> Iterator[str | LeftOut]:
    csv.field_size_limit(MAX_CHARACTERS)
    reader = csv.reader(_lines(path, stream), strict=True)
    header, start = None, 1
    while True:
        start = reader.line_num + 1
        try:
            row = next(reader, None)
        except csv.Error as error:
            raise _unreadable(path, f"{error} in the row that begins here", start) from error
        if row is None:
            return
        if not row:  # an empty line
            continue
        if header is None:
            header, column = row, _column(path, field, row)
            if lacking := missing_columns(columns := dict.fromkeys(row, ""), where):
                raise no_column(path, lacking, columns)
            for name in where:
                _column(path, name, row)
        elif len(row) != len(header):
            raise _unreadable(path, f"a row of {len(row)} fields, where the header has {len(header)}", start)
        elif is_wanted(dict(zip(header, row, strict=True)), where, f"{path}, line {start:,}"):
            yield row[column]
        else:
            yield LEFT_OUT


def _column(path: str, field: str, names: list[str]) -> int:
    """The place of a field among the names; refuses a field that does not exist or occurs twice."""
    if field not in names:
        raise _no_field(path, field, names)
    if names.count(field) > 1:
        raise UserError(f"{path} has more than one field {field!r}: rename one of them.")
    return names.index(field)


def _json(path: str, file: BinaryIO, field: str, render: Render | None, where: Where) -> Iterator[str | LeftOut | None]:
    first: dict[str, Any] | None = None
    has_field, lacking = False, set(where)
    for place, row in _json_rows(path, file, numbers=render is not None or bool(where)):
        if not isinstance(row, dict):
            raise UserError(f"{path}, {place}: contains {type(row).__name__}, not an object with fields.")
        first, has_field = first or row, has_field or field in row
        lacking = unseen_columns(row, lacking)
        if is_wanted(row, where, f"{path}, {place}"):
            yield row_text(row.get(field), field, f"{path}, {place}", render)
        else:
            yield LEFT_OUT
    if first is not None and not has_field:
        raise _no_field(path, field, list(first))
    if first is not None and lacking:
        raise no_column(path, lacking, first)


def _json_rows(path: str, file: BinaryIO, numbers: bool) -> Iterator[tuple[str, Any]]:
    """The place and the content of each row. A file has one row per line, or all rows in one list.

    Args:
        path: the file, for messages.
        file: its bytes.
        numbers: whether numbers are needed. Otherwise all of them are 0, because they may have any number of digits.
    """
    for number, line in enumerate(_lines(path, file), 1):
        line = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
        if line.isspace() or not line:
            continue
        if line.lstrip().startswith(b"["):
            rest = file.read(MAX_CHARACTERS + 1 - len(line))
            if len(line) + len(rest) > MAX_CHARACTERS:
                raise _unreadable(
                    path, f"its list is longer than {MAX_CHARACTERS:,} bytes: write one object per line", number
                )
            rows = _parsed(path, line + rest, number, numbers)
            yield from ((f"row {index}", row) for index, row in enumerate(rows))
            return
        yield f"line {number:,}", _parsed(path, line.rstrip(), number, numbers)


def _parsed(path: str, data: bytes, line: int, numbers: bool) -> Any:
    try:
        return json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_unique,
            parse_int=None if numbers else lambda digits: 0,
            parse_float=None if numbers else lambda digits: 0.0,
        )
    except UnicodeDecodeError as error:  # JSON is UTF-8 by definition
        raise _unreadable(
            path, f"bytes that are not UTF-8 text ({error.reason} at byte {error.start})", line
        ) from error
    except json.JSONDecodeError as error:
        raise _unreadable(path, f"not JSON: {error.msg} at character {error.colno}", line + error.lineno - 1) from error
    except ValueError as error:
        raise _unreadable(path, error, line) from error
    except RecursionError as error:
        raise _unreadable(path, "its JSON is nested too deeply", line) from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = next(name for name, count in counts.items() if count > 1)
        raise ValueError(f"the field {shown(twice)} occurs twice")
    return row


def _unpack(path: str, packed: Any, whole: BinaryIO) -> None:
    """Unpacks a parquet file into a temporary one. It is compressed already: what gets much smaller is no parquet file."""
    most = LARGEST_RATIO * Path(path).stat().st_size + MAX_CHARACTERS
    if packed.read(len(PARQUET)) != PARQUET:
        raise _unreadable(path, "it is no parquet file that was compressed")
    whole.write(PARQUET)
    while piece := packed.read(2**20):
        if whole.tell() > most:
            raise _unreadable(path, f"it unpacks to more than {most:,} bytes, {LARGEST_RATIO} times its size")
        whole.write(piece)


def _parquet(path: str, file: Any, field: str, render: Render | None, where: Where) -> Iterator[str | LeftOut | None]:
    import tempfile

    import pyarrow as pa
    from pyarrow import parquet

    with tempfile.TemporaryFile() as whole:
        if not isinstance(file, BufferedReader):  # parquet is read from the end of the file
            _unpack(path, file, whole)
            file = whole
        try:
            opened = parquet.ParquetFile(file, page_checksum_verification=True)
            _column(path, field, opened.schema_arrow.names)
            columns = _parquet_columns(opened.schema_arrow)
            if lacking := missing_columns(columns, where):
                raise no_column(path, lacking, columns)
            tested = [name if name in columns else name.partition(".")[0] for name in where]
            for name in tested:
                _column(path, name, opened.schema_arrow.names)
            number = 0
            for batch in opened.iter_batches(256, columns=[field, *where], use_threads=False):
                # Of "a.b" pyarrow also reads the field b of a column a.
                names = batch.schema.names
                for index, value in enumerate(batch.column(names.index(field))):
                    place = f"{path}, row {number:,}"
                    row = {name: batch.column(names.index(name))[index].as_py() for name in tested}
                    yield row_text(value.as_py(), field, place, render) if is_wanted(row, where, place) else LEFT_OUT
                    number += 1
        except UnicodeDecodeError as error:
            fields = " or ".join(map(repr, dict.fromkeys([field, *where])))
            raise _unreadable(path, f"field {fields} contains bytes that are not UTF-8 text, row {number:,}") from error
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:  # errors of damaged files
            raise _unreadable(path, error) from error


def _parquet_columns(fields: Any) -> dict[str, Any]:
    """The columns of a schema or of the type of a nested column: an empty text, or the columns inside."""
    from pyarrow import types

    return {field.name: _parquet_columns(field.type.fields) if types.is_struct(field.type) else "" for field in fields}
