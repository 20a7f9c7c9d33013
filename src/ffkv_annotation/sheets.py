"""Sheets: what annotators get to see, and the secret key that says what it is.

A sheet lies in two files. `sheets/<name>.json` has the texts and the order in which each annotator sees them. Nothing
in it tells a layer, a memory, or whether prefixes were drawn at random. `secret/<name>.json` tells all of that.

As CSV files for spreadsheets, and back: a key takes a block of rows: one with the labels of its patterns, one with their kinds, one per
prefix with an x for each pattern that it has, and one to say that the key is done. A change takes one row.
"""

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import ValidationError

from ffkv.base.errors import UserError
from ffkv.base.files.atomic import atomic
from ffkv.base.files.journal import Stored, problem_of
from ffkv.base.files.stored import check_identities
from ffkv.base.lookup import exists, find, is_file, read_bytes
from ffkv.base.terminal import read_safe_text, safe_text
from ffkv.run.results.run_files import unknown
from ffkv.run.results.text import BLANK
from ffkv_annotation.records import MarkedPattern, Record

SHEETS, SECRET = "sheets", "secret"
LARGEST = 2**27  # bytes of a file


class Item(Stored):
    """What an annotator judges."""

    # of a key: the texts of its prefixes, in random order. A prefix is named by its place here, from 0.
    prefixes: tuple[str, ...] = ()
    text: str = ""  # of a change: the text of the prefix
    before: str = ""  # of a change: the token that the residual predicts
    after: str = ""  # of a change: the token that the last layer makes of it


class Sheet(Stored):
    """What annotators see."""

    name: str  # name of the sheet
    kind: Literal["key", "change"]  # "key": keys by their prefixes; "change": predictions that the last layer changes
    identity: dict[str, str]  # hashes of the run's model, tokenizer and train split
    items: dict[str, Item]  # the items by their random ids
    orders: dict[str, tuple[str, ...]]  # the ids that each person judges, in order, by the person's name

    def record(self, annotator: str, item: str, **said: Any) -> Record:
        """Returns what an annotator ("person:anna") says about an item. Raises ValidationError if it cannot be said."""
        about = {"sheet": self.name, "item": item, "identity": self.identity, "kind": self.kind}
        return Record(annotator=annotator, **about, **said)


class Origin(Stored):
    """What an item of a sheet is."""

    # "trigger": a key with its trigger examples, or a change of the run; "random": a control
    sample: Literal["trigger", "random"]
    layer: int  # the layer; of a control the layer of the key whose lengths its prefixes have; of a change the last one
    memory: int = -1  # the memory in its layer; of a control its number in its layer; -1 of a change
    # of a key: rank of each prefix among the key's trigger examples; of a control its number [prefix]
    ranks: tuple[int, ...] = ()
    sentence: tuple[int, ...] = ()  # sentence of each prefix in the train split [prefix]
    position: tuple[int, ...] = ()  # length of each prefix in tokens [prefix]
    row: int = -1  # of a change: row of the table prediction_changes
    other: int = -1  # of a control among changes: the row whose second token it has
    repeats: str = ""  # the item that this one repeats for one annotator; "" if it repeats none


class SecretKey(Stored):
    """What the items of a sheet are."""

    name: str  # name of the sheet
    identity: dict[str, str]  # as that of the sheet
    origins: dict[str, Origin]  # what each item is, by its id


def write_sheet(folder: Path, sheet: Sheet, secret: SecretKey) -> Path:
    """Writes a sheet and its secret key into `annotations/<run>`. Returns the file of the sheet."""
    path = folder / SHEETS / f"{sheet.name}.json"
    # The key first: a sheet without a key would be of no use.
    for model, place in ((secret, folder / SECRET / path.name), (sheet, path)):
        with atomic(place, summed=False) as temporary:
            temporary.write_bytes(_content(model))
    return path


def _content(model: Sheet | SecretKey) -> bytes:
    return f"{model.model_dump_json(indent=1)}\n".encode()


