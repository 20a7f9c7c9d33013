"""Where a run writes: whether it may, and whether there is room. Asked by the workflow before and after a run."""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from ffkv.errors import UserError

FULL = 100_000  # bytes: with less than this Snakemake itself stops with a traceback


def check_disk(folders: Iterable[Path]) -> None:
    """Makes sure that folders, where they exist, can be written: Snakemake itself would stop there with a traceback.

    Raises:
        UserError: one is not to be written, or its disk is full; names it.
    """
    folders = list(folders)
    for folder in folders:
        if folder.is_dir() and not os.access(folder, os.W_OK | os.X_OK):
            raise UserError(
                f"{folder.resolve()} cannot be written: its disk is read-only, or it is not yours. Mend its rights, or run with --directory elsewhere."
            )
    if places := full(folders):
        raise UserError(is_full(places[0]))


def full(folders: Iterable[Path]) -> list[Path]:
    """Those of some folders whose disk is full, one a disk."""
    disks: dict[int, Path] = {}
    for folder in folders:
        if folder.is_dir():
            disks.setdefault(folder.stat().st_dev, folder.resolve())
    return [folder for folder in disks.values() if shutil.disk_usage(folder).free < FULL]


def is_full(folder: Path) -> str:
    """The message: a step on a full disk cannot even write into its log why it failed."""
    return f"The disk of {folder} is full. Make room, then start the same command again."
