"""Progress for a person who waits: what is done, how fast, how long still."""

import sys

from tqdm import tqdm


def progress(total: int, unit: str, description: str) -> tqdm:
    """A bar on standard error that counts `unit`; a line every half minute where that is no terminal (a log file)."""
    terminal = sys.stderr.isatty()
    return tqdm(
        total=total,
        unit=f" {unit}",
        unit_scale=True,
        desc=description,
        file=sys.stderr,
        mininterval=0.2 if terminal else 30,
        ascii=not terminal,
        dynamic_ncols=terminal,
    )
