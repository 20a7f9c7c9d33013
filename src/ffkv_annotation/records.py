"""What an annotator said about an item of a sheet: one JSON line per annotation, appended and never changed.

They lie in `annotations/<run>/records/`, in a journal per annotator, host and process.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, Field, model_validator

from ffkv.base.files.journal import Entry, Stored, append_shared, read_shared
from ffkv.base.lookup import as_path

FOLDER = "records"
LONGEST_LABEL = 500  # characters
MOST_PATTERNS = 50  # of one item


def _prefixes(numbers: tuple[int, ...]) -> tuple[int, ...]:
    if any(number < 0 for number in numbers) or len(set(numbers)) < len(numbers):
        raise ValueError("must be different numbers from 0")
    return tuple(sorted(numbers))


def printable_line(text: str) -> str:
    """Returns one line without characters that are not shown."""
    return " ".join("".join(one if one.isprintable() else " " for one in text).split())


class MarkedPattern(Stored):
    """A pattern that an annotator saw."""

    # the pattern in words; "" if nothing was written
    label: Annotated[str, Field(max_length=LONGEST_LABEL), AfterValidator(printable_line)] = ""
    kind: Literal["shallow", "semantic", ""] = ""  # "" if the annotator has not chosen yet
    # the prefixes that have it, as numbers in the item from 0, ascending
    prefixes: Annotated[tuple[int, ...], AfterValidator(_prefixes)] = ()


class Record(Entry):
    """One annotation of one item. A later one of the same annotator and item replaces it.

    Its identity is that of the run's model, tokenizer and train split.
    """

    # who says it: "person:anna" or "machine:<model>"
    annotator: Annotated[str, Field(pattern=r"^(person:|machine:)[^\s\x00-\x1f][^\x00-\x1f]{0,199}$")]
    sheet: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]  # name of the sheet
    item: Annotated[str, Field(pattern=r"^[a-z0-9]{6,32}$")]  # random id of the item in the sheet
    kind: Literal["key", "change"]  # of a prediction by the last layer
    # of a key: the patterns that were seen; none if there is no pattern
    patterns: Annotated[tuple[MarkedPattern, ...], Field(max_length=MOST_PATTERNS)] = ()
    # of a change: whether both tokens are related; None for a key
    related: Literal["true", "false", "unsure"] | None = None
    # whether the annotator is done with the item. A record that is not done keeps what was written so far.
    done: bool = True

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


def append_record(folder: Path | str, record: Record) -> Path:
    """Appends a record, and returns its file: one per annotator, host and process. It is on the disk then.

    Raises UserError if the folder, `annotations/<run>`, cannot be written, or the disk is full.
    """
    return append_shared(Path(folder) / FOLDER, record.annotator, record)


def read_records(
    folder: Path | str, belongs_to: Mapping[str, Any] | None = None, annotator: str | None = None
) -> Records:
    """Reads the records of a run. A line that a kill or a full disk tore is left out and told.

    Args:
        folder: `annotations/<run>`.
        belongs_to: the identity that every record must share, as `Run.identity("train")`; None: any.
        annotator: only the records of this annotator; None: of all.
    Raises:
        UserError: a file cannot be read, a record has another form, or it belongs to another model, tokenizer or corpus.
    Examples:
        >>> ffkv_annotation.read_records("annotations/tiny").latest  # nobody has judged anything
        []
    """
    found, torn = read_shared(as_path(folder) / FOLDER, Record, belongs_to, annotator)
    history = [record for _, record in found]
    latest = {(record.sheet, record.item, record.annotator): record for record in history}
    return Records([latest[key] for key in sorted(latest)], history, torn)
