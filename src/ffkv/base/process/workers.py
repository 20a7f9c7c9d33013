"""Runs a function on items in forks of this process: in several at a time, or in one that may crash or hang.

A fork gets its items through a pipe, one at a time, so that the function need not be picklable. Forks end when this
process does, however it ends.
"""

import contextlib
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple, TypeVar, cast

from ffkv.base.errors import UserError

Item = TypeVar("Item")
Result = TypeVar("Result")
DEATHS = (EOFError, ConnectionError)  # what a pipe to a fork that has ended raises


class _Worker(NamedTuple):
    """A fork, and this process's end of the pipe to it."""

    process: Any
    connection: Connection

    def death(self, ended: str) -> str:
        """Says how the fork ended. `ended`: a word for what a signal did to it, such as "killed"."""
        self.process.join()
        code = self.process.exitcode
        return f"was {ended} by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


class Lost(NamedTuple):
    """No result: the item ended the fork."""

    how: str  # such as "was ended by SIGSEGV"


def apart(function: Callable[[Item], Any], items: Iterable[Item], seconds: Callable[[Item], float]) -> Iterator[Any]:
    """Applies a function to items, one after the other, in a fork of this process.

    A library that crashes on an item, or never ends, takes only the fork with it. Another fork goes on with the next item.

    `function` gets an item. Its results, and the items, are picklable. Its exceptions are raised here. `seconds`: how long an
    item may take. Yields for each item the result, or `Lost`.
    """
    workers: list[_Worker] = []
    try:
        for item in items:
            workers = workers or [_start(function, [])]
            found = _ask(workers[0], item, seconds(item))
            if isinstance(found, Lost):
                _end(workers)
                workers = []
            yield found
    finally:
        _end(workers)


def _ask(worker: _Worker, item: Any, seconds: float) -> Any:
    try:
        worker.connection.send(item)
        if not worker.connection.poll(seconds):
            return Lost(f"did not end within {seconds:.0f} s")
        answer = worker.connection.recv()
    except DEATHS:
        return Lost(worker.death("ended"))
    return _result(*answer)


def in_order(function: Callable[[Item], Result], items: Iterable[Item], processes: int, work: str) -> Iterator[Result]:
    """Applies a function to items, and gives the results in their order. The number of processes changes nothing but the time.

    With one process it is `map`. Otherwise forks of this process do the work, one item at a time each.

    `function` gets an item. Its exceptions are raised here. `items`: picklable; read one by one, in this process. `work`: what
    the processes do, as in "encode documents", for the message. Raises UserError if a process was killed.
    """
    if processes == 1:
        yield from map(function, items)
        return
    workers: list[_Worker] = []
    try:
        for _ in range(processes):
            workers.append(_start(function, workers))
        yield from _deal(workers, iter(items), work)
    finally:
        _end(workers)


def _start(function: Callable, others: list[_Worker]) -> _Worker:
    context = multiprocessing.get_context("fork")
    own, other = context.Pipe()
    # A fork inherits the ends of pipes of this process. As long as it holds one, no fork notices that this process ended.
    inherited = [*(worker.connection for worker in others), own]
    process = context.Process(target=_work, args=(function, other, inherited), daemon=True)
    process.start()
    other.close()
    return _Worker(process, own)


def _end(workers: list[_Worker]) -> None:
    for worker in workers:
        worker.process.kill()  # a fork that just starts has this process's handlers, which would note SIGTERM only
    for worker in workers:
        worker.process.join()
        worker.connection.close()


def _work(function: Callable, connection: Connection, inherited: list[Connection]) -> None:
    """Works in the fork: answers each item with whether it succeeded, and the result or the exception."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process; the first one ends the others
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # A fork lacks the threads with which its parent has encoded texts, and would wait for them without end.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    for end in inherited:
        end.close()
    with contextlib.suppress(EOFError, OSError):  # the first process has ended
        while True:
            item = connection.recv()
            try:
                connection.send((True, function(item)))
            except BaseException as error:
                # A panic of a library in Rust is no `Exception`, and its class cannot be imported.
                panic = RuntimeError(f"{type(error).__name__}: {error}")
                failure = error if isinstance(error, Exception) else panic
                failure.add_note(f"In another process:\n{traceback.format_exc()}")
                connection.send((False, failure))


def _result(succeeded: bool, found: Any) -> Any:
    """Returns a result of a fork. An exception of the function is raised here."""
    if not succeeded:
        raise found
    return found


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
                answer = worker.connection.recv()
            results[number] = _result(*answer)
            idle.append(worker)
        while done in results:
            yield results.pop(done)
            done += 1


@contextlib.contextmanager
def _deaths_told(worker: _Worker, work: str) -> Iterator[None]:
    try:
        yield
    except DEATHS as error:
        raise UserError(
            f"One of the processes that {work} {worker.death('killed')}. If nobody ended it, the memory was used up: use fewer"
            " processes, or give the job more memory."
        ) from error
