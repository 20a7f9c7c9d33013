"""Files that have their final name only when they are whole, each with its checksum beside it."""

import contextlib
import errno
import os
import re
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil

from ffkv.base.errors import UserError
from ffkv.base.fault import unwritable
from ffkv.base.files.stored import sum_path, sums, verify_sum
from ffkv.base.lookup import as_path, exists, find, is_dir, is_file, make_folder

PARTIAL = re.compile(r"\.(?P<name>.+)\.(?P<host>[^.]+)\.(?P<process>\d+)\.partial", re.DOTALL)

MANY = 64  # files of a folder that are sooner on the disk if everything is written at once before each is asked for

PROGRESS = ".progress"  # what a long step has done so far, as `.<name>.progress`


@contextlib.contextmanager
def atomic(path: Path | str, summed: bool = True) -> Iterator[Path]:
    """Yields a temporary path beside `path`; on success it is synced and renamed to `path`, on failure removed.

    Inside the `with` statement, a file or a folder is made at the temporary path. An earlier file at `path` stays until
    the new one is complete. Unfinished files that killed processes of this machine left are removed first.

    `summed`: whether the sums are written beside it. False for outputs that only people read. Raises UserError if the folder
    cannot be written; the disk is full, whatever library says so; what is at `path` is neither a file nor a folder; or it is
    a folder that holds other files than the new one.
    """
    path = as_path(path) if as_path(path).name else as_path(path).absolute()
    if not path.name:
        raise UserError(f"{path} is not a name for an output: it ends in '..' or is the root of a disk. Name a file.")
    temporary = _temporary(path)
    try:
        make_folder(path.parent)
        # A device, a pipe or a link is not replaced: only a file, or a folder, that is really there.
        if path.is_symlink() or (exists(path) and not is_file(path) and not is_dir(path)):
            raise UserError(
                f"{path} is neither a file nor a folder, and ffkv does not replace it. Name another output."
            )
        for entry in path.parent.iterdir():
            left = PARTIAL.fullmatch(entry.name)
            of_path = _final_name(entry.name) in (path.name, f"{path.name}.old", f"{path.name}.sha256")
            if left and of_path and left["host"] == host_name() and not is_written(entry):
                remove(entry)
        yield temporary
        _finish(temporary, path, summed)
    except Exception as error:
        if problem := unwritable(Path(*map(_final_name, path.parts)), temporary, error):
            raise problem from error
        raise
    finally:
        remove(temporary)
        remove(_temporary_sums(path))


def write_text(path: Path | str, text: str) -> None:
    """Writes a text that only people read, or that is made again if it is lost, without a sum. Raises: see `atomic`."""
    with atomic(path, summed=False) as temporary:
        temporary.write_text(text, encoding="utf-8")


def link(file: Path | str, path: Path | str) -> None:
    """Gives a file a second name, or makes a copy on a file system without such links. Raises: see `atomic`."""
    with atomic(path) as temporary:
        try:
            os.link(file, temporary)
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.EMLINK):
                raise
            shutil.copyfile(file, temporary)


def copy(file: Path | str, path: Path | str) -> None:
    """Copies a file that is as it was written. Raises: see `atomic` and `verify_sum`."""
    verify_sum(Path(file))
    with atomic(path) as temporary:
        shutil.copyfile(file, temporary)


def remove(path: Path) -> None:
    """Removes a file or a whole folder, if there is one and it can be removed."""
    with contextlib.suppress(OSError):
        if is_dir(path) and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{host_name()}.{os.getpid()}.partial")


def _temporary_sums(path: Path) -> Path:
    return _temporary(path.with_name(f"{path.name}.sha256"))


def host_name() -> str:
    """Returns the name of this machine, without its domain."""
    return socket.gethostname().partition(".")[0]


def _final_name(name: str) -> str:
    """Returns the name of a file once it is finished. It can lie inside something unfinished."""
    while left := PARTIAL.fullmatch(name):
        name = left["name"]
    return name


def is_written(partial: Path) -> bool:
    """Tells whether the process that writes an unfinished file runs on this machine."""
    written = PARTIAL.fullmatch(partial.name)
    return written is not None and written["host"] == host_name() and psutil.pid_exists(int(written["process"]))


def _finish(temporary: Path, path: Path, summed: bool) -> None:
    """Gives a complete file or folder its name and its sums.

    The sums come last: a process that is killed here leaves whole files without sums, never sums that do not fit.
    """
    mask = os.umask(0)
    os.umask(mask)
    for entry in find(temporary, "**/*"):  # some libraries keep the rights of their files to the owner
        if is_file(entry):
            entry.chmod(0o666 & ~mask)
    entries = [temporary, *find(temporary, "**/*")]
    if len(entries) > MANY:
        os.sync()
    for entry in entries:
        sync(entry)
    # A file inside a folder that is itself being written gets its sum when the folder is finished.
    lines = sums(temporary, path.name) if summed and not any(map(PARTIAL.fullmatch, path.parts)) else ""
    if lines:  # before anything is replaced: they may not fit on the disk
        _temporary_sums(path).write_bytes(os.fsencode(lines))
        sync(_temporary_sums(path))
    sum_path(path).unlink(missing_ok=True)
    old = None
    if is_dir(temporary) and is_dir(path):  # it is renamed first: a killed removal would leave half
        if others := {entry.name for entry in path.iterdir()} - {entry.name for entry in temporary.iterdir()}:
            raise UserError(
                f"{path} holds other files ({', '.join(sorted(others)[:3])}): name another folder, or empty it."
            )
        old = path.rename(_temporary(path.with_name(f"{path.name}.old")))
    try:
        temporary.replace(path)
    except OSError:
        if old:
            old.rename(path)
        raise
    if lines:
        _temporary_sums(path).replace(sum_path(path))
    sync(path.parent)
    if old:
        remove(old)


def sync(path: Path) -> None:
    """Waits until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
