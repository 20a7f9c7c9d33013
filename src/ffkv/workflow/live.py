"""While Snakemake runs at a terminal: a line for each running job, with the progress that its log tells."""

import logging
import re
import shutil
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from ffkv.base.terminal import plain

UP = "\x1b[1A\x1b[2K"  # one line up, and that line is empty
OF_RUN = re.compile(r"([^/]+)/logs/(.+)\.log")
TAIL = 2000  # bytes of a log that are read
_ended = threading.Event()


def show_progress(logs: Callable[[], Iterable[str]], seconds: float = 1.0) -> None:
    """Keeps the lines below all that Snakemake prints, until `hide_progress`. Does nothing without a terminal.

    `logs`: returns the logs of the jobs that run now. `seconds`: between two looks at them.
    """
    for handler in logging.getLogger("snakemake.logging").handlers:
        # Snakemake's own handler knows whether it writes to a terminal.
        if isinstance(handler, logging.StreamHandler) and not getattr(handler, "nocolor", True):
            threading.Thread(target=_watch, args=(logs, _keep_below(handler), seconds), daemon=True).start()


def hide_progress() -> None:
    """Draws no more lines. What Snakemake printed last has removed those that were there."""
    _ended.set()


def _keep_below(handler: logging.StreamHandler) -> Callable[[list[str]], None]:
    """Makes a handler print above lines. Returns what replaces these lines by others."""
    emit, shown = handler.emit, list[str]()

    def draw(lines: list[str]) -> None:
        with handler.lock:  # type: ignore[union-attr]
            if lines != shown:
                handler.stream.write(UP * len(shown) + "".join(f"{line}\n" for line in lines))
                handler.flush()
                shown[:] = lines

    def emit_above(record: logging.LogRecord) -> None:
        draw([])
        emit(record)

    handler.emit = emit_above  # type: ignore[method-assign]
    return draw


def _watch(logs: Callable[[], Iterable[str]], draw: Callable[[list[str]], None], seconds: float) -> None:
    while not _ended.wait(seconds):
        width, height = shutil.get_terminal_size()
        draw([describe(log)[: width - 1] for log in sorted(logs())][: height - 1])


def describe(log: str) -> str:
    """Returns the run and the step of a log, and the last line that it has, such as that of a progress bar."""
    named = OF_RUN.search(log)
    name = f"{named[1]} {named[2]}" if named else log
    try:
        with Path(log).open("rb") as file:
            file.seek(max(0, Path(log).stat().st_size - TAIL))
            lines = re.split(rb"[\r\n]+", file.read().strip())
    except OSError:  # the job has not begun to write it
        lines = [b""]
    return f"{name}  {plain(lines[-1].decode(errors='replace'))}".rstrip()
