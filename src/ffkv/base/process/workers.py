"""Runs a function on items in forks of this process: in several at a time, or in one that may crash or hang.

A fork gets its items through a pipe, one at a time, so that the function need not be picklable. Forks end when this
process does, however it ends.
"""

import contextlib
import multiprocessing
import os
import signal
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar

from ffkv.base.errors import UserError

Item = TypeVar("Item")
Result = TypeVar("Result")


class Lost(NamedTuple):
    """No result: the item ended the fork."""

    how: str  # such as "was ended by SIGSEGV"


class _Worker(NamedTuple):
    """A fork, and this process's end of the pipe to it."""

    process: Any
    connection: Connection

    def ask(self, item: Any, seconds: float | None = None) -> Any:
        """Returns the function's result for an item, or `Lost`. Its exception is raised here. `seconds`: None for no limit."""
        try:
            self.connection.send(item)
            if not self.connection.poll(seconds):
                return Lost(f"did not end within {seconds:.0f} s")
            succeeded, found = self.connection.recv()
        except (EOFError, ConnectionError):  # what a pipe to a fork that has ended raises
            self.process.join()
            code = self.process.exitcode
            return Lost(f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}")
        if not succeeded:
            raise found
        return found


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
            found = workers[0].ask(item, seconds(item))
            if isinstance(found, Lost):
                _end(workers)
                workers = []
            yield found
    finally:
        _end(workers)


def in_order(function: Callable[[Item], Result], items: Iterable[Item], processes: int, work: str) -> Iterator[Result]:
    """Applies a function to items, and gives the results in their order. The number of processes changes nothing but the time.

    With one process it is `map`. Otherwise forks of this process do the work, one item at a time each.

    `function` gets an item. Its exceptions are raised here. `items`: picklable; read one by one, in this process. `work`: what
    the processes do, as in "encode documents", for the message. Raises UserError if a process was killed.
    """
    if processes == 1:
        yield from map(function, items)
        return
    workers, idle, asked = list[_Worker](), SimpleQueue[_Worker](), deque[Future]()

    def ask(item: Item) -> Any:
        worker = idle.get()
        try:
            return worker.ask(item)
        finally:
            idle.put(worker)

    def result(answer: Future) -> Any:
        if isinstance(found := answer.result(), Lost):
            raise UserError(
                f"One of the processes that {work} {found.how}. If nobody ended it, the memory was used up: use fewer"
                " processes, or give the job more memory."
            )
        return found

    with ThreadPoolExecutor(processes) as threads:  # they start behind the forks: one waits for each fork
        try:
            for _ in range(processes):
                workers.append(_start(function, workers))
                idle.put(workers[-1])
            for item in items:
                asked.append(threads.submit(ask, item))
                if len(asked) == 2 * processes:  # so that a fork has its next item at once
                    yield result(asked.popleft())
            yield from map(result, asked)
        finally:
            threads.shutdown(wait=False, cancel_futures=True)
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
