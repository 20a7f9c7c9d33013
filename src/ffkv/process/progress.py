"""Progress for a person who waits: what is done, how fast, how long still."""

import sys

from tqdm import tqdm


def progress(total: int, unit: str, description: str, done: int = 0) -> tqdm:
    """A bar on standard error that counts `unit`; a line every half minute where that is no terminal (a log file).

    Args:
        done: how many an earlier process has done.
    """
    terminal = sys.stderr.isatty()
    return tqdm(
        total=total,
        initial=done,
        unit=f" {unit}",
        unit_scale=True,
        desc=description,
        file=sys.stderr,
        mininterval=0.2 if terminal else 30,
        ascii=not terminal,
        dynamic_ncols=terminal,
    )
