"""Where a run writes: whether it may, and whether there is room. Asked by the workflow before and after a run."""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from ffkv.errors import UserError

FULL = 1_000_000  # bytes: less than any step needs


def check_writable(folders: Iterable[Path]) -> None:
    """Makes sure that folders, where they exist, can be written: Snakemake itself would stop there with a traceback.

    Raises:
        UserError: one cannot be; names it.
    """
    for folder in folders:
        if folder.is_dir() and not os.access(folder, os.W_OK | os.X_OK):
            raise UserError(
                f"{folder.resolve()} cannot be written: its disk is read-only, or it is not yours. Mend its rights, or run with --directory elsewhere."
            )


def full(folders: Iterable[Path]) -> list[Path]:
    """Those of some folders whose disk is full, one a disk. A step there cannot even write into its log why it failed."""
    disks = {folder.stat().st_dev: folder.resolve() for folder in folders if folder.is_dir()}
    return [folder for folder in disks.values() if shutil.disk_usage(folder).free < FULL]
