"""How a step ends when it is told to: SIGTERM (a cluster's warning before the time limit) and Ctrl-C."""

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FrameType

import click

WAIT = 0.01  # seconds until a signal that came at a bad moment is looked at again
UNINTERRUPTED: set[CodeType] = set()
TOLD: list[int] = []  # the signals that ended this process, were it not for libraries that lose exceptions


def uninterrupted(function: Callable) -> Callable:
    """Marks a function that a library calls back and whose exceptions it would lose: signals wait until it is over."""
    UNINTERRUPTED.add(function.__code__)
    return function


def end_in_good_order() -> None:
    """From here on SIGTERM ends the process as an exception does, as Ctrl-C, so that no unfinished file stays behind."""

    def end(number: int, frame: FrameType | None) -> None:
        if _is_uninterrupted(frame):
            signal.signal(signal.SIGALRM, lambda _, later: end(number, later))
            signal.setitimer(signal.ITIMER_REAL, WAIT)
        else:
            TOLD.append(number)
            end_if_told()

    for number in (signal.SIGTERM, signal.SIGINT):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as in the background of a script
            signal.signal(number, end)


def end_if_told() -> None:
    """Ends the process if a signal said so and nobody heard."""
    if signal.SIGINT in TOLD:
        raise KeyboardInterrupt
    if TOLD:
        sys.exit(128 + TOLD[0])


def _is_uninterrupted(frame: FrameType | None) -> bool:
    while frame and frame.f_code not in UNINTERRUPTED:
        frame = frame.f_back
    return frame is not None


@contextlib.contextmanager
def stoppable() -> Iterator[Callable[[], int]]:
    """Inside, SIGTERM and Ctrl-C are only noted. A long pass asks between two pieces of work, saves what it has, and ends.

    Yields:
        A function that gives the number of the signal that came, 0 before.
    """
    came = 0

    def note(number: int, frame: FrameType | None) -> None:
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
