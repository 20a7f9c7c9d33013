"""A signal ends a command, also one whose exception got lost."""

import re
import signal
import subprocess
import sys
import time

import pytest

PROGRAM = """
import os, signal, sys, time, weakref
from pathlib import Path
import click
from ffkv import cli
from ffkv.base import signals

signals.AGAIN = 0.2
signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background of a script it is ignored

class Thing:
    pass

def in_a_callback(number):
    thing = Thing()
    kept = weakref.ref(thing, lambda _: os.kill(os.getpid(), number))
    del thing

def as_another_error(number):
    try:
        os.kill(os.getpid(), number)
        time.sleep(1)
    except BaseException:
        raise AttributeError("what C code made of it") from None

def swallowed(number):
    try:
        os.kill(os.getpid(), number)
        time.sleep(1)
    except BaseException:
        pass

def while_it_ends(number):
    try:
        os.kill(os.getpid(), number)
        time.sleep(1)
    finally:  # a person presses Ctrl-C again and again
        for _ in range(5):
            os.kill(os.getpid(), number)
            time.sleep(0.1)
        print("cleaned up", flush=True)

def command(standalone_mode):
    try:
        globals()[sys.argv[1]](int(sys.argv[2]))
        for _ in range(100):
            time.sleep(0.1)
        print("went on to its end")
    except KeyboardInterrupt as error:  # as click has it
        raise click.Abort from error

cli.ffkv = command
cli.main()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("lost", ["in_a_callback", "as_another_error", "swallowed", "while_it_ends"])
def test_a_signal_is_not_lost(lost, number):
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-c", PROGRAM, lost, str(number.value)], capture_output=True, text=True)
    assert done.returncode == (1 if number == signal.SIGINT else 143)
    assert done.stdout == ("cleaned up\n" if lost == "while_it_ends" else "")
    told = number == signal.SIGINT or lost == "as_another_error"
    assert re.sub(r"\x1b\S*m", "", done.stderr) == ("ffkv: stopped.\n" if told else "")
    assert time.monotonic() - started < 8  # the command alone would take ten


LOCKING = """
import os, signal, sys, threading
from snakemake.scheduling.job_scheduler import JobScheduler
from ffkv.base.signals import handle_apart

scheduler = object.__new__(JobScheduler)
scheduler._lock, scheduler._open_jobs, scheduler._user_kill = threading.Lock(), threading.Semaphore(0), None
signal.signal(signal.SIGTERM, scheduler.exit_gracefully)
handle_apart(signal.SIGTERM)
with scheduler._lock:  # as while it handles a failed step
    os.kill(os.getpid(), signal.SIGTERM)
    print("goes on", flush=True)
scheduler._open_jobs.acquire()
print(scheduler._user_kill)
"""


def test_snakemake_does_not_wait_for_itself():
    done = subprocess.run([sys.executable, "-c", LOCKING], capture_output=True, text=True, timeout=60)
    assert done.stdout == "goes on\ngraceful\n"
