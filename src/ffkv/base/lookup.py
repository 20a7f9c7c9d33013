"""Looks at files of anybody: whether one is there, what it holds, and whether it stays.

What the system does not let one look up is an error, and not missing. `Path.exists`, `Path.is_file`, `Path.is_dir`, and
`Path.mkdir` with them, make no such difference since Python 3.14, and `Path.glob` never did. Libraries take what may not
be looked up for a file that is not there, and go on without it: `looks_told` notices that.

Small files and JSON are read up to a size and a depth: whatever lies there, memory and time have a limit.
"""

import contextlib
import errno
import json
import os
import stat
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from io import BufferedReader
from pathlib import Path
from typing import Any

from ffkv.base.errors import UserError

MISSING = (errno.ENOENT, errno.ENOTDIR, errno.EBADF, errno.ELOOP)
# What a machine denies for a while or for ever, whatever ffkv does.
DENIED = (
    *(errno.EIO, errno.ENXIO, errno.ENODEV, errno.EBUSY, errno.ESTALE, errno.ENOLCK),
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.ENOMEM),
)
LARGEST = 2**24  # bytes of a file that is read as a whole
_one_at_a_time = threading.RLock()


def as_path(given: Any) -> Path:
    """Returns a path that a person names. Raises UserError if it is none."""
    if not isinstance(given, str | os.PathLike) or "\0" in os.fspath(given):
        raise UserError(f"{given!r} is no path. Write that of a file or a folder, such as 'results/demo'.")
    return Path(given)


def exists(path: Path | str) -> bool:
    """Tells whether a path leads to a file, a folder, or something else. Raises OSError if it cannot be looked up."""
    return _mode(path) != 0


def is_file(path: Path | str) -> bool:
    """Tells whether a path leads to a file. Raises as `exists`."""
    return stat.S_ISREG(_mode(path))


def is_dir(path: Path | str) -> bool:
    """Tells whether a path leads to a folder. Raises as `exists`."""
    return stat.S_ISDIR(_mode(path))


def find(folder: Path, pattern: str) -> list[Path]:
    """Lists what lies below a folder and fits a pattern, sorted; nothing if there is no such folder.

    pattern: such as "*/*.csv" or "**/*". `**` stands for folders in each other, and enters no links. Raises UserError if a
    folder cannot be looked up or listed.
    """
    found = [folder]
    try:
        for part in pattern.split("/"):
            folders = [each for each in found if is_dir(each)]
            if part == "**":
                found = [Path(inner) for each in folders for inner, _, _ in os.walk(each, onerror=refuse)]
            else:
                found = [entry for each in folders for entry in each.iterdir() if fnmatchcase(entry.name, part)]
    except OSError as error:
        raise not_looked_up(error) from error
    return sorted(found)


def not_looked_up(error: OSError) -> UserError:
    """Makes the message about a path that the system denied to look up."""
    return UserError(
        f"{os.fsdecode(error.filename)} cannot be looked up: {error.strerror}. Check the rights and the disks, then start the"
        " same command again."
    )


def refuse(error: OSError) -> None:
    """Raises what `os.walk` passes over, as its `onerror`."""
    raise error


