"""A function on items in forks: the results in order, and every way in which it can end; what crashes or hangs in a fork of its own costs one result, and no more."""

import os
import signal
import subprocess
import sys
import time
from itertools import count, islice

import psutil
import pytest
from support import refused

from ffkv.base.errors import UserError
from ffkv.base.process.workers import Lost, apart, in_order

EARLIER: set[psutil.Process] = set()


@pytest.fixture(autouse=True, scope="module")
def note_earlier_processes():
    """Those that Python keeps, such as the tracker of multiprocessing."""
    EARLIER.update(psutil.Process().children(recursive=True))


def children() -> list[psutil.Process]:
    """The processes that this one started and that have not ended, but for what other tests started before."""
    found = set(psutil.Process().children(recursive=True)) - EARLIER
    return [one for one in found if one.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize("processes", [1, 2, 5])
def test_results_come_in_the_order_of_the_items(processes):
    def slow_at_first(number):
        time.sleep(0.05 if number < 3 else 0)
        return number, os.getpid()

    found = list(in_order(slow_at_first, range(40), processes, "wait"))
    assert [number for number, _ in found] == list(range(40))
    assert len({process for _, process in found} - {os.getpid()}) == (processes if processes > 1 else 0)
    assert children() == []


@pytest.mark.parametrize("processes", [1, 3])
def test_no_item_gives_no_result(processes):
    assert list(in_order(str, [], processes, "wait")) == []


def test_processes_that_hardly_started_end_too():
    """In a command of ffkv, whose handler of SIGTERM the processes inherit. Without a result they are told to end at once."""
    code = """
from ffkv.base.signals import end_in_good_order
from ffkv.base.process.workers import in_order
end_in_good_order()
for _ in range(100):
    assert list(in_order(str, [], 4, "wait")) == []
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_large_items_and_results_block_nobody():
    found = in_order(lambda data: data * 2, (bytes([n]) * 3_000_000 for n in range(6)), 2, "copy")
    assert [(data[0], len(data)) for data in found] == [(n, 6_000_000) for n in range(6)]


def test_items_are_read_as_they_are_needed():
    assert list(islice(in_order(abs, count(), 2, "count"), 5)) == [0, 1, 2, 3, 4]
    assert children() == []


@pytest.mark.parametrize("error", [UserError("a.txt, row 3: is no text"), ZeroDivisionError("by zero")])
def test_an_error_of_a_process_is_raised_here(error):
    def fail(number):
        if number == 3:
            raise error
        return number

    with pytest.raises(type(error), match=str(error)):
        list(in_order(fail, range(100), 2, "fail"))
    assert children() == []


def test_an_error_of_the_items_ends_the_processes():
    def items():
        yield 1
        raise UserError("the file is damaged")

    with refused("the file is damaged"):
        list(in_order(abs, items(), 2, "wait"))
    assert children() == []


@pytest.mark.parametrize(
    "end, how",
    [
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "was ended by SIGKILL"),
        (lambda: os._exit(3), "ended with exit code 3"),
    ],
)
def test_a_process_that_is_killed_is_told_in_one_message(end, how):
    def work(number):
        if number == 2:
            end()
        return number

    with refused(f"One of the processes that encode documents {how}.*use fewer processes"):
        list(in_order(work, range(9), 2, "encode documents"))
    assert children() == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_process_outlives_the_first_one(number):
    """However it ends: idle processes notice that nobody sends them items, busy ones that nobody takes their results."""
    script = (
        "import signal, time; from ffkv.base.signals import end_in_good_order\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored if the tests run in the background of a script\n"
        "end_in_good_order()\n"
        "from ffkv.base.process.workers import in_order\n"
        "for one in in_order(lambda n: time.sleep(0.01 if n % 2 else 0.3), iter(int, 1), 3, 'wait'):\n"
        "    print('.', flush=True)"
    )
    first = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert first.stdout.readline() == ".\n"
    processes = psutil.Process(first.pid).children()
    assert len(processes) == 3
    first.send_signal(number)
    first.wait(20)
    _, alive = psutil.wait_procs(processes, timeout=20)
    assert not alive


class Panic(BaseException):
    """What libraries in Rust raise where their own code fails is no `Exception`."""


class Lacking:
    """A result for which there is no memory when it is sent."""

    def __reduce__(self):
        raise MemoryError("9 GiB")


def act(item):
    if item == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    if item == "leave":
        os._exit(3)
    if item == "hang":
        time.sleep(60)
    if item == "raise":
        raise ValueError("not so")
    if item == "panic":
        raise Panic("no memory")
    if item == "lack":
        return Lacking()
    return item, os.getpid()


def test_results_come_in_order_and_another_fork_goes_on_after_a_loss():
    found = list(apart(act, ["a", "b", "crash", "c", "leave", "hang", "d"], lambda item: 0.2 if item == "hang" else 30))
    assert [one for one in found if isinstance(one, Lost)] == [
        Lost("was ended by SIGKILL"),
        Lost("ended with exit code 3"),
        Lost("did not end within 0 s"),
    ]
    names, processes = zip(*(one for one in found if not isinstance(one, Lost)))
    assert names == ("a", "b", "c", "d") and len({os.getpid(), *processes}) == 4


def test_an_exception_is_raised_here():
    with pytest.raises(ValueError, match="not so"):
        list(apart(act, ["raise"], lambda _: 30))


@pytest.mark.parametrize(
    ("item", "kind", "words"), [("panic", RuntimeError, "Panic: no memory"), ("lack", MemoryError, "9 GiB")]
)
def test_what_no_result_can_be_sent_of_is_raised_here(item, kind, words, capfd):
    with pytest.raises(kind, match=words):
        list(apart(act, [item], lambda _: 30))
    assert "Traceback" not in capfd.readouterr().err


def test_no_item_needs_no_fork():
    assert list(apart(act, [], lambda _: 30)) == []