def is_begun(folder: Path, sheet: Sheet) -> bool:
    """Tells whether a start that was interrupted has written a sheet. Raises UserError if another one has its name."""
    path = folder / SHEETS / f"{sheet.name}.json"
    if exists(path) and not (is_file(path) and path.read_bytes() == _content(sheet)):
        raise UserError(f"{path} exists, and people may have begun with it. Choose another name with --name.")
    return exists(path)


def sheet_names(folder: Path) -> list[str]:
    """Returns the names of the sheets in `annotations/<run>`, sorted."""
    return sorted(path.stem for path in find(folder / SHEETS, "[!.]*.json"))


def read_sheet(folder: Path, name: str, belongs_to: Mapping[str, Any] | None = None) -> Sheet:
    """Reads a sheet of `annotations/<run>`. `belongs_to`: the identity of the run; None: any.

    Raises UserError if there is no sheet of this name, it is damaged, or it belongs to another model, tokenizer or corpus.
    """
    if name not in (names := sheet_names(folder)):
        raise unknown(f"sheet in {folder} called", name, names, "Make some with `ffkv annotate sheets`.")
    return _read(folder / SHEETS / f"{name}.json", Sheet, belongs_to)


def read_secret(folder: Path, name: str, belongs_to: Mapping[str, Any] | None = None) -> SecretKey:
    """Reads the secret key of a sheet. Arguments and errors as for `read_sheet`."""
    return _read(folder / SECRET / f"{name}.json", SecretKey, belongs_to)


Form = TypeVar("Form", Sheet, SecretKey)


def _read(path: Path, form: type[Form], belongs_to: Mapping[str, Any] | None) -> Form:
    try:
        found = form.model_validate_json(read_bytes(path, LARGEST))
    except FileNotFoundError as error:
        raise UserError(
            f"{path} does not exist. Without it nobody can tell what the items of the sheet are."
        ) from error
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}. Check its rights.") from error
    except ValidationError as error:
        problem = ": ".join(problem_of(error))
        raise UserError(f"{path} is not a sheet of ffkv ({problem}). Take it from a copy.") from error
    check_identities(path, found.identity, belongs_to or {})
    return found


PATTERNS = 8  # columns for patterns; more if an annotator wrote more
KEY_COLUMNS = ("sheet", "item", "row", "text")
CHANGE_COLUMNS = ("sheet", "item", "text", "before", "after", "related")
# The rows of a key that are not prefixes, and their texts.
ROWS = {
    "label": "What the marked texts have in common",
    "kind": "shallow or semantic",
    "done": "Write x at the right when you are done with this block",
}
ANSWERS = {"yes": "true", "true": "true", "no": "false", "false": "false", "unsure": "unsure"}
WORDS = {"true": "yes", "false": "no", "unsure": "unsure"}
MARKED, UNMARKED = ("x", "X", "1", "yes", "true", "TRUE", "✓"), ("", "0", "no", "false", "FALSE")
PATTERN = re.compile("pattern [1-9][0-9]{0,2}")
MOST_COLUMNS = 1000
LARGEST_CSV = 50 * 2**20  # bytes of a file


def write_csv(path: Path, sheet: Sheet, annotator: str, records: Mapping[str, Record]) -> None:
    """Writes a person's items as a CSV file, with what the person has said so far.

    `records`: the person's latest records, by item. Raises UserError if the sheet is not for this person.
    """
    order = order_of(sheet, annotator)
    if sheet.kind == "key":
        count = max([PATTERNS, *(len(record.patterns) for record in records.values())])
        rows: list[Sequence[str]] = [(*KEY_COLUMNS, *(f"pattern {number}" for number in range(1, count + 1)))]
        rows += [row for item in order for row in _key_rows(sheet, item, records.get(item), count)]
    else:
        rows = [CHANGE_COLUMNS]
        for item in order:
            shown, record = sheet.items[item], records.get(item)
            cells = with_marked_end(shown.text), *map(with_marked_ends, (shown.before, shown.after))
            rows.append((sheet.name, item, *cells, WORDS[record.related] if record and record.related else ""))
    file = io.StringIO()
    csv.writer(file, lineterminator="\r\n").writerows([[safe_text(cell) for cell in row] for row in rows])
    with atomic(path, summed=False) as temporary:
        temporary.write_bytes(file.getvalue().encode("utf-8-sig"))  # Excel takes a file without the mark for Latin-1


