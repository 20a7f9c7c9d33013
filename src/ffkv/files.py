"""Files that are whole when they stand under their name."""

import contextlib
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

from ffkv.errors import UserError


@contextlib.contextmanager
def atomic(path: Path | str) -> Iterator[Path]:
    """Yields a temporary path beside `path`; on success it is synced and renamed to `path`, on failure removed.

    The block may make a file or a folder at the temporary path. A file that already stood under `path` stays until the
    new one is complete.

    Raises:
        UserError: the folder cannot be written, or the disk is full; a folder that stands under `path` holds other files
            than the new one.
    """
    path = Path(path).absolute() if not Path(path).name else Path(path)
    temporary = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        _share(temporary)
        _sync(temporary)
        if temporary.is_dir() and path.is_dir():
            _clear(path, temporary)
        temporary.replace(path)
        _sync_entry(path.parent)
    except OSError as error:
        if error.filename is None and error.errno is None:
            raise
        culprit = f" ({error.filename})" if error.filename else ""
        raise UserError(
            f"{path} cannot be written: {error.strerror or error}{culprit}. Check the folder's rights and the disk's space."
        ) from error
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                temporary.unlink()


def _clear(path: Path, successor: Path) -> None:
    """Removes a folder that a new one takes the place of; never one that holds anything else."""
    others = {entry.name for entry in path.iterdir()} - {entry.name for entry in successor.iterdir()}
    if others:
        raise UserError(
            f"{path} holds other files ({', '.join(sorted(others)[:3])}): name another folder, or empty it."
        )
    shutil.rmtree(path)


def _share(path: Path) -> None:
    """Gives the files of a folder the rights that new files get here: some libraries keep theirs to the owner."""
    if path.is_dir():
        mask = os.umask(0)
        os.umask(mask)
        for entry in path.rglob("*"):
            if entry.is_file():
                entry.chmod(0o666 & ~mask)


def _sync(path: Path) -> None:
    for entry in [path, *path.rglob("*")] if path.is_dir() else [path]:
        _sync_entry(entry)


def _sync_entry(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
