"""Reads tasks: files of texts with labels."""

import csv
import glob
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

from ffkv.base.doors import PREFIX, locate
from ffkv.base.errors import UserError
from ffkv.base.lookup import is_file
from ffkv.base.settings.messages import shown
from ffkv.branches.concepts.settings import FIELDS, Concept
from ffkv.corpus.raw_file import MAX_CHARACTERS, check_text, lines_of, open_unpacked, unreadable
from ffkv.corpus.rows import json_rows

KINDS = {"csv": ",", "tsv": "\t", "jsonl": "", "json": ""}  # ending: what separates fields
PACKED = (".gz", ".bz2", ".zst")
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

    Raises UserError if there is none.
    """
    if labels.startswith(PREFIX):
        package, _, wanted = labels.removeprefix(PREFIX).partition("/")
        folder = Path(locate(PREFIX + package))
        found = [
            path for path in sorted(folder.rglob("*")) if _kind(path) and _is_called(path.relative_to(folder), wanted)
        ]
    else:
        folder, pattern = (Path(), labels) if not Path(labels).is_absolute() else (Path("/"), labels.lstrip("/"))
        found = [Path(labels)] if is_file(labels) else [path for path in sorted(folder.glob(pattern)) if is_file(path)]
    if not found:
        raise UserError(
            f"No file of labels matches {shown(labels)}. Check `labels` (paths are relative to the working directory)."
        )
    if one := len(found) == 1 and not glob.has_magic(labels):
        _check_kind(found[0])
    made = {"" if one else _bare(path.name): str(path) for path in found}
    if len(made) < len(found):
        raise UserError(
            f"{shown(labels)} names several files that have the same name without its ending: rename one of them."
        )
    return made


def _is_called(path: Path, wanted: str) -> bool:
    """Tells whether a file of a package has a name, or fits a pattern: whole or below folders, with or without its endings."""
    return any(
        fnmatch(name, f"{above}{wanted}") for name in (path.as_posix(), _bare(path.as_posix())) for above in ("", "*/")
    )


def _bare(name: str) -> str:
    """Returns the name of a file without the endings of `KINDS` and `PACKED`."""
    bare = next((name.removesuffix(end) for end in PACKED if name.lower().endswith(end)), name)
    return bare.rpartition(".")[0] or bare


def _kind(path: Path) -> str:
    """Returns the ending of a file that can be read; "" of others."""
    name = path.name.lower()
    ending = next((name.removesuffix(end) for end in PACKED if name.endswith(end)), name).rpartition(".")[2]
    return ending if ending in KINDS else ""


def _check_kind(path: Path) -> None:
    if not _kind(path):
        raise UserError(
            f"{path}: labels are read from files whose names end in {', '.join(KINDS)}, each also with {', '.join(PACKED)}."
        )


def read_labels(path: str, settings: Concept) -> Labelled:
    """Reads a file of texts with labels.

    Raises:
        UserError: the file cannot be read or is malformed, with its line; it has no such field; it has not two labels; a document is in
            both halves.
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
    labels_of: dict[str, set[str]] = {}
    for _, text, label, *_ in read:
        labels_of.setdefault(text, set()).update([label] if label else [])
    counts = Counter(label for _, text, label, *_ in read if label and text.strip())
    positive = _positive(path, counts, settings.positive)
    kept, seen, dropped = [], set[str](), dict[str, list[str]]()
    for place, text, label, document, split in read:
        why = EMPTY if not label or not text.strip() else ""
        why = why or (CONTRADICTING if len({each == positive for each in labels_of[text]}) > 1 else "")
        why = why or (DOUBLED if text in seen else "")
        seen.add(text)
        if why:
            dropped.setdefault(why, []).append(place)
        else:
            kept.append((text, label == positive, document or text, split == "train"))
    texts, signs, documents, train = map(list, zip(*kept, strict=True)) if kept else ([], [], [], [])
    number = {name: place for place, name in enumerate(dict.fromkeys(documents))}
    of_halves = {(name, half) for name, half in zip(documents, train, strict=True)}
    if "split" in names and len(of_halves) > len(number):
        both = next(name for name in number if {(name, True), (name, False)} <= of_halves)
        raise UserError(
            f"{path}: the document {shown(both)} is in both splits. Texts of one document must be in one of them."
        )
    told = "; ".join(
        f"{len(of)} {why} ({', '.join(of[:LINES_NAMED])}{', ...' * (len(of) > LINES_NAMED)})"
        for why, of in dropped.items()
    )
    return Labelled(
        texts, signs, [number[each] for each in documents], train if "split" in names else None, positive, told
    )


