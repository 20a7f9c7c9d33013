"""Runs a function on a stream of items in several processes, and gives the results in the order of the items."""

import contextlib
import multiprocessing
import signal
import traceback
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple, TypeVar, cast

from ffkv.base.errors import UserError, as_exception

Item = TypeVar("Item")
Result = TypeVar("Result")


class _Worker(NamedTuple):
    """A fork, and this process's end of the pipe to it."""

    process: Any
    connection: Connection


def in_order(function: Callable[[Item], Result], items: Iterable[Item], processes: int, work: str) -> Iterator[Result]:
    """Applies a function to items. The number of processes changes nothing but the time.

    With one process it is `map`. Otherwise forks of this process do the work, one item at a time each, so that the
    function need not be picklable. They end when this process does, however it ends.

    Args:
        function: gets an item. Its exceptions are raised here.
        items: picklable; read one by one, in this process.
        work: what the processes do, as in "encode documents", for the message.
    Raises:
        UserError: a process was killed.
    """
    if processes == 1:
        yield from map(function, items)
        return
    context = multiprocessing.get_context("fork")
    workers: list[_Worker] = []
    for _ in range(processes):
        own, other = context.Pipe()
        # A fork inherits the ends of pipes of this process. As long as it holds one, no fork notices that this process ended.
        inherited = [*(worker.connection for worker in workers), own]
        process = context.Process(target=_work, args=(function, other, inherited), daemon=True)
        process.start()
        other.close()
        workers.append(_Worker(process, own))
    try:
        yield from _deal(workers, iter(items), work)
    finally:
        for worker in workers:
            worker.process.kill()  # a fork that just starts has this process's handlers, which would note SIGTERM only
        for worker in workers:
            worker.process.join()
            worker.connection.close()


def _work(function: Callable, connection: Connection, inherited: list[Connection]) -> None:
    """Works in the fork: answers each item with whether it succeeded, and the result or the exception."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process; the first one ends the others
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for end in inherited:
        end.close()
    with contextlib.suppress(EOFError, OSError):  # the first process has ended
        while True:
            item = connection.recv()
            try:
                answer: tuple[bool, Any] = True, function(item)
            except BaseException as error:
                failure = as_exception(error)
                failure.add_note(f"In another process:\n{traceback.format_exc()}")
                answer = False, failure
            connection.send(answer)


def _deal(workers: list[_Worker], items: Iterator, work: str) -> Iterator[Any]:
    """Gives an item to each worker that has none. Results wait until those of all items before are there."""
    busy: dict[Connection, tuple[int, _Worker]] = {}
    idle, dealt, done = list(workers), 0, 0
    results: dict[int, Any] = {}
    while True:
        for item in items if idle else ():
            worker = idle.pop()
            with _deaths_told(worker, work):
                worker.connection.send(item)
            busy[worker.connection] = dealt, worker
            dealt += 1
            if not idle:
                break
        if not busy:
            return
        for connection in wait(list(busy)):
            number, worker = busy.pop(cast(Connection, connection))
            with _deaths_told(worker, work):
                succeeded, results[number] = worker.connection.recv()
            if not succeeded:
                raise results[number]
            idle.append(worker)
        while done in results:
            yield results.pop(done)
            done += 1


@contextlib.contextmanager
def _deaths_told(worker: _Worker, work: str) -> Iterator[None]:
    try:
        yield
    except (EOFError, ConnectionError) as error:
        worker.process.join()
        code = worker.process.exitcode
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        raise UserError(
            f"One of the processes that {work} {how}. If nobody ended it, the memory was used up: use fewer processes, or"
            " give the job more memory."
        ) from error
