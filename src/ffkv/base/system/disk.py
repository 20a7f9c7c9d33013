"""Checks the folders of a run: whether they can be written, and whether their disks have space.

The workflow asks before and after a run.
"""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from ffkv.base.errors import UserError
from ffkv.base.lookup import is_dir

FULL = 100_000  # free bytes below which Snakemake itself stops with a traceback


def check_disk(folders: Iterable[Path]) -> None:
    """Makes sure that folders that exist can be written, and that their disks are not full.

    Raises UserError, which names the folder. Snakemake itself would stop with a traceback.
    """
    folders = list(folders)
    for folder in folders:
        if is_dir(folder) and not os.access(folder, os.W_OK | os.X_OK):
            raise UserError(
                f"{folder.resolve()} cannot be written: its disk is read-only, or it belongs to somebody else. Change its permissions, or choose another folder with --directory."
            )
    if places := full(folders):
        raise UserError(describe_full(places[0]))


def temporary_folder() -> Path:
    """Returns the folder for temporary files. Raises UserError if none can be written, usually for a full disk."""
    try:
        return Path(tempfile.gettempdir())
    except FileNotFoundError as error:
        raise UserError(
            f"No folder for temporary files can be written ({error.strerror or error}). Free some space in /tmp, or set"
            " TMPDIR to another folder."
        ) from error


def temporary_folders() -> list[Path]:
    """Returns the folders that libraries may take for temporary files: some obey the environment, unlike Python.

    Raises: see `temporary_folder`.
    """
    named = (Path(os.environ[name]) for name in ("TMPDIR", "TEMP", "TMP") if os.environ.get(name))
    return [temporary_folder(), *named]


def full(folders: Iterable[Path]) -> list[Path]:
    """Returns the folders whose disk is full, one per disk. Those of a disk that does not answer are not among them."""
    found: dict[int, Path] = {}
    for folder in folders:
        with contextlib.suppress(OSError):
            if is_dir(folder) and shutil.disk_usage(folder).free < FULL:
                found.setdefault(folder.stat().st_dev, folder.resolve())
    return [*found.values()]


def describe_full(folder: Path) -> str:
    """Returns the message about a full disk. The workflow shows it: a step cannot write it into a log on that disk."""
    return f"The disk of {folder} is full. Free some space, then start the same command again."
