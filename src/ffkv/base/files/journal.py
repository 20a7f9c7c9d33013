"""Journals: files of JSON lines that are appended to and never changed.

A kill or a full disk tears at most the last line. A folder that several people write has one journal per writer, host
and process. So nobody appends to a file of somebody else, and no lock is needed: also not on NFS, where locks and
appends of two hosts cannot be relied on.
"""

import hashlib
import json
import os
import re
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ffkv.base.errors import UserError
from ffkv.base.files.atomic import host_name, sync
from ffkv.base.files.bounded import LARGEST, parse_json
from ffkv.base.files.fault import unwritable
from ffkv.base.files.provenance import check_identities
from ffkv.base.lookup import exists, find, make_folder

_appending = threading.Lock()


class Journal(NamedTuple):
    """What a journal holds."""

    entries: list[tuple[int, Any]]  # number of the line, counted from 1, and what it says
    torn: list[int]  # numbers of the lines that are not whole


def now() -> str:
    """Returns the time in UTC, with microseconds: "2026-05-01T09:30:00.000000Z"."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class Stored(BaseModel):
    """What lies in a file."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Entry(Stored):
    """An entry of a folder that several people write."""

    identity: dict[str, str]  # hashes of what it is about, such as the model, by their names
    # when, in UTC, as `now` gives it
    time: str = Field(default_factory=now, pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$")


Form = TypeVar("Form", bound=Entry)


def append_entry(path: Path, entry: Mapping[str, Any], mode: int = 0o666) -> None:
    """Appends an entry. When this returns, it is on the disk. Several threads may append at once.

    Two processes must not append to the same file: on NFS the appends of two hosts may overwrite each other. `mode`:
    the rights of a new file. Raises UserError if the folder cannot be written, or the disk is full.
    """
    line = (json.dumps(entry, ensure_ascii=False) + "\n").encode(errors="surrogatepass")
    try:
        make_folder(path.parent)
        with _appending:
            new = not exists(path)
            descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, mode)
            try:
                size = os.fstat(descriptor).st_size
                if size and os.pread(descriptor, 1, size - 1) != b"\n":  # an earlier process was killed here
                    line = b"\n" + line
                while line:
                    line = line[os.write(descriptor, line) :]
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            if new:  # the name of the file must be on the disk, too
                sync(path.parent)
    except OSError as error:
        raise unwritable(path, path, error) or error from error


def read_journal(path: Path) -> Journal:
    """Reads a journal. One that was never written has no entries. Raises UserError if it cannot be read."""
    journal = Journal([], [])
    try:
        with path.open("rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(LARGEST + 1), b""), 1):
                if len(line) > LARGEST:
                    raise UserError(
                        f"{path}, line {number}, has more than {LARGEST:,} bytes. Remove it, or move the file away."
                    )
                if not line.strip(b" \0\n"):  # NFS may show zeros where a write of another host has not arrived
                    continue
                try:
                    journal.entries.append((number, parse_json(line)))
                except ValueError:  # also of bytes that are not text, and of what is nested too deeply
                    journal.torn.append(number)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}. Check its rights.") from error
    return journal


def append_shared(folder: Path, writer: str, entry: Entry, mode: int = 0o666) -> Path:
    """Appends an entry to the file of the writer, this host and this process, and returns the file. See `append_entry`."""
    path = folder / f"{name_in_files(writer)}.{host_name()}.{os.getpid()}.jsonl"
    append_entry(path, entry.model_dump(mode="json", exclude_none=True), mode)
    return path


def name_in_files(name: str, others: str = r"[^A-Za-z0-9-]+") -> str:
    """Returns a name in letters that every file system takes, with a sum that keeps similar names apart."""
    plain = re.sub(others, "_", name).strip(".")[:60]
    return f"{plain}.{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def shared_files(folder: Path, writer: str | None = None) -> list[Path]:
    """Returns the files of a writer on all hosts, sorted; None: of all writers."""
    return find(folder, "*.jsonl" if writer is None else f"{name_in_files(writer)}.*.jsonl")


def read_shared(
    folder: Path, form: type[Form], belongs_to: Mapping[str, Any] | None = None, writer: str | None = None
) -> tuple[list[tuple[str, Form]], list[str]]:
    """Reads what a writer appended on all hosts. A line that a kill or a full disk tore is left out and told.

    Args:
        folder: the folder of the journals.
        form: what an entry is.
        belongs_to: the identity that every entry must share; None: any.
        writer: None: all writers.
    Returns:
        Each entry behind its file and line, in the order of the times; and a sentence per line that was left out.
    Raises:
        UserError: a file cannot be read, an entry has another form, or it belongs to something else.
    """
    dated: list[tuple[str, str, Form]] = []
    torn: list[str] = []
    for path in shared_files(folder, writer):
        journal, time = read_journal(path), ""
        for line, given in journal.entries:
            place = f"{path}, line {line}"
            try:
                entry = form.model_validate(given)
            except ValidationError as error:
                where, problem = problem_of(error)
                message = f"{place}: {where or 'the entry'}: {problem}. Correct the line, or move the file away."
                raise UserError(message) from error
            check_identities(place, {**dict.fromkeys(belongs_to or {}, "none"), **entry.identity}, belongs_to or {})
            time = max(time, entry.time)  # within a file, the order of the lines counts, also if a clock went back
            dated.append((time, place, entry))
        torn += [f"{path}, line {line}, is not whole. It was left out; all other lines count." for line in journal.torn]
    return [(place, entry) for _, place, entry in sorted(dated, key=lambda each: each[0])], torn


def problem_of(error: ValidationError) -> tuple[str, str]:
    """Returns the place of the first problem, and the problem in words."""
    first = error.errors()[0]
    return ".".join(map(str, first["loc"])), first["msg"].removeprefix("Value error, ").rstrip(".")
