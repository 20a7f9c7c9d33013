"""Sheets as CSV files for spreadsheets, and back.

A key takes a block of rows: one with the labels of its patterns, one with their kinds, one per prefix with an x for
each pattern that it has, and one to say that the key is done. A change takes one row.
"""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from ffkv.apps.annotation.records import MarkedPattern, Record
from ffkv.apps.annotation.sheets import Item, Sheet
from ffkv.base.errors import UserError
from ffkv.base.files.atomic import atomic
from ffkv.base.files.spreadsheet import read_safe_text, safe_text
from ffkv.run.results.text import BLANK

PATTERNS = 8  # columns for patterns; more if an annotator wrote more
KEY_COLUMNS = ("sheet", "item", "row", "text")
CHANGE_COLUMNS = ("sheet", "item", "text", "before", "after", "related")
ROWS = ("label", "kind", "done")  # the rows of a key that are not prefixes
ANSWERS = {"yes": "true", "true": "true", "no": "false", "false": "false", "unsure": "unsure"}
WORDS = {"true": "yes", "false": "no", "unsure": "unsure"}
MARKED, UNMARKED = ("x", "X", "1", "yes", "true", "TRUE", "✓"), ("", "0", "no", "false", "FALSE")
LARGEST = 50 * 2**20  # bytes of a file


def write_csv(path: Path, sheet: Sheet, annotator: str, records: Mapping[str, Record]) -> None:
    """Writes a person's items as a CSV file, with what the person has said so far.

    Args:
        path: the file to write.
        annotator: name of the person.
        records: the person's latest records, by item.
    Raises:
        UserError: the sheet is not for this person.
    """
    order = order_of(sheet, annotator)
    if sheet.kind == "key":
        count = max([PATTERNS, *(len(record.patterns) for record in records.values())])
        rows: list[Sequence[str]] = [(*KEY_COLUMNS, *(f"pattern {number}" for number in range(1, count + 1)))]
        for item in order:
            rows += _key_rows(sheet, item, records.get(item), count)
    else:
        rows = [CHANGE_COLUMNS, *(_change_row(sheet, item, records.get(item)) for item in order)]
    file = io.StringIO()
    csv.writer(file, lineterminator="\r\n").writerows([[safe_text(cell) for cell in row] for row in rows])
    with atomic(path, summed=False) as temporary:
        temporary.write_bytes(file.getvalue().encode("utf-8-sig"))  # Excel takes a file without the mark for Latin-1


def order_of(sheet: Sheet, annotator: str) -> tuple[str, ...]:
    """Returns the items that a person judges, in order.

    Raises:
        UserError: the sheet is not for this person.
    """
    if annotator not in sheet.orders:
        raise UserError(f"The sheet {sheet.name} has no annotator {annotator!r}. It is for: {', '.join(sheet.orders)}.")
    return sheet.orders[annotator]


def _key_rows(sheet: Sheet, item: str, record: Record | None, count: int) -> list[Sequence[str]]:
    patterns = record.patterns if record else ()
    empty = [""] * (count - len(patterns))
    marks = [
        (str(number), with_marked_end(text), *("x" if number in pattern.prefixes else "" for pattern in patterns))
        for number, text in enumerate(sheet.items[item].prefixes)
    ]
    rows = [
        ("label", "What the marked texts have in common", *(pattern.label for pattern in patterns)),
        ("kind", "shallow or semantic", *(pattern.kind for pattern in patterns)),
        *marks,
        ("done", "Write x at the right when you are done with this block", "x" if record and record.done else ""),
    ]
    rows[-1] = (*rows[-1], *[""] * (len(patterns) - 1))
    return [[sheet.name, item, *row, *empty][: len(KEY_COLUMNS) + count] for row in rows]


def _change_row(sheet: Sheet, item: str, record: Record | None) -> Sequence[str]:
    shown = sheet.items[item]
    related = WORDS[record.related] if record and record.related else ""
    return [sheet.name, item, with_marked_end(shown.text), *map(with_marked_ends, (shown.before, shown.after)), related]


def with_marked_end(text: str) -> str:
    """Returns a text with a mark for each blank at its end, and for each line end. Nobody would see them."""
    core = text.rstrip(" ")
    return (core + BLANK * (len(text) - len(core))).replace("\n", "↵")


def with_marked_ends(token: str) -> str:
    """Returns a token with marks for the blanks at both ends."""
    core = token.lstrip(" ")
    return with_marked_end(BLANK * (len(token) - len(core)) + core)