def make_folder(path: Path) -> None:
    """Makes a folder, and those above it, unless it is there. Raises OSError if it cannot be made, or cannot be looked up."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        if not is_dir(path):
            raise


def _mode(path: Path | str) -> int:
    """What a path leads to, as `stat.S_ISREG` and others take it. 0: nothing is there, or no path has such a name."""
    try:
        return Path(path).stat().st_mode
    except OSError as error:
        if error.errno not in MISSING:
            raise
    except ValueError:  # a byte of zero
        pass
    return 0


def open_file(path: Path | str) -> BufferedReader:
    """Opens a file for reading, and waits for nobody. Raises ValueError if it is a pipe, a device or a socket; OSError as `open`."""
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise ValueError("it is a pipe or a device, and not a file")
    return file


def strange_entries(folder: Path) -> Iterator[tuple[Path, str]]:
    """Yields what lies below a folder and is neither a file nor a folder nor a link that stays inside: its path, and what it is.

    Raises OSError if a folder cannot be listed. A folder that is not there has nothing.
    """
    inside, todo = Path(os.path.realpath(folder)), [folder] if is_dir(folder) else []
    while todo:
        with os.scandir(todo.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    todo.append(Path(entry))
                elif entry.is_symlink():
                    if not Path(os.path.realpath(entry)).is_relative_to(inside):
                        yield Path(entry), f"is a link out of {folder}, to {os.path.realpath(entry)}"
                elif not entry.is_file(follow_symlinks=False):
                    yield Path(entry), "is a pipe, a device or a socket, and not a file"


def refuse_strange_entries(folder: Path) -> None:
    """Raises UserError if a folder has `strange_entries`, or a folder in it cannot be listed."""
    try:
        for path, what in strange_entries(folder):
            raise UserError(f"{path} {what}. It is not read. Remove it, or put the file itself in its place.")
    except OSError as error:
        raise not_looked_up(error) from error


def read_bytes(path: Path | str, largest: int = LARGEST, pipes: bool = False) -> bytes:
    """Reads a file, also one without end. `pipes`: a person names it, perhaps as <(...), so that it may be a pipe.

    Raises ValueError if it has more than `largest` bytes, and as `open_file`; OSError as `open`.
    """
    with Path(path).open("rb") if pipes else open_file(path) as file:
        content = file.read(largest + 1)
    if len(content) > largest:
        raise ValueError(f"it has more than {largest:,} bytes")
    return content


def read_json(path: Path | str, largest: int = LARGEST, **options: Any) -> Any:
    """Reads a file of JSON; `options` as for `parse_json`. Raises ValueError as `read_bytes` and `parse_json`; OSError as `open`."""
    return parse_json(read_bytes(path, largest), **options)


def parse_json(text: str | bytes, **options: Any) -> Any:
    """Parses JSON. `options`: those of `json.loads`; its `object_pairs_hook` may take a name twice.

    Raises ValueError if it is no JSON, is nested too deeply, or a number has more digits than Python reads; `OccursTwice`.
    """
    try:
        return json.loads(text, **{"object_pairs_hook": _unique, **options})
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


class OccursTwice(ValueError):
    """An object of JSON has a key twice, of which `json.loads` would drop one."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        name, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise OccursTwice(f"the key {name[:80]!r} occurs twice")
    return found


@contextlib.contextmanager
def looks_told(*folders: Path | str) -> Iterator[None]:
    """Notes which paths the system denies to look up within, and names the first one instead of whatever followed from it.

    Libraries look by `os.stat`, and take a denied look for a file that is not there: nothing that they return tells it. So
    `os.stat` notes it meanwhile, in all threads, and returns and raises what it always does. One thread at a time does this.

    `folders`: only what is in them, and they themselves, count. What is no folder counts nothing. Raises UserError if a path
    could not be looked up, by `os.stat`, as `os.path.exists` and `Path.is_file` do it.
    """
    places, denied = [Path(folder).absolute() for folder in folders if str(folder)], []
    with _one_at_a_time:
        original = os.stat

        def stat(path: Any, *given: Any, **more: Any) -> os.stat_result:
            try:
                return original(path, *given, **more)
            except OSError as error:
                if error.errno in DENIED and not isinstance(path, int):
                    whole = Path(os.fsdecode(path)).absolute()
                    if any(place in (whole, *whole.parents) for place in places):
                        denied.append(error)
                raise

        os.stat = stat
        try:
            yield
        except Exception as error:
            if denied:
                raise not_looked_up(denied[0]) from error
            raise
        finally:
            os.stat = original
    if denied:
        raise not_looked_up(denied[0])


def save_pretrained(folder: Path | str, *parts: Any) -> None:
    """Lets models, tokenizers and configs of transformers write themselves into a folder.

    They call a folder that they may not look up one that exists already.
    """
    with looks_told(folder):
        for part in parts:
            part.save_pretrained(folder)


@contextlib.contextmanager
def unchanged(paths: Iterable[Path | str]) -> Iterator[None]:
    """Makes sure that files do not change inside the `with` statement: their sizes, times and inodes.

    Raises UserError if a file changed, or is gone, or the system denies to look it up.
    """
    before = {Path(path): _state(Path(path)) for path in paths}
    yield
    for path, state in before.items():
        if _state(path) != state:
            raise UserError(
                f"{path} changed while it was read. Nothing is made from it. Start the same command again when nobody"
                " writes that file any more."
            )


def files_in(folder: Path | str) -> list[Path]:
    """Returns the files of a folder, sorted; none if there is no such folder. Raises OSError if it may not be read."""
    folder = Path(folder)
    return sorted(path for path in folder.iterdir() if is_file(path)) if is_dir(folder) else []


def _state(path: Path) -> tuple[int, int, int] | None:
    try:
        entry = path.stat()
    except (FileNotFoundError, NotADirectoryError):  # whoever reads it says more
        return None
    except OSError as error:
        raise not_looked_up(error) from error
    return entry.st_size, entry.st_mtime_ns, entry.st_ino
