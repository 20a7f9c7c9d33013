"""How a step ends when it is told to: SIGTERM (a cluster's warning before the time limit) and Ctrl-C."""

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator

import click


def end_on_sigterm() -> None:
    """From here on SIGTERM ends the process as an exception does, so that no unfinished file stays behind."""

    def end(number: int, frame: object) -> None:
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, end)


@contextlib.contextmanager
def stoppable() -> Iterator[Callable[[], int]]:
    """Inside, SIGTERM and Ctrl-C are only noted. A long pass asks between two pieces of work, saves what it has, and ends.

    Yields:
        A function that gives the number of the signal that came, 0 before.
    """
    came = 0

    def note(number: int, frame: object) -> None:
        nonlocal came
        came = number

    before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield lambda: came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def stop(number: int, saved: str) -> None:
    """Ends the process after a signal, saying what was saved."""
    click.echo(
        f"ffkv: stopped by {signal.Signals(number).name}; {saved}. The same command goes on from there.", err=True
    )
    sys.exit(128 + number)
