"""Applies a function to items in a fork, which may crash or hang without harm."""

import multiprocessing
import signal
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, TypeVar

from ffkv.base.errors import as_exception

Item = TypeVar("Item")


class Lost(NamedTuple):
    """No result: the item ended the fork."""

    how: str  # such as "was ended by SIGSEGV"


def apart(function: Callable[[Item], Any], items: Iterable[Item], seconds: Callable[[Item], float]) -> Iterator[Any]:
    """Applies a function to items, one after the other, in a fork of this process.

    A library that crashes on an item, or never ends, takes only the fork with it. Another fork goes on with the next item.

    Args:
        function: gets an item. Its results are picklable. Its exceptions are raised here.
        seconds: how long an item may take.
    Returns:
        For each item the result, or `Lost`.
    """
    context, todo = multiprocessing.get_context("fork"), list(items)
    while todo:
        own, other = context.Pipe(duplex=False)
        fork = context.Process(target=_work, args=(function, todo, own, other), daemon=True)
        fork.start()
        other.close()
        try:
            while todo:
                found = _receive(own, fork, seconds(todo[0]))
                del todo[0]
                if isinstance(found, Exception):
                    raise found
                yield found
                if isinstance(found, Lost):
                    break
        finally:
            fork.kill()
            fork.join()
            own.close()


def _receive(connection: Connection, fork: Any, seconds: float) -> Any:
    if not connection.poll(seconds):
        return Lost(f"did not end within {seconds:.0f} s")
    try:
        return connection.recv()
    except EOFError:
        fork.join()
        code = fork.exitcode
        return Lost(f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}")


def _work(function: Callable, items: list, own: Connection, connection: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches both processes; the first one ends the other
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    own.close()  # else the fork would not notice that the first process has ended
    for item in items:
        try:
            connection.send(function(item))
        except BaseException as error:
            connection.send(as_exception(error))