def order_of(sheet: Sheet, annotator: str) -> tuple[str, ...]:
    """Returns the items that a person judges, in order. Raises UserError if the sheet is not for this person."""
    if annotator not in sheet.orders:
        raise UserError(f"The sheet {sheet.name} has no annotator {annotator!r}. It is for: {', '.join(sheet.orders)}.")
    return sheet.orders[annotator]


def _key_rows(sheet: Sheet, item: str, record: Record | None, count: int) -> list[Sequence[str]]:
    patterns = record.patterns if record else ()
    marks = [
        (str(number), with_marked_end(text), *("x" if number in pattern.prefixes else "" for pattern in patterns))
        for number, text in enumerate(sheet.items[item].prefixes)
    ]
    rows = [
        ("label", ROWS["label"], *(pattern.label for pattern in patterns)),
        ("kind", ROWS["kind"], *(pattern.kind for pattern in patterns)),
        *marks,
        ("done", ROWS["done"], "x" if record and record.done else ""),
    ]
    return [[sheet.name, item, *row, *[""] * count][: len(KEY_COLUMNS) + count] for row in rows]


def with_marked_end(text: str) -> str:
    """Returns a text with a mark for each blank at its end, and for each line end. Nobody would see them."""
    core = text.rstrip(" ")
    return (core + BLANK * (len(text) - len(core))).replace("\n", "↵")


def with_marked_ends(token: str) -> str:
    """Returns a token with marks for the blanks at both ends."""
    core = token.lstrip(" ")
    return with_marked_end(BLANK * (len(token) - len(core)) + core)


def read_csv(path: Path, sheet: Sheet, annotator: str) -> list[Record]:
    """Reads what a person wrote into a CSV file of `write_csv`, which a spreadsheet saved, with any separator.

    Returns a record per item that the person wrote something about, in the order of the file. A key without its x in
    the row `done` is not done. Nothing that is written is left out. Raises UserError, which names the row, if the file
    cannot be read, has other columns with something in them, or says something that cannot be.
    """
    order = set(order_of(sheet, annotator))
    blocks: dict[str, list[tuple[int, dict[str, str]]]] = {}
    for line, row in _rows(path, KEY_COLUMNS if sheet.kind == "key" else CHANGE_COLUMNS):
        if row["sheet"] != sheet.name or row["item"] not in order:
            raise UserError(
                f"{path}, row {line}: item {row['item']!r} of sheet {row['sheet']!r} is not one that {annotator} judges"
                f" in the sheet {sheet.name}."
            )
        block = blocks.setdefault(row["item"], [])
        if len(block) == len(sheet.items[row["item"]].prefixes) + len(ROWS):
            raise UserError(f"{path}, row {line}: the block of item {row['item']} has more rows than the sheet.")
        block.append((line, row))
    read = _read_key if sheet.kind == "key" else _read_change
    found = []
    for item, rows in blocks.items():
        try:
            if (said := read(path, sheet.items[item], rows)) is not None:
                found.append(sheet.record(f"person:{annotator}", item, **said))
        except ValidationError as error:
            raise UserError(f"{path}, item {item} from row {rows[0][0]} on: {problem_of(error)[1]}.") from error
    return found


