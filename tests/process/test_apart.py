"""A function on items in a fork: what crashes or hangs there costs one result, and no more."""

import os
import signal
import time

import pytest

from ffkv.base.process.apart import Lost, apart


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
