"""A function on items in a fork: what crashes or hangs there costs one result, and no more."""

import os
import signal
import time

import pytest

from ffkv.base.process.apart import Lost, apart


def act(item):
    if item == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    if item == "leave":
        os._exit(3)
    if item == "hang":
        time.sleep(60)
    if item == "raise":
        raise ValueError("not so")
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


def test_no_item_needs_no_fork():
    assert list(apart(act, [], lambda _: 30)) == []
