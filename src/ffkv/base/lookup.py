"""Whether a file or a folder is there. What the system does not let one look up is an error, and not missing.

`Path.exists`, `Path.is_file`, `Path.is_dir`, and `Path.mkdir` with them, make no such difference since Python 3.14, and
`Path.glob` never did.
"""

import os
import stat
from errno import EBADF, ELOOP, ENOENT, ENOTDIR
from fnmatch import fnmatchcase
from pathlib import Path

from ffkv.base.errors import UserError

MISSING = (ENOENT, ENOTDIR, EBADF, ELOOP)


def exists(path: Path | str) -> bool:
    """Tells whether a path leads to a file, a folder, or something else.

    Raises:
        OSError: the path cannot be looked up.
    """
    return _mode(path) != 0


def is_file(path: Path | str) -> bool:
    """Tells whether a path leads to a file. Raises as `exists`."""
    return stat.S_ISREG(_mode(path))


def is_dir(path: Path | str) -> bool:
    """Tells whether a path leads to a folder. Raises as `exists`."""
    return stat.S_ISDIR(_mode(path))


def find(folder: Path, pattern: str) -> list[Path]:
    """Lists what lies below a folder and fits a pattern, sorted; nothing if there is no such folder.

    pattern: such as "*/*.csv" or "**/*". `**` stands for folders in each other, and enters no links.

    Raises:
        UserError: a folder cannot be looked up or listed.
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
    """Makes a folder, and those above it, unless it is there.

    Raises:
        OSError: it cannot be made, or cannot be looked up.
    """
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
