"""Progress for a person who waits: how much is done, how fast, and how long it will still take."""

import sys

from tqdm import tqdm


def progress(total: int | None, unit: str, description: str, done: int = 0) -> tqdm:
    """Makes a progress bar on standard error. In a log file, it writes a line every ten seconds.

    Args:
        total: number of units of work; None if nobody knows it. Then no time left is shown.
        unit: name of the unit, in the plural.
        done: number of units that an earlier process has done.
    """
    terminal = sys.stderr.isatty()
    return tqdm(
        total=total,
        initial=done,
        unit=f" {unit}",
        unit_scale=True,
        desc=description,
        file=sys.stderr,
        mininterval=0.2 if terminal else 10,
        ascii=not terminal,
        dynamic_ncols=terminal,
    )
