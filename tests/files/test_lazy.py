"""What is read by pieces is what reading it whole gives, and damage is refused when it is met."""

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from support import tries

from ffkv.base.errors import UserError
from ffkv.base.files import hdf5
from ffkv.base.files.lazy import Pieces


@given(st.integers(0, 30), st.integers(1, 7), st.data())
@hypothesis_settings(max_examples=tries(60))
def test_pieces_are_read_as_the_whole(tmp_path_factory, length, chunk, data):
    path = tmp_path_factory.mktemp("pieces") / "pieces.h5"
    values = np.arange(length, dtype=np.int32) * 3
    with hdf5.create(path, "corpus", {}) as file:
        hdf5.put(file, "one", values, ["token"], "token", "numbers", [min(chunk, max(1, length))])
    found = Pieces(h5py.File(path, "r"), "one")
    assert (len(found), np.asarray(found).tolist()) == (length, values.tolist())
    start, stop = sorted(data.draw(st.tuples(st.integers(0, length), st.integers(0, length))))
    assert found[start:stop].tolist() == values[start:stop].tolist()
    if length:
        at = np.array(data.draw(st.lists(st.integers(0, length - 1))), int).reshape(-1, 1)
        assert found[at].tolist() == values[at].tolist()
        assert [found[number] for number in at[:, 0].tolist()] == values[at[:, 0]].tolist()


def test_a_piece_that_was_damaged_is_refused_when_it_is_read(tmp_path):
    path = tmp_path / "pieces.h5"
    with hdf5.create(path, "corpus", {}) as file:
        hdf5.put(file, "one", np.full(100_000, 7, np.int32), ["token"], "token", "numbers", [50_000])
    found = Pieces(h5py.File(path, "r"), "one")
    assert found[0] == 7
    whole = bytearray(path.read_bytes())
    where = whole.rfind(np.full(1000, 7, np.int32).tobytes())
    whole[where : where + 8] = b"overhear"
    path.write_bytes(whole)
    with pytest.raises(UserError, match=r"pieces\.h5 is not what ffkv wrote"):
        found[99_000]
