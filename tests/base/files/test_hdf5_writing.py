"""HDF5 files that cannot be written: full disks, missing rights, signals. No half file stays."""

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from support import refused

from ffkv.base.files import hdf5
from ffkv.base.signals import TOLD, end_in_good_order, told_no_more

from .conftest import NUMBERS


def test_a_defect_in_the_block_stays_a_defect(path):
    with pytest.raises(ZeroDivisionError), hdf5.open(path, "things"):
        raise ZeroDivisionError


def test_a_folder_without_the_right_to_write(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(hdf5, "WriteTarget", refuse)
    with refused(r"a\.h5 cannot be written: Permission denied"), hdf5.create(tmp_path / "a.h5", "things", {}):
        pass


FILL = """
import resource, signal, sys
import numpy as np
from ffkv.base.files import hdf5
from ffkv.base.errors import UserError
from ffkv.base.signals import TOLD, end_in_good_order
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
limit, count = int(sys.argv[2]), int(sys.argv[3])
unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, unlimited[1]))
try:
    with hdf5.create(sys.argv[1], "things", {}) as file:
        hdf5.put(file, "numbers", np.random.rand(count), ["row"], "1", "numbers")
except UserError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)  # whoever measures coverage writes at the end
"""


@pytest.mark.parametrize("limit, count", [(0, 1), (100, 1), (100_000, 50_000), (100_000, 1_000_000)])
def test_a_disk_that_fills_up_leaves_no_file_and_does_not_crash(tmp_path, limit, count):
    """A limit on the size of files acts like a full disk; HDF5 holds the last megabyte of a dataset until it is closed."""
    done = subprocess.run(
        [sys.executable, "-c", FILL, str(tmp_path / "a.h5"), str(limit), str(count)], capture_output=True, text=True
    )
    assert "a.h5 cannot be written: File too large" in done.stdout
    assert (done.returncode, done.stderr) == (0, "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("write", [1, 2, 5, 20])
def test_a_signal_while_hdf5_writes_loses_no_data(tmp_path, monkeypatch, number, write):
    """HDF5 would drop an exception that is raised while it calls back, and with it what it wanted to write."""
    before = [signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM)]
    came = []

    def view(data):
        came.append(data)
        if len(came) == write:
            os.kill(os.getpid(), number)
        return memoryview(data)

    monkeypatch.setattr(hdf5, "memoryview", view, raising=False)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background of a script it is ignored
    end_in_good_order()
    try:
        with pytest.raises((SystemExit, KeyboardInterrupt)), hdf5.create(tmp_path / "a.h5", "things", {}) as file:
            for name in "abcdefgh":
                hdf5.put(file, name, NUMBERS, ["row", "column"], "1", "numbers")
                file.flush()
            time.sleep(5)  # ended by the signal
        assert len(came) > write
    finally:
        told_no_more()
        TOLD.clear()
        for one, handler in zip((signal.SIGTERM, signal.SIGINT, signal.SIGALRM), before):
            signal.signal(one, handler)
    assert list(tmp_path.iterdir()) == []


class FullDisk(hdf5.WriteTarget):
    """A file on a disk that has no space left."""

    def write(self, data):
        self.failure = self.failure or OSError(28, "No space left on device")
        return len(data)


def test_a_write_that_failed_is_told_before_what_hdf5_makes_of_it(tmp_path, path, monkeypatch):
    """On a full disk HDF5 reads its own half-written chunk back. That must not be blamed on the input."""
    with hdf5.open(path, "things"):
        monkeypatch.setattr(hdf5, "WriteTarget", FullDisk)
        with refused(r"copy\.h5 does not fit"), hdf5.create(tmp_path / "copy.h5", "things", {}) as file:
            hdf5.allocate(file, "numbers", (3_000_000,), float, ["row"], "1", "numbers")[...] = np.random.rand(
                3_000_000
            )
            with hdf5.open(path, "things"):
                file["numbers"][...]
                raise OSError("Can't synchronously read data (filter returned failure during read)")


def test_reads_that_give_less_than_asked_for_go_on():
    """Of a pipe: it gives what is there."""
    reads, writes = os.pipe()
    os.write(writes, b"abc")
    late = threading.Timer(0.1, lambda: (os.write(writes, b"def"), os.close(writes)))
    late.start()
    filled = bytearray(8)
    with hdf5.WriteTarget(reads, "r") as target:
        assert target.readinto(filled) == 6
    assert filled == b"abcdef\0\0"
    late.join()
