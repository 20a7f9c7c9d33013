"""SHA-256 sums of files, beside them as `.<name>.sha256`, in the format of the `sha256sum` command."""

import functools
import hashlib
from pathlib import Path

from ffkv.errors import UserError


def sum_path(path: Path) -> Path:
    """Where the sum of a file stands."""
    return path.with_name(f".{path.name}.sha256")


def is_sum(path: Path) -> bool:
    """Whether a file is a sum of another one."""
    return path.name.startswith(".") and path.suffix == ".sha256"


def sum_line(path: Path, name: str) -> str:
    """What stands in the sum of the file at `path`, which is, or will be, called `name`."""
    return f"{_digest(path)}  {name}\n"


def verify_sum(path: Path) -> None:
    """Compares a file with its sum. A file without one passes: it is not ours, or its writer was killed at the last moment.

    Raises:
        UserError: the file is not what was written; or it, or its sum, cannot be read.
    """
    try:
        written = sum_path(path).read_bytes()
    except FileNotFoundError:
        return
    except OSError as error:
        raise UserError(f"{sum_path(path)} cannot be read: {error.strerror}. Check its rights.") from error
    try:
        entry = path.stat()
        digest = _digest_of(path, entry.st_ino, entry.st_size, entry.st_mtime_ns)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}. Check its rights and its disk.") from error
    if written.split(b" ")[0] != digest.encode():
        raise UserError(
            f"{path} is not what ffkv wrote: it was damaged or changed since. Delete it and run the workflow again"
            f" (or, if the change is yours, delete {sum_path(path)})."
        )


def verify_folder(folder: Path) -> None:
    """`verify_sum` of every file below a folder that has a sum."""
    for entry in sorted(folder.rglob(".*.sha256")):
        path = entry.with_name(entry.name.removeprefix(".").removesuffix(".sha256"))
        if path.is_file():
            verify_sum(path)


@functools.lru_cache(maxsize=1024)
def _digest_of(path: Path, inode: int, size: int, modified: int) -> str:
    """The digest of a file as it is now; a file that is opened several times is read once."""
    return _digest(path)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