def _positive(path: str, counts: Mapping[str, int], wanted: str) -> str:
    """Returns the positive label of a file, from how many texts have each. Raises Unusable if there are not two."""
    named = ", ".join(f"{shown(name)} ({counts[name]})" for name in sorted(counts)[:LINES_NAMED]) + ", ..." * (
        len(counts) > LINES_NAMED
    )
    if len(counts) < 2:
        raise Unusable(
            f"{path} has {f'one label alone: {named}' if counts else 'no text with a label'}. Texts of two labels are needed."
        )
    if wanted:
        if wanted not in counts:
            raise UserError(f"{path} has no label {shown(wanted)}. It has {named}. Set `positive` to one of them.")
        return wanted
    if len(counts) > 2:
        raise Unusable(
            f"{path} has {len(counts)} labels: {named}. Set `positive` to the one that is to be told from all others."
        )
    return max(counts)


def _written(value: Any) -> str:
    """Returns a value of a row as text. 1, 1.0 and true are labels of a person; a list is none."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, int | float) else value.strip("\r\n") if isinstance(value, str) else ""


def _names(path: str, row: Mapping[str, Any], fields: Mapping[str, str]) -> dict[str, str]:
    """Returns what the file calls its fields. Raises UserError if one is lacking that is needed."""
    found = {}
    for name, usual in FIELDS.items():
        its = next((each for each in ((fields[name],) if name in fields else usual) if each in row), None)
        if its is not None:
            found[name] = its
        elif name in ("text", "label") or name in fields:
            wanted = shown(fields[name]) if name in fields else " or ".join(map(shown, usual))
            raise Unusable(
                f"{path} has no field {wanted}. It has {', '.join(map(shown, row))}. Name the field in `fields`."
            )
    return found


def _rows(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields place and fields of each row."""
    kind = _kind(Path(path))
    try:
        with open_unpacked(path) as file:
            plain = check_text(path, file)
            if not KINDS[kind]:
                for place, row in json_rows(path, plain, numbers=True):
                    if not isinstance(row, dict):
                        raise UserError(f"{path}, {place}: contains {type(row).__name__}, not an object with fields.")
                    yield place, row
                return
            csv.field_size_limit(MAX_CHARACTERS)
            reader = csv.DictReader(_decoded(path, plain), strict=True, delimiter=KINDS[kind])
            start = 2
            try:
                for row in reader:
                    if None in row or None in row.values():
                        raise unreadable(
                            path, f"a row of other fields than the {len(reader.fieldnames or ())} of the header", start
                        )
                    yield f"line {start:,}", row
                    start = reader.line_num + 1
            except csv.Error as error:
                raise unreadable(path, f"{error} in the row that begins here", start) from error
    except (OSError, EOFError, zlib.error) as error:  # from the disk, or from a damaged archive
        raise unreadable(path, getattr(error, "strerror", None) or error) from error


def _decoded(path: str, file: Any) -> Iterator[str]:
    for number, line in enumerate(lines_of(path, file), 1):
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            reason = f"bytes that are not UTF-8 text ({error.reason} at byte {error.start}): convert it to UTF-8"
            raise unreadable(path, reason, number) from error
