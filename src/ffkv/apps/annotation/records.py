"""What an annotator said about an item of a sheet: one JSON line per annotation, appended and never changed.

`annotations/<run>/records/` holds one file per annotator, host and process. So nobody appends to a file of somebody
else, and no lock is needed: also not on NFS, where locks and appends of two hosts cannot be relied on.
"""

import hashlib
import os
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from ffkv.base.errors import UserError
from ffkv.base.files.atomic import host_name
from ffkv.base.files.fault import as_path
from ffkv.base.files.journal import append_entry, read_journal
from ffkv.base.files.provenance import HASHES, check_identities

FOLDER = "records"
LONGEST_LABEL = 500  # characters
MOST_PATTERNS = 50  # of one item


def now() -> str:
    """Returns the time in UTC, with microseconds: "2026-05-01T09:30:00.000000Z"."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _prefixes(numbers: tuple[int, ...]) -> tuple[int, ...]:
    if any(number < 0 for number in numbers) or len(set(numbers)) < len(numbers):
        raise ValueError("must be different numbers from 0")
    return tuple(sorted(numbers))


def one_line(text: str) -> str:
    """Returns one line without characters that are not shown."""
    return " ".join("".join(one if one.isprintable() else " " for one in text).split())


class Stored(BaseModel):
    """What lies in a file of annotations."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class MarkedPattern(Stored):
    """A pattern that an annotator saw."""

    # the pattern in words; "" if nothing was written
    label: Annotated[str, Field(max_length=LONGEST_LABEL), AfterValidator(one_line)] = ""
    kind: Literal["shallow", "semantic", ""] = ""  # "" if the annotator has not chosen yet
    # the prefixes that have it, as numbers in the item from 0, ascending
    prefixes: Annotated[tuple[int, ...], AfterValidator(_prefixes)] = ()


class Record(Stored):
    """One annotation of one item. A later one of the same annotator and item replaces it."""

    # who says it: "person:anna" or "machine:<model>"
    annotator: Annotated[str, Field(pattern=r"^(person:|machine:)[^\s\x00-\x1f][^\x00-\x1f]{0,199}$")]
    sheet: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]  # name of the sheet
    item: Annotated[str, Field(pattern=r"^[a-z0-9]{6,32}$")]  # random id of the item in the sheet
    identity: dict[str, str]  # hashes of the run's model, tokenizer and train split, by their names
    kind: Literal["key", "change"]  # of a prediction by the last layer
    # of a key: the patterns that were seen; none if there is no pattern
    patterns: Annotated[tuple[MarkedPattern, ...], Field(max_length=MOST_PATTERNS)] = ()
    # of a change: whether both tokens are related; None for a key
    related: Literal["true", "false", "unsure"] | None = None
    # whether the annotator is done with the item. A record that is not done keeps what was written so far.
    done: bool = True
    # when, in UTC, as `now` gives it
    time: str = Field(default_factory=now, pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$")

    @model_validator(mode="after")
    def _kinds(self) -> "Record":
        if self.kind == "key" and self.related is not None:
            raise ValueError("related is of changes, not of keys")
        if self.kind == "change" and self.patterns:
            raise ValueError("patterns are of keys, not of changes")
        if self.done and (problem := self.missing):
            raise ValueError(problem)
        return self

    def repeats(self, before: "Record | None") -> bool:
        """Tells whether it says nothing else than an earlier record."""
        return before is not None and self == before.model_copy(update={"time": self.time})

    @property
    def missing(self) -> str:
        """What has to be said before the item is done; "" if nothing is missing."""
        if self.kind == "change" and self.related is None:
            return "Say whether the tokens are related."
        for number, pattern in enumerate(self.patterns, 1):
            if not pattern.kind and (pattern.label or pattern.prefixes):
                return f"Choose shallow or semantic for pattern {number}."
        return ""


class Records(NamedTuple):
    """What lies in a folder of annotations."""

    latest: list[Record]  # the last record of each annotator and item, ordered by sheet, item and annotator
    history: list[Record]  # all records, in the order of their times
    torn: list[str]  # a sentence per line that is not whole and was left out


def identity_of(attributes: Mapping[str, Any]) -> dict[str, str]:
    """Returns the hashes among the attributes of a run or a file, which records keep."""
    return {name: str(attributes[name]) for name in HASHES if name in attributes}


def append_record(folder: Path | str, record: Record) -> Path:
    """Appends a record, and returns its file: one per annotator, host and process. It is on the disk then.

    Raises UserError if the folder, `annotations/<run>`, cannot be written, or the disk is full.
    """
    path = Path(folder) / FOLDER / f"{name_in_files(record.annotator)}.{host_name()}.{os.getpid()}.jsonl"
    append_entry(path, record.model_dump(mode="json", exclude_none=True))
    return path


def name_in_files(name: str, others: str = r"[^A-Za-z0-9-]+") -> str:
    """Returns a name in letters that every file system takes, with a sum that keeps similar names apart."""
    plain = re.sub(others, "_", name).strip(".")[:60]
    return f"{plain}.{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def read_records(
    folder: Path | str, belongs_to: Mapping[str, Any] | None = None, annotator: str | None = None
) -> Records:
    """Reads the records of a run. A line that a kill or a full disk tore is left out and told.

    Args:
        folder: `annotations/<run>`.
        belongs_to: the identity that every record must share, as `Run.identity("train")`; None: any.
        annotator: only the records of this annotator; None: of all.
    Raises:
        UserError: a file cannot be read, a record has another form, or it belongs to another model, tokenizer or
            corpus.
    Examples:
        >>> ffkv.read_records("annotations/tiny").latest  # nobody has judged anything
        []
    """
    name = "*" if annotator is None else f"{name_in_files(annotator)}.*"
    dated: list[tuple[str, Record]] = []
    torn: list[str] = []
    for path in sorted((as_path(folder) / FOLDER).glob(f"{name}.jsonl")):
        journal, time = read_journal(path), ""
        for line, entry in journal.entries:
            place = f"{path}, line {line}"
            try:
                record = Record.model_validate(entry)
            except ValidationError as error:
                where, problem = problem_of(error)
                raise UserError(
                    f"{place}: {where or 'the record'}: {problem}. Correct the line, or move the file away."
                ) from error
            check_identities(place, {**dict.fromkeys(belongs_to or {}, "none"), **record.identity}, belongs_to or {})
            time = max(time, record.time)  # within a file, the order of the lines counts, also if a clock went back
            dated.append((time, record))
        torn += [
            f"{path}, line {line}, is not whole. It was left out; the annotator's other records are kept."
            for line in journal.torn
        ]
    history = [record for _, record in sorted(dated, key=lambda each: each[0])]
    latest = {(record.sheet, record.item, record.annotator): record for record in history}
    return Records([latest[key] for key in sorted(latest)], history, torn)


def problem_of(error: ValidationError) -> tuple[str, str]:
    """Returns the place of the first problem, and the problem in words."""
    first = error.errors()[0]
    return ".".join(map(str, first["loc"])), first["msg"].removeprefix("Value error, ").rstrip(".")
