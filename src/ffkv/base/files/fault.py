"""Finds whose fault a failure is. A file is blamed only after it has been read again, a disk after it was asked."""

import errno
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ffkv.base.errors import UserError
from ffkv.base.files.checksums import forget_digests, open_elsewhere, output_of, sum_path, verify_sum
from ffkv.base.lookup import exists, is_dir, is_file
from ffkv.base.system.disk import full, temporary_folder

NO_LOCK = "unable to lock file"  # words of HDF5
SPACE = (errno.ENOSPC, errno.EDQUOT)
# Words of libraries that pass on the system's error as text alone: safetensors, tokenizers, pyarrow, HDF5.
SPACE_WORDS = tuple(
    word for code in SPACE for word in (os.strerror(code), f"os error {code}", f"errno = {code}", f"errno {code}")
)
# What a machine denies for a while or for ever, whatever ffkv does.
DENIED = (
    *(errno.EIO, errno.ENXIO, errno.ENODEV, errno.EBUSY, errno.ESTALE, errno.ENOLCK),
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.ENOMEM),
)
# How safetensors, HDF5 and pyarrow write an error of the system.
NUMBERED = re.compile(r"(?:os error|errno =|errno) (\d+)")


class DoesNotFit(UserError):
    """A disk or a quota has no space for an output."""


def as_path(given: Any) -> Path:
    """Returns a path that a person names. Raises UserError if it is none."""
    if not isinstance(given, str | os.PathLike) or "\0" in os.fspath(given):
        raise UserError(f"{given!r} is no path. Write that of a file or a folder, such as 'results/demo'.")
    return Path(given)


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yields an error and the errors that it came from, each once, the outermost first."""
    seen: set[int] = set()
    todo: list[BaseException | None] = [error]
    while todo:
        one = todo.pop(0)
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            yield one
            todo += [one.__cause__, one.__context__]


def lacks_space(error: BaseException) -> bool:
    """Tells whether an error, or one that it came from, says that a disk or a quota is full."""
    return any(
        getattr(each, "errno", None) in SPACE or any(word in str(each) for word in SPACE_WORDS)
        for each in causes(error)
    )


def denied(error: BaseException) -> str:
    """Returns the system's words if an error, or one that it came from, says that the machine denied something, else ""."""
    for each in causes(error):
        text = str(each)
        numbers = {getattr(each, "errno", None), *map(int, NUMBERED.findall(text))}
        if code := next((code for code in DENIED if code in numbers or os.strerror(code) in text), None):
            return os.strerror(code)
    return ""


def unwritable(path: Path, unfinished: Path, error: Exception) -> UserError | None:
    """Returns the message about an output that could not be written; None if the error is about something else.

    `unfinished`: what is written of it. `error`: what was raised meanwhile.
    """
    if isinstance(error, DoesNotFit):  # of an output inside of this one, which is named already
        return None
    if lacks_space(error) or (full([path.parent]) and not isinstance(error, UserError)):
        place = path.parent if full([path.parent]) or not full([temporary_folder()]) else temporary_folder()
        free = shutil.disk_usage(place).free if exists(place) else 0
        return DoesNotFit(
            f"{path} does not fit: {_size(unfinished):,} bytes of it are written, and {free:,} bytes are free in {place}"
            f" (or a quota is used up). Free some space, then start the same command again."
        )
    if not isinstance(error, OSError) or error.errno is None:
        words = "" if isinstance(error, UserError) else denied(error)
        return UserError(f"{path} cannot be made: {words}. Check the rights and the disks.") if words else None
    if not isinstance(error.filename, str | bytes | os.PathLike):
        return UserError(f"{path} cannot be written: {error.strerror}. Check the folder's rights and the disk.")
    culprit, own, part = Path(os.fsdecode(error.filename)).absolute(), path.absolute(), unfinished.absolute()
    if culprit in own.parents or culprit.parent == own.parent or part in (culprit, *culprit.parents):
        return UserError(
            f"{path} cannot be written: {error.strerror} ({culprit}). Check the folder's rights and the disk."
        )
    return UserError(f"{path} cannot be made, because of {culprit}: {error.strerror}. Check the rights of that file.")


def unreadable(path: Path | str, error: BaseException, parts: Sequence[Path] = ()) -> UserError:
    """Makes the message about a file of ffkv that could not be read. It is damaged only if a checksum says so.

    The file, and `parts`, which it reads, are read again as a whole. `error`: what was raised while it was read.
    """
    path, reason = Path(path), " ".join(str(error).split())[:300] or type(error).__name__
    if isinstance(error, FileNotFoundError) and error.errno is None and exists(path):
        reason = "it cannot be opened"  # safetensors calls every such file missing
    if lacks_space(error):
        place = temporary_folder()
        return UserError(
            f"{path} cannot be read: there is no space left ({reason}). Free some space, {place} included."
        )
    if NO_LOCK in reason:
        if isinstance(error, BlockingIOError | PermissionError):
            return open_elsewhere(path)
        return UserError(
            f"{path} cannot be read: its file system has no locks ({reason}). Keep it. Set the environment variable"
            " HDF5_USE_FILE_LOCKING=FALSE, then start the same command again."
        )
    try:
        forget_digests()
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


def _size(path: Path) -> int:
    """Returns the bytes of a file or a folder; 0 if there is none."""
    try:
        entries = path.rglob("*") if is_dir(path) else [path]
        states = [entry.stat() for entry in entries if is_file(entry)]
        return sum(min(state.st_size, 512 * state.st_blocks) for state in states)  # HDF5 makes files with holes
    except OSError:
        return 0
