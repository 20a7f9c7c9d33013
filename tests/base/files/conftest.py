"""A file that the tests of files write, read and damage."""

import numpy as np
import pytest

from ffkv.base.files import hdf5

NUMBERS = np.arange(60_000, dtype=np.float32).reshape(300, 200)
HASHES = {"model_hash": "m1", "tokenizer_hash": "t1"}


def write(path):
    with hdf5.create(path, "things", {**HASHES, "settings": {"b": 1, "a": [2]}, "seed": 3}) as file:
        hdf5.put(file, "numbers", NUMBERS, ["row", "column"], "nat", "some numbers", chunks=[50, 200])
        hdf5.put(file, "rows", np.arange(300), ["row"], "1", "which row")
    return path


@pytest.fixture
def path(tmp_path):
    """The file."""
    return write(tmp_path / "things.h5")
