"""SHA-256 sums of what a step wrote, beside it as `.<name>.sha256`: the format of the `sha256sum` command, a line a file."""

import functools
import hashlib
import shlex
from pathlib import Path

from ffkv.errors import UserError


def sum_path(output: Path) -> Path:
    """Where the sums of a file, or of all files of a folder, stand."""
    return output.with_name(f".{output.name}.sha256")


def is_sum(path: Path) -> bool:
    """Whether a file holds sums."""
    return path.name.startswith(".") and path.suffix == ".sha256"


def sums(place: Path, name: str) -> str:
    """What stands in the sums of the file or folder at `place`, which is, or will be, called `name`."""
    entries = sorted(entry for entry in place.rglob("*") if entry.is_file()) if place.is_dir() else [place]
    return "".join(f"{_digest(entry)}  {Path(name, entry.relative_to(place))}\n" for entry in entries)


def output_of(path: Path) -> Path:
    """What one step wrote as a whole: the file itself, or the folder above it that has sums."""
    try:
        folders = [folder for folder in path.parents if folder.name and sum_path(folder).exists()]
        return path if not path.name or sum_path(path).exists() or not folders else folders[0]
    except OSError:  # a name that no file can have, or a folder above that may not be entered: reading says so
        return path


def verify_sum(path: Path) -> None:
    """Compares a file, or all files of a folder, with the sums. Without sums it passes: it is not ours, or its writer was
    killed at the last moment.

    Raises:
        UserError: a file is not what was written, or is missing; or it, or the sums, cannot be read.
    """
    output = output_of(path)
    if not output.name:  # "." and "/": nobody wrote these as one
        return
    try:
        lines = sum_path(output).read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return
    except OSError as error:
        raise UserError(f"{sum_path(output)} cannot be read: {error.strerror}. Check its rights.") from error
    for line in lines:
        written, _, name = line.partition("  ")
        file = output.with_name(name) if name == output.name else output.parent / name
        if path in (file, *file.parents) and _digest_now(file) != written:
            raise UserError(
                f"{file} is not what ffkv wrote: it was damaged or changed since. Delete {'it' if file == output else output}"
                f" and make it again: `snakemake {shlex.quote(str(output))}`, with the options of your run"
                f" (or, if the change is yours, delete {sum_path(output)})."
            )


def _digest_now(path: Path) -> str:
    try:
        entry = path.stat()
        return _digest_of(path, entry.st_ino, entry.st_size, entry.st_mtime_ns)
    except FileNotFoundError:
        return "missing"
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}. Check its rights and its disk.") from error


@functools.lru_cache(maxsize=1024)
def _digest_of(path: Path, inode: int, size: int, modified: int) -> str:
    """The digest of a file as it is now; a file that is opened several times is read once."""
    return _digest(path)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