def _rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """Yields the rows of a file with the numbers that a spreadsheet gives them; empty ones are left out."""
    try:
        text = read_bytes(path, LARGEST_CSV, pipes=True).decode("utf-8-sig")
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8. Save it as “CSV UTF-8” in the spreadsheet.") from error
    except ValueError as error:
        raise UserError(f"{path} is not a sheet: {error}.") from error
    header = text.partition("\n")[0]
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=max(",;\t", key=header.count), strict=True)
    try:
        names = _names(path, next(reader, []), columns)
        for line, row in enumerate(reader, 2):
            cells = {place: cell for place, cell in enumerate(map(read_safe_text, row)) if cell.strip()}
            if lost := [place for place in cells if place >= len(names) or not names[place]]:
                own = ", ".join([*columns, *(["pattern 1", "pattern 2", "..."] if columns == KEY_COLUMNS else [])])
                raise UserError(
                    f"{path}, row {line}: something is written in column {lost[0] + 1}, whose name in the first row is"
                    f" none of a sheet: {own}. Give the column its name again, or empty it."
                )
            if cells:
                yield line, {name: cells.get(place, "") for place, name in enumerate(names) if name}
    except csv.Error as error:
        raise UserError(f"{path} is not a CSV file: {error}. Save it again from the spreadsheet.") from error


def _names(path: Path, header: list[str], columns: Sequence[str]) -> list[str]:
    """Returns the name of each column of a file, in small letters; "" of one that no sheet has.

    Raises UserError if a column is missing, or there twice.
    """
    if len(header) > MOST_COLUMNS:
        raise UserError(f"{path} has {len(header):,} columns, and a sheet has at most {MOST_COLUMNS}.")
    found = [" ".join(read_safe_text(name).split()).lower() for name in header]
    names = [name if name in columns or (columns == KEY_COLUMNS and PATTERN.fullmatch(name)) else "" for name in found]
    if lost := [name for name in columns if name not in names]:
        raise UserError(f"{path} lacks the column {lost[0]!r} in its first row. Keep the columns as they were written.")
    if twice := [name for name in names if name and names.count(name) > 1]:
        raise UserError(f"{path} has the column {twice[0]!r} twice in its first row. Keep one of them.")
    return names


def _read_key(path: Path, item: Item, rows: list[tuple[int, dict[str, str]]]) -> dict | None:
    names = sorted((name for name in rows[0][1] if PATTERN.fullmatch(name)), key=lambda name: int(name.split()[1]))
    own = (*ROWS, *map(str, range(len(item.prefixes))))
    by_row: dict[str, dict[str, str]] = {}
    for line, row in rows:
        name = row["row"].strip()
        if name not in own:
            raise UserError(f"{path}, row {line}: the block of this item has no row {row['row']!r}.")
        if name in by_row:
            raise UserError(f"{path}, row {line}: the row {name!r} of this item is there twice.")
        if name in ROWS and row["text"].strip() not in ("", ROWS[name]):
            raise UserError(f"{path}, row {line}: {row['text']!r} stands in the column text. Write it below a pattern.")
        by_row[name] = cells = {each: row[each].strip() for each in names}
        for cell in cells.values():
            if name == "kind" and cell.lower() not in ("", "shallow", "semantic"):
                raise UserError(f"{path}, row {line}: the kind is {cell!r}. Write shallow or semantic.")
            if name not in ("label", "kind") and cell not in MARKED + UNMARKED:
                raise UserError(f"{path}, row {line}: {cell!r} is neither an x nor empty.")
    if lost := [name for name in own if name not in by_row]:
        raise UserError(f"{path}, row {rows[0][0]}: this item lacks its row {lost[0]!r}. Add it, or delete the item.")
    patterns = []
    for name in names:
        label, kind = (by_row[row][name] for row in ("label", "kind"))
        marks = [int(row) for row, cells in by_row.items() if row not in ROWS and cells[name] in MARKED]
        if marks or label or kind:
            patterns.append(MarkedPattern(label=label, kind=kind.lower(), prefixes=marks))
    done = any(cell in MARKED for cell in by_row["done"].values())
    return {"patterns": patterns, "done": done} if patterns or done else None


def _read_change(path: Path, item: Item, rows: list[tuple[int, dict[str, str]]]) -> dict | None:
    (line, row), *more = rows
    if more:
        raise UserError(f"{path}, row {more[0][0]}: this item is there twice.")
    answer = row["related"].strip().lower()
    if answer and answer not in ANSWERS:
        raise UserError(f"{path}, row {line}: related is {row['related']!r}. Write yes, no or unsure.")
    return {"related": ANSWERS[answer]} if answer else None
