"""How a step ends after SIGTERM (with which a cluster warns before the time limit) or Ctrl-C."""

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any

from ffkv.base.terminal import say

WAIT, AGAIN = 0.01, 1.0  # seconds until a delayed signal is handled, and until one that was lost is told again
UNINTERRUPTED: set[CodeType] = set()
# Signals that have arrived. Libraries that swallow exceptions may have lost the one that was raised.
TOLD: list[int] = []


def uninterrupted(function: Callable) -> Callable:
    """Marks a function that a library calls back and whose exceptions it would lose: signals wait until it returns."""
    UNINTERRUPTED.add(function.__code__)
    return function


def end_in_good_order() -> None:
    """Lets SIGTERM and Ctrl-C end the process by an exception, so that it removes its unfinished files.

    C code and callbacks can swallow the exception. So it is raised again, once a second, until `told_no_more`; but not while one is
    on its way, because what removes unfinished files would be interrupted.
    """

    def end(number: int, frame: FrameType | None) -> None:
        while frame and frame.f_code not in UNINTERRUPTED:
            frame = frame.f_back
        signal.signal(signal.SIGALRM, lambda _, later: end(number, later))
        signal.setitimer(signal.ITIMER_REAL, WAIT if frame else AGAIN)
        if not frame and not _is_ending():
            TOLD.append(number)
            end_if_told()

    def tell(lost: Any) -> None:
        if not (TOLD and isinstance(lost.exc_value, KeyboardInterrupt | SystemExit)):
            sys.__unraisablehook__(lost)

    sys.unraisablehook = tell
    for number in (signal.SIGTERM, signal.SIGINT):
        if signal.getsignal(number) is not signal.SIG_IGN:  # ignored in the background of a script
            signal.signal(number, end)


def told_no_more() -> None:
    """Lets the process end as it likes: nothing is raised again."""
    signal.setitimer(signal.ITIMER_REAL, 0)


def _is_ending() -> bool:
    """Tells whether the code that a signal interrupts handles the exception of an earlier one."""
    error = sys.exc_info()[1] if TOLD else None
    while error and not isinstance(error, KeyboardInterrupt | SystemExit):
        error = error.__context__
    return error is not None


def handle_apart(number: int) -> None:
    """Lets the handler of a signal run in a thread: the code that it interrupts may hold a lock that it takes."""
    handler = signal.getsignal(number)
    if callable(handler) and threading.current_thread() is threading.main_thread():
        signal.signal(number, lambda *about: threading.Thread(target=handler, args=about).start())


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
