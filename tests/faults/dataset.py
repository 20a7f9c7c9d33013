"""As a program: writes an HDF5 file while requests for memory fail, each once; prints what became of it as JSON. Needs `library.c` preloaded.

Without `FFKV_FULL` every third request fails.
"""

import json
import os
import sys
import traceback
from pathlib import Path

import numpy as np
from faults.injector import FAULTS, Injector

from ffkv.base.files import hdf5

ROWS = np.arange(60_000, dtype=np.float32).reshape(300, 200) % 7


def write(path: Path) -> None:
    """Writes a dataset whole, and two in parts, each by an object of h5py that Python gives back at once."""
    with hdf5.create(path, "test", {}) as file:
        hdf5.put(file, "whole", ROWS, ["row", "column"], "1", "rows", compressed=True)
        for name, packed in (("packed", True), ("parts", False)):
            hdf5.allocate(file, name, ROWS.shape, ROWS.dtype, ["row", "column"], "1", "rows", compressed=packed)
            file[name][:100] = ROWS[:100]
            file[name][100:] = ROWS[100:]


def attempt(path: Path) -> None:
    """In a fork: ends with 0 if it was written, and with 1 if an error was raised."""
    try:
        write(path)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def holds(path: Path) -> bool:
    """Whether a file has all rows. HDF5 leaves a chunk unpacked where packing it fails, so that bytes may differ."""
    with hdf5.open(path, "test") as file:
        return all(np.array_equal(file[name][...], ROWS) for name in ("whole", "packed", "parts"))


def main() -> None:
    """Tries the requests."""
    step = 1 if "FFKV_FULL" in os.environ else 3
    injector, place, number, calls = Injector(sys.argv[1]), Path(sys.argv[2]), 0, 0
    while number <= calls:
        path = place / str(number) / "file.h5"
        path.parent.mkdir()
        injector.arm(place, FAULTS["allocation"], number)
        child = os.fork()
        if child == 0:
            attempt(path)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        count, failed = injector.disarm()
        calls = calls if number else count
        there = path.exists()
        print(
            json.dumps({"number": number, "call": failed, "code": code, "there": there, "whole": there and holds(path)})
        )
        number += step


if __name__ == "__main__":
    main()
