"""A file that ffkv wrote: its SHA-256 sum, what it says of itself, and what is wrong if it cannot be read.

The sum is in `.<name>.sha256` beside it, as the `sha256sum` command writes it. A file says to which model, tokenizer and corpus
it belongs, and which versions made it. It is blamed only after it has been read again.
"""

import contextlib
import errno
import functools
import hashlib
import os
import platform
import re
import shlex
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from ffkv.base.errors import UserError, one_line
from ffkv.base.fault import lacks_space, temporary_folder
from ffkv.base.lookup import exists, find, is_dir, is_file, not_looked_up, open_file, read_bytes
from ffkv.base.version import RELEASE, version

LINE = re.compile(r"(?P<digest>[0-9a-f]{64})  (?P<name>.+)")
NO_LOCK = "unable to lock file"  # words of HDF5
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
        with contextlib.suppress(OSError):  # whoever reads a file that is denied itself says so
            exists(path)
            if error.errno != errno.ENAMETOOLONG:  # no sums can have so long a name
                raise not_looked_up(error) from error
        return path


def target_of(path: Path) -> Path:
    """Returns what a user deletes and Snakemake makes again if `path` is damaged: for a block, its reader."""
    return path.parent.with_suffix(".h5") if path.parent.suffix == BLOCKS else output_of(path)


def block_folder(path: Path) -> Path:
    """Returns the folder of the files that `path` reads from."""
    return path.with_suffix(BLOCKS)


def verify_sum(path: Path) -> None:
    """Compares a file, or all files of a folder, with their sums.

    One without sums passes: ffkv did not write it, or its writer was killed at the last moment. `ffkv check` names it. Raises
    `Damaged` if a file is not what was written, or missing; UserError if a file, or the sums, cannot be read, another program
    has the file open for writing, or the sums are damaged or incomplete.
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
            f" {_again(output)}"
        )
    for file in chosen:
        try:
            entry = file.stat()
            digest = _digest_of(file, entry.st_ino, entry.st_size, entry.st_mtime_ns)
        except FileNotFoundError:
            digest = "missing"
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", error)
            raise UserError(f"{file} cannot be read: {reason}. Check its rights and its disk.") from error
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
    with open_file(path) as file:
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
            f"{sum_path(output)} is empty or damaged, so ffkv cannot tell whether {output} is whole. {_again(output)}"
        )
    return {output.parent / entry["name"]: entry["digest"] for entry in entries if entry}


def open_elsewhere(path: Path) -> UserError:
    """Makes the message about a file that another program has open for writing."""
    return UserError(
        f"{path} is open for writing in another program, such as a notebook. Keep the file. Close it there, and open it"
        " there for reading only (mode 'r'). Then start the same command again. If that program was killed, `h5clear -s"
        f" {shlex.quote(str(path))}` of the HDF5 tools takes its mark away."
    )


def made_again(path: Path) -> str:
    """Returns the command that makes again what is lost with a file, and with which options."""
    return f"`snakemake --force {shlex.quote(str(target_of(path)))}`, with the options of your run"


def _again(output: Path) -> str:
    know = f"if you know that it is whole, delete {sum_path(target_of(output))}"
    return f"Make {target_of(output)} again: {made_again(output)} (or, {know})."


def _digest(path: Path) -> str:
    with open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@functools.lru_cache(maxsize=1024)  # a file that is opened several times is read once
def _digest_of(path: Path, *state: int) -> str:
    return _digest(path)


HASHES = ("model_hash", "tokenizer_hash", "corpus_hash", "sample_hash")


class Foreign(UserError):
    """A file is of another model, tokenizer, corpus or version than what it is read with."""


def check_identities(path: Path | str, attributes: Mapping[str, Any], belongs_to: Mapping[str, Any]) -> None:
    """Refuses a file that belongs to another model, tokenizer, corpus or sample than the file with `belongs_to`.

    Raises UserError if an identity that both files have differs.
    """
    for name in HASHES:
        if name in attributes and name in belongs_to and attributes[name] != belongs_to[name]:
            what = name.removesuffix("_hash")
            raise Foreign(
                f"{path} belongs to another {what} ({attributes[name]}, expected {belongs_to[name]})."
                f" Make it again with this {what}."
            )


def not_of_ffkv(path: Path | str, what: str) -> Foreign:
    """Makes the message about a file that has what ffkv never writes."""
    again = made_again(Path(path))
    return Foreign(f"{path} is not as ffkv writes it: {what}. Make it again: {again}; or ask who gave it to you.")


def versions(commit: bool = True) -> dict[str, str]:
    """Returns the versions of ffkv, Python and the libraries that numbers depend on.

    `commit`: whether that of ffkv names the commit. What is kept for later goes by the release: a commit does not void it.
    """
    return {
        "ffkv": version() if commit else RELEASE,
        "python": platform.python_version(),
        **{name: _version(name) for name in ("torch", "transformers", "tokenizers")},
    }


_version = functools.cache(metadata.version)  # it searches the installed packages, which takes milliseconds


def unreadable(path: Path | str, error: BaseException, parts: Sequence[Path] = ()) -> UserError:
    """Makes the message about a file of ffkv that could not be read. It is damaged only if a checksum says so.

    The file, and `parts`, which it reads, are read again as a whole. `error`: what was raised while it was read.
    """
    path, reason = Path(path), one_line(error)
    if isinstance(error, FileNotFoundError) and error.errno is None and exists(path):
        reason = "it cannot be opened"  # safetensors calls every such file missing
    if lacks_space(error):
        free = f"Free some space, {temporary_folder()} included."
        return UserError(f"{path} cannot be read: there is no space left ({reason}). {free}")
    if NO_LOCK in reason:
        if isinstance(error, BlockingIOError | PermissionError):
            return open_elsewhere(path)
        return UserError(
            f"{path} cannot be read: its file system has no locks ({reason}). Keep it. Set the environment variable"
            " HDF5_USE_FILE_LOCKING=FALSE, then start the same command again."
        )
    try:
        _digest_of.cache_clear()  # so that every file is read again
        for file in (path, *parts):
            verify_sum(file)
    except UserError as found:
        return found
    if not exists(path):
        return UserError(f"{path} does not exist: run the step that makes it first.")
    if not os.access(path, os.R_OK):
        return UserError(f"{path} cannot be read: you have no right to. Check its rights.")
    if exists(sum_path(output_of(path))):
        return UserError(
            f"{path} cannot be read ({reason}), but it is what ffkv wrote: its checksum fits. Keep it. Check the"
            " memory and the disks, then start the same command again."
        )
    return UserError(
        f"{path} cannot be read ({reason}). It has no checksum beside it, so ffkv cannot tell whether it is damaged. Move"
        " it away if a step can make it again, then run the workflow again."
    )