def read_csv(path: Path, sheet: Sheet, annotator: str) -> list[Record]:
    """Reads what a person wrote into a CSV file.

    Args:
        path: a file that `write_csv` wrote and a spreadsheet saved, with any separator.
        annotator: name of the person.
    Returns:
        A record per item that the person wrote something about, in the order of the file. A key without its x in the
        row `done` is not done.
    Raises:
        UserError: the file cannot be read, has other columns, or says something that cannot be; names the row.
    """
    order = set(order_of(sheet, annotator))
    blocks: dict[str, list[tuple[int, dict[str, str]]]] = {}
    for line, row in _rows(path, KEY_COLUMNS if sheet.kind == "key" else CHANGE_COLUMNS):
        if row["sheet"] != sheet.name or row["item"] not in order:
            raise UserError(
                f"{path}, row {line}: item {row['item']!r} of sheet {row['sheet']!r} is not one that {annotator} judges"
                f" in the sheet {sheet.name}."
            )
        blocks.setdefault(row["item"], []).append((line, row))
    read = _read_key if sheet.kind == "key" else _read_change
    found = []
    for item, rows in blocks.items():
        try:
            said = read(path, sheet.items[item], rows)
            if said is not None:
                found.append(sheet.record(f"person:{annotator}", item, **said))
        except ValidationError as error:
            problem = error.errors()[0]["msg"].removeprefix("Value error, ").rstrip(".")
            raise UserError(f"{path}, item {item} from row {rows[0][0]} on: {problem}.") from error
    return found


def _rows(path: Path, columns: Iterable[str]) -> list[tuple[int, dict[str, str]]]:
    """Returns the rows of a file with the numbers that a spreadsheet gives them; empty ones are left out."""
    try:
        if path.stat().st_size > LARGEST:
            raise UserError(f"{path} has more than {LARGEST:,} bytes. It is not a sheet.")
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8. Save it as “CSV UTF-8” in the spreadsheet.") from error
    header = text.partition("\n")[0]
    separator = max(",;\t", key=header.count)
    try:
        table = [
            [read_safe_text(cell) for cell in row]
            for row in csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
        ]
    except csv.Error as error:
        raise UserError(f"{path} is not a CSV file: {error}. Save it again from the spreadsheet.") from error
    names = [name.strip() for name in table[0]] if table else []
    if missing := [name for name in columns if name not in names]:
        raise UserError(
            f"{path} lacks the column {missing[0]!r} in its first row. Keep the columns as they were written."
        )
    return [
        (line, {**dict.fromkeys(names, ""), **dict(zip(names, row))})
        for line, row in enumerate(table[1:], 2)
        if any(cell.strip() for cell in row)
    ]


def _read_key(path: Path, item: Item, rows: list[tuple[int, dict[str, str]]]) -> dict | None:
    names = [name for name in rows[0][1] if name.startswith("pattern ")]
    by_row: dict[str, tuple[int, dict[str, str]]] = {}
    for line, row in rows:
        name = row["row"].strip()
        if name not in ROWS and not (name.isdecimal() and int(name) < len(item.prefixes)):
            raise UserError(f"{path}, row {line}: the block of this item has no row {row['row']!r}.")
        if name in by_row:
            raise UserError(f"{path}, row {line}: the row {name!r} of this item is there twice.")
        by_row[name] = line, row
    patterns = []
    for name in names:
        marks = [
            int(row) for row, (line, cells) in by_row.items() if row not in ROWS and _is_marked(path, line, cells[name])
        ]
        label, kind = (by_row.get(row, (0, {}))[1].get(name, "").strip() for row in ("label", "kind"))
        if kind.lower() not in ("", "shallow", "semantic"):
            raise UserError(f"{path}, row {by_row['kind'][0]}: the kind is {kind!r}. Write shallow or semantic.")
        if marks or label:
            patterns.append(MarkedPattern(label=label, kind=kind.lower(), prefixes=marks))
    line, cells = by_row.get("done", (0, {}))
    done = any(_is_marked(path, line, cells[name]) for name in names) if cells else False
    return {"patterns": patterns, "done": done} if patterns or done else None


def _is_marked(path: Path, line: int, cell: str) -> bool:
    if cell.strip() not in MARKED + UNMARKED:
        raise UserError(f"{path}, row {line}: {cell!r} is neither an x nor empty.")
    return cell.strip() in MARKED


def _read_change(path: Path, item: Item, rows: list[tuple[int, dict[str, str]]]) -> dict | None:
    (line, row), *more = rows
    if more:
        raise UserError(f"{path}, row {more[0][0]}: this item is there twice.")
    answer = row["related"].strip().lower()
    if answer and answer not in ANSWERS:
        raise UserError(f"{path}, row {line}: related is {row['related']!r}. Write yes, no or unsure.")
    return {"related": ANSWERS[answer]} if answer else None
