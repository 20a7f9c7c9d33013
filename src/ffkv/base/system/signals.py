"""How a step ends after SIGTERM (with which a cluster warns before the time limit) or Ctrl-C."""

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FrameType

from ffkv.base.terminal import say

WAIT = 0.01  # seconds until a delayed signal is handled
UNINTERRUPTED: set[CodeType] = set()
# Signals that have arrived. Libraries that swallow exceptions may have lost the one that was raised.
TOLD: list[int] = []


def uninterrupted(function: Callable) -> Callable:
    """Marks a function that a library calls back and whose exceptions it would lose: signals wait until it returns."""
    UNINTERRUPTED.add(function.__code__)
    return function


def end_in_good_order() -> None:
    """Lets SIGTERM and Ctrl-C end the process by an exception, so that it removes its unfinished files."""

    def end(number: int, frame: FrameType | None) -> None:
        while frame and frame.f_code not in UNINTERRUPTED:
            frame = frame.f_back
        if frame:
            signal.signal(signal.SIGALRM, lambda _, later: end(number, later))
            signal.setitimer(signal.ITIMER_REAL, WAIT)
        else:
            TOLD.append(number)
            end_if_told()

    for number in (signal.SIGTERM, signal.SIGINT):
        if signal.getsignal(number) is not signal.SIG_IGN:  # ignored in the background of a script
            signal.signal(number, end)


def end_if_told() -> None:
    """Exits if a signal arrived while a library was swallowing exceptions."""
    if signal.SIGINT in TOLD:
        raise KeyboardInterrupt
    if TOLD:
        sys.exit(128 + TOLD[0])


@contextlib.contextmanager
def stoppable() -> Iterator[Callable[[], int]]:
    """Inside the `with` statement, SIGTERM and Ctrl-C are only noted. Yields what tells the signal's number, or 0.

    A long pass checks for them between two batches, saves its state, and ends.
    """
    arrived = 0

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal arrived
        arrived = number

    before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield lambda: arrived
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def stop(number: int, saved: str) -> None:
    """Ends the process after a signal, with a message about what was saved."""
    say(f"stopped by {signal.Signals(number).name}; {saved}. The same command continues from there.", error=True)
    sys.exit(128 + number)
