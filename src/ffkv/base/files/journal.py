"""Journals: files of JSON lines that are appended to and never changed.

A kill or a full disk tears at most the last line.
"""

import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ffkv.base.errors import UserError
from ffkv.base.files.atomic import sync
from ffkv.base.files.bounded import LARGEST, parse_json
from ffkv.base.files.fault import unwritable

_appending = threading.Lock()


class Journal(NamedTuple):
    """What a journal holds."""

    entries: list[tuple[int, Any]]  # number of the line, counted from 1, and what it says
    torn: list[int]  # numbers of the lines that are not whole


def append_entry(path: Path, entry: Mapping[str, Any]) -> None:
    """Appends an entry. When this returns, it is on the disk. Several threads may append at once.

    Two processes must not append to the same file: on NFS the appends of two hosts may overwrite each other. Raises
    UserError if the folder cannot be written, or the disk is full.
    """
    line = (json.dumps(entry, ensure_ascii=False) + "\n").encode(errors="surrogatepass")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _appending:
            new = not path.exists()
            descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
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
