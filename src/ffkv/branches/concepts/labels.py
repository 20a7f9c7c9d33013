"""Reads tasks: files of texts with labels."""

import glob
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

from ffkv.base.doors import PREFIX, locate
from ffkv.base.errors import UserError
from ffkv.base.lookup import is_file
from ffkv.base.settings.messages import shown
from ffkv.branches.concepts.settings import FIELDS, Concept
from ffkv.corpus.raw_file import check_text, lines_of, open_unpacked, unreadable
from ffkv.corpus.rows import csv_rows, json_rows

SEPARATORS = {"csv": ",", "tsv": "\t", "jsonl": "", "json": ""}  # of fields, by the ending of a file's name
PACKED = ("gz", "bz2", "zst")
ENDING = re.compile(rf"\.({'|'.join(SEPARATORS)})(\.({'|'.join(PACKED)}))?$", re.IGNORECASE)
SPLITS = ("train", "test")
DOUBLED, CONTRADICTING, EMPTY = (
    "texts that are doubled",
    "texts that have both labels",
    "texts or labels that are empty",
)
LINES_NAMED = 5  # of each reason


class Unusable(UserError):
    """A file that can be read and is no task of two labels."""


class Labelled(NamedTuple):
    """A task: texts with two labels."""

    texts: list[str]
    positive: list[bool]  # whether each text has the positive label [text]
    document: list[int]  # the number of the document of each text [text]
    train: list[bool] | None  # whether each text is for training, if the file says it [text]
    label: str  # the positive label
    left_out: str  # how many lines are not used and why, with the first ones; "" without any


def task_files(labels: str) -> dict[str, str]:
    """Returns the files that the setting `labels` names, by the names of the tasks; the name is "" if it names one file.

    Raises UserError if there is none, one cannot be read as labels, or two have one name.
    """
    if labels.startswith(PREFIX):
        package, _, wanted = labels.removeprefix(PREFIX).partition("/")
        folder = Path(locate(PREFIX + package))
        paths = {
            path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if ENDING.search(path.name)
        }
        patterns = wanted, f"*/{wanted}"  # the file is below some folder of the package, whatever its ending
        found = [
            path for name, path in paths.items() if any(fnmatch(n, p) for n in (name, _bare(name)) for p in patterns)
        ]
    else:
        top = Path("/") if labels.startswith("/") else Path()
        found = [Path(labels)] if is_file(labels) else [*filter(is_file, sorted(top.glob(labels.lstrip("/"))))]
    if not found:
        where = "Check `labels` (paths are relative to the working directory)."
        raise UserError(f"No file of labels matches {shown(labels)}. {where}")
    if other := next((path for path in found if not ENDING.search(path.name)), None):
        endings = f"{', '.join(SEPARATORS)}, each also with {', '.join(PACKED)}"
        raise UserError(f"{other}: labels are read from files whose names end in {endings}.")
    one = len(found) == 1 and not glob.has_magic(labels)
    made = {"" if one else _bare(path.name): str(path) for path in found}
    if len(made) < len(found):
        raise UserError(f"{shown(labels)} names files whose names differ in their endings alone: rename one of them.")
    return made


def label_files(settings: Concept, read: bool = False) -> list[str]:
    """Returns the files with the labels of a concept, none of one with rules.

    Raises UserError as `task_files`; with `read` if its only file, or none of them, is a task, or as `find_rules`.
    """
    if read and settings.rules == "speech":
        from ffkv.corpus.rules import find_rules  # needs spaCy, which takes its time

        find_rules(settings.rules, settings.pipeline)
    problems, files = list[str](), [*task_files(settings.labels).values()] if settings.labels else []
    for path in files if read else ():
        try:
            read_labels(path, settings)
        except Unusable as error:
            problems.append(str(error))
    if files and len(problems) == len(files):
        raise UserError(problems[0])
    return files


def _bare(name: str) -> str:
    return ENDING.sub("", name)


