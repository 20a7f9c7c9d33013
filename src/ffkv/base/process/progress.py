"""Progress for a person who waits: how much is done, how fast, and how long it will still take."""

import sys
from typing import ClassVar

from tqdm import tqdm

from ffkv.base.terminal import plain


class Bar(tqdm):
    """A bar without the thread that wakes bars of tqdm: processes are forked while bars are there."""

    monitor_interval = 0
    spent: ClassVar[list[float]] = []  # seconds in which each bar of this process was open

    def close(self) -> None:
        """Ends the bar. tqdm may do it again when the bar is deleted."""
        if not self.disable:
            self.spent.append(self.format_dict["elapsed"])
        super().close()


def progress(total: int | None, unit: str, description: str, done: int = 0) -> Bar:
    """Makes a progress bar on standard error. In a log file, it writes a line every ten seconds.

    `total`: number of units of work; None if nobody knows it. Then no time left is shown. `unit`: its name, in the plural.
    `done`: number of units that an earlier process has done.
    """
    terminal = sys.stderr.isatty()
    return Bar(
        total=total,
        initial=done,
        unit=f" {unit}",
        unit_scale=True,
        desc=plain(description),
        file=sys.stderr,
        mininterval=0.2 if terminal else 10,
        miniters=0,  # look at the clock at each update
        ascii=not terminal,
        dynamic_ncols=terminal,
    )
