"""SHA-256 sums of each output, in `.<name>.sha256` beside it, as the `sha256sum` command writes them."""

import errno
import functools
import hashlib
import os
import re
import shlex
from pathlib import Path

from ffkv.base.errors import UserError
from ffkv.base.files.bounded import read_bytes
from ffkv.base.lookup import exists, find, is_dir, is_file, not_looked_up

LINE = re.compile(r"(?P<digest>[0-9a-f]{64})  (?P<name>.+)")
BLOCKS = ".blocks"  # folder `<name>.blocks`: files that `<name>.h5` reads from


class Damaged(UserError):
    """A file was read, and it differs from its checksum."""


def sum_path(output: Path) -> Path:
    """Returns the file with the sums of a file, or of all files of a folder."""
    return output.with_name(f".{output.name}.sha256")


def sums(place: Path, name: str) -> str:
    """Returns the sums of the file or folder at `place`, which is, or will be, called `name`."""
    entries = [entry for entry in find(place, "**/*") if is_file(entry)] if is_dir(place) else [place]
    return "".join(f"{_digest(entry)}  {Path(name, entry.relative_to(place))}\n" for entry in entries)


def output_of(path: Path) -> Path:
    """Returns the output that was written as a whole: the file itself, or the folder above it that has sums.

    Raises UserError if the system denies to look up sums beside a file that it lets one look up.
    """
    try:
        folders = [folder for folder in path.parents if folder.name and exists(sum_path(folder))]
        return path if not path.name or exists(sum_path(path)) or not folders else folders[0]
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG or _is_denied(path):  # no sums can be there, or reading says so
            return path
        raise not_looked_up(error) from error


def _is_denied(path: Path) -> bool:
    try:
        exists(path)
    except OSError:
        return True
    return False


def target_of(path: Path) -> Path:
    """Returns what a user deletes and Snakemake makes again if `path` is damaged: for a block, its reader."""
    return path.parent.with_suffix(".h5") if path.parent.suffix == BLOCKS else output_of(path)


def block_folder(path: Path) -> Path:
    """Returns the folder of the files that `path` reads from."""
    return path.with_suffix(BLOCKS)


def verify_sum(path: Path) -> None:
    """Compares a file, or all files of a folder, with their sums.

    One without sums passes: ffkv did not write it, or its writer was killed at the last moment. `ffkv check` names it.

    Raises:
        Damaged: a file is not what was written, or missing.
        UserError: a file, or the sums, cannot be read, or another program has the file open for writing; or the sums are
            damaged or incomplete.
    """
    output = output_of(path)
    if not output.name:  # "." and "/": nobody wrote these as one
        return
    written = read_sums(output)
    if written is None:
        return
    chosen = [file for file in written if path in (file, *file.parents)]
    files = (file for file in find(path, "**/*") if is_file(file)) if is_dir(path) else [path]
    # Systems make hidden files by themselves.
    unlisted = [file for file in files if file not in written and not file.name.startswith(".")]
    if unlisted:
        raise UserError(
            f"{sum_path(output)} has no checksum of {unlisted[0]}: it is incomplete, or this file is not from ffkv."
            f" {_again(target_of(output))}"
        )
    for file in chosen:
        try:
            entry = file.stat()
            digest = _digest_of(file, entry.st_ino, entry.st_size, entry.st_mtime_ns)
        except FileNotFoundError:
            digest = "missing"
        except OSError as error:
            raise UserError(f"{file} cannot be read: {error.strerror}. Check its rights and its disk.") from error
        if digest != written[file]:
            target = target_of(output)
            if _is_marked_open(file):
                raise open_elsewhere(file)
            raise Damaged(
                f"{file} is not what ffkv wrote: it was damaged or changed since. Delete"
                f" {'it' if file == target else target} and make it again: `snakemake {shlex.quote(str(target))}`, with"
                f" the options of your run (or, if the change is yours, delete {sum_path(output)})."
            )


def _is_marked_open(path: Path) -> bool:
    """Tells whether HDF5 has marked a file: a program has it open for writing, or was killed while it had."""
    if not is_file(path):
        return False
    with path.open("rb") as file:
        start = file.read(12)
    return start.startswith(b"\x89HDF\r\n\x1a\n\x03") and start[11:] in (b"\x01", b"\x05")


def read_sums(output: Path) -> dict[Path, str] | None:
    """Returns the sum of each file that was written as `output`; None if there are no sums.

    Raises UserError if the sums cannot be read, or are empty or damaged.
    """
    try:
        lines = os.fsdecode(read_bytes(sum_path(output))).splitlines()  # names may be no UTF-8
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(f"{sum_path(output)} cannot be read: {error.strerror}. Check its rights.") from error
    except ValueError:  # it is far too large
        lines = []
    entries = [LINE.fullmatch(line) for line in lines]
    if not entries or None in entries:
        raise UserError(
            f"{sum_path(output)} is empty or damaged, so ffkv cannot tell whether {output} is whole."
            f" {_again(target_of(output))}"
        )
    return {output.parent / entry["name"]: entry["digest"] for entry in entries if entry}


def open_elsewhere(path: Path) -> UserError:
    """Makes the message about a file that another program has open for writing."""
    return UserError(
        f"{path} is open for writing in another program, such as a notebook. Keep the file. Close it there, and open it"
        " there for reading only (mode 'r'). Then start the same command again. If that program was killed, `h5clear -s"
        f" {shlex.quote(str(path))}` of the HDF5 tools takes its mark away."
    )


def _again(target: Path) -> str:
    return (
        f"Make {target} again: `snakemake --force {shlex.quote(str(target))}`, with the options of your run (or, if you"
        f" know that it is whole, delete {sum_path(target)})."
    )


def forget_digests() -> None:
    """Lets the next comparison read every file again."""
    _digest_of.cache_clear()


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@functools.lru_cache(maxsize=1024)  # a file that is opened several times is read once
def _digest_of(path: Path, *state: int) -> str:
    return _digest(path)
