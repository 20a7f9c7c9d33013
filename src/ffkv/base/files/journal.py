"""Journals: files of JSON lines that are appended to and never changed.

A kill or a full disk tears at most the last line. A folder that several people write has one journal per writer, host and
process. So nobody appends to a file of somebody else, and no lock is needed: also not on NFS, where locks and appends of two
hosts cannot be relied on. An entry comes behind all that its process has read, whatever the clocks of two hosts say.
"""

import hashlib
import json
import os
import re
import secrets
import threading
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from ffkv.base.errors import UserError
from ffkv.base.fault import unwritable
from ffkv.base.files.atomic import host_name, sync
from ffkv.base.files.stored import check_identities
from ffkv.base.lookup import LARGEST, exists, find, make_folder, open_file, parse_json

_appending = threading.RLock()
_newest: dict[Path, str] = {}  # by folder of journals: the latest time that this process has read there, or written
OWN = secrets.token_hex(4)  # nobody can guess the name of this process' journals, and put a link in their place
TIME = "%Y-%m-%dT%H:%M:%S.%fZ"


class Journal(NamedTuple):
    """What a journal holds."""

    entries: list[tuple[int, Any]]  # number of the line, counted from 1, and what it says
    torn: list[int]  # numbers of the lines that are not whole


def now() -> str:
    """Returns the time in UTC, with microseconds: "2026-05-01T09:30:00.000000Z"."""
    return datetime.now(UTC).strftime(TIME)


class Stored(BaseModel):
    """What lies in a file."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def _behind(time: str) -> str:
    """Returns the time that comes next. Raises ValueError if it is no time, or none can come behind it."""
    try:
        return (datetime.strptime(time, TIME) + timedelta(microseconds=1)).strftime(TIME)
    except OverflowError as error:
        raise ValueError(f"no time comes behind {time!r}") from error


class Entry(Stored):
    """An entry of a folder that several people write."""

    identity: dict[str, str]  # hashes of what it is about, such as the model, by their names
    # when, in UTC, as `now` gives it
    time: Annotated[str, AfterValidator(lambda time: _behind(time) and time)] = Field(
        default_factory=now, pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$"
    )


class _Dated(Entry):
    """An entry of any form."""

    model_config = ConfigDict(extra="ignore")


Form = TypeVar("Form", bound=Entry)


def append_entry(path: Path, entry: Mapping[str, Any], mode: int = 0o666) -> None:
    """Appends an entry. When this returns, it is on the disk. Several threads may append at once.

    Two processes must not append to the same file: on NFS the appends of two hosts may overwrite each other. `mode`:
    the rights of a new file. Raises UserError if the folder cannot be written, the disk is full, or the file is a link.
    """
    line = (json.dumps(entry, ensure_ascii=False) + "\n").encode(errors="surrogatepass")
    try:
        make_folder(path.parent)
        with _appending:
            new = not exists(path)
            made = os.O_CREAT | os.O_EXCL if new else 0
            descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | made, mode)
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
        with open_file(path) as file:
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
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {getattr(error, 'strerror', error)}. Check its rights.") from error
    return journal


def append_shared(folder: Path, writer: str, entry: Entry, mode: int = 0o666) -> Path:
    """Appends an entry to the file of the writer, this host and this process, and returns the file. See `append_entry`.

    Its time is later than all that this process has read in the folder; the first entry of a process reads the folder.
    """
    path = folder / f"{name_in_files(writer)}.{host_name()}.{os.getpid()}.{OWN}.jsonl"
    with _appending:
        if folder not in _newest:
            read_shared(folder, _Dated)
        time = max(entry.time, _behind(_newest[folder]) if _newest[folder] else "")
        append_entry(path, entry.model_copy(update={"time": time}).model_dump(mode="json", exclude_none=True), mode)
        _newest[folder] = time
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

    `form`: what an entry is. `belongs_to`: the identity that every entry must share; None: any. `writer`: None: all writers.
    Returns each entry behind its file and line, in the order of the times; and a sentence per line that was left out. Raises
    UserError if a file cannot be read, an entry has another form, or it belongs to something else.
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
    _newest[folder] = max([_newest.get(folder, ""), *(time for time, _, _ in dated)])
    return [(place, entry) for _, place, entry in sorted(dated, key=lambda each: each[0])], torn


def problem_of(error: ValidationError) -> tuple[str, str]:
    """Returns the place of the first problem, and the problem in words."""
    first = error.errors()[0]
    return ".".join(map(str, first["loc"])), first["msg"].removeprefix("Value error, ").rstrip(".")