def read_labels(path: str, settings: Concept) -> Labelled:
    """Reads a file of texts with labels.

    Raises:
        UserError: the file cannot be read or is malformed, with its line; it lacks a field; it has not two labels; a document is in both halves.
    """
    names: dict[str, str] = {}
    read: list[tuple[str, str, str, str, str]] = []  # place, text, label, document, split
    for place, row in _rows(path):
        if not names:
            names = _names(path, row, settings.fields)
        text, label, document, split = (_written(row.get(names[name])) if name in names else "" for name in FIELDS)
        if names.get("split") and split not in SPLITS:
            raise UserError(f"{path}, {place}: the split is {shown(split)}. It must be train or test.")
        read.append((place, text, label, document, split))
    counts = Counter(label for _, text, label, *_ in read if label and text.strip())
    positive = _positive(path, counts, settings.positive)
    signs_of: dict[str, set[bool]] = {}
    for _, text, label, *_ in read:
        signs_of.setdefault(text, set()).update([label == positive] if label else [])
    kept: dict[str, tuple[bool, str, bool]] = {}  # text: label, document, split
    dropped: dict[str, list[str]] = {EMPTY: [], CONTRADICTING: [], DOUBLED: []}
    for place, text, label, document, split in read:
        if not label or not text.strip():
            dropped[EMPTY].append(place)
        elif len(signs_of[text]) > 1:
            dropped[CONTRADICTING].append(place)
        elif text in kept:
            dropped[DOUBLED].append(place)
        else:
            kept[text] = label == positive, document or text, split == "train"
    if not kept:
        raise Unusable(f"{path} has no text with one label alone: each has both.")
    number = {name: place for place, name in enumerate(dict.fromkeys(document for _, document, _ in kept.values()))}
    train: dict[str, bool] = {}
    for _, document, half in kept.values():
        if "split" in names and train.setdefault(document, half) != half:
            rule = "Texts of one document must be in one of them."
            raise UserError(f"{path}: the document {shown(document)} is in both splits. {rule}")
    told = "; ".join(f"{len(of)} {why} ({_some(of)})" for why, of in dropped.items() if of)
    signs, documents, halves = (list(each) for each in zip(*kept.values(), strict=True))
    return Labelled(
        [*kept], signs, [number[each] for each in documents], halves if "split" in names else None, positive, told
    )


def _some(items: Sequence[str]) -> str:
    return ", ".join([*items[:LINES_NAMED], *["..."] * (len(items) > LINES_NAMED)])


def _positive(path: str, counts: Mapping[str, int], wanted: str) -> str:
    """Returns the positive label of a file, from how many texts have each. Raises Unusable if there are not two."""
    named = _some([f"{shown(name)} ({counts[name]})" for name in sorted(counts)])
    if not counts:
        raise Unusable(f"{path} has no text with a label. Texts of two labels are needed.")
    if len(counts) == 1:
        raise Unusable(f"{path} has one label alone: {named}. Texts of two labels are needed.")
    if wanted and wanted not in counts:
        raise UserError(f"{path} has no label {shown(wanted)}. It has {named}. Set `positive` to one of them.")
    if not wanted and len(counts) > 2:
        remedy = "Set `positive` to the one that is to be told from all others."
        raise Unusable(f"{path} has {len(counts)} labels: {named}. {remedy}")
    return wanted or max(counts)


def _written(value: Any) -> str:
    """Returns a value of a row as text. 1, 1.0 and true are labels of a person; a list is none."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.15g}" if isinstance(value, int | float) else value.strip("\r\n") if isinstance(value, str) else ""


def _names(path: str, row: Mapping[str, Any], fields: Mapping[str, str]) -> dict[str, str]:
    """Returns what the file calls its fields. Raises UserError if one is lacking that is needed."""
    theirs = {name: (fields[name],) if name in fields else usual for name, usual in FIELDS.items()}
    found = {name: its for name, names in theirs.items() for its in names[::-1] if its in row}
    if lacking := [name for name in FIELDS if name not in found and (name in ("text", "label") or name in fields)]:
        wanted, there = (" or ".join(map(shown, theirs[lacking[0]])), ", ".join(map(shown, row)))
        raise Unusable(f"{path} has no field {wanted}. It has {there}. Name the field in `fields`.")
    return found


def _rows(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields place and fields of each row."""
    separator = SEPARATORS[ENDING.search(path)[1].lower()]  # type: ignore[index]
    with open_unpacked(path) as file:
        plain = check_text(path, file)
        if separator:
            for start, header, row in csv_rows(path, _decoded(path, plain), separator):
                yield from [(f"line {start:,}", dict(zip(header, row, strict=True)))] if row else []
            return
        for place, fields in json_rows(path, plain, numbers=True):
            if not isinstance(fields, dict):
                raise UserError(f"{path}, {place}: contains {type(fields).__name__}, not an object with fields.")
            yield place, fields


def _decoded(path: str, file: Any) -> Iterator[str]:
    for number, line in enumerate(lines_of(path, file), 1):
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            reason = f"bytes that are not UTF-8 text ({error.reason} at byte {error.start}): convert it to UTF-8"
            raise unreadable(path, reason, number) from error
