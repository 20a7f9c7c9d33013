"""A dataclass describes a file: what it writes comes back, whole or by pieces, and takes the room that it says."""

from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from support import refused, tries

from ffkv.base.files import datasets, hdf5
from ffkv.base.files.datasets import Texts, dataset, group, texts
from ffkv.base.files.hdf5 import Pieces


@dataclass(frozen=True)
class Side:
    count: np.ndarray = dataset("row", "int32", unit="row", about="how many")


@dataclass(frozen=True)
class Things(Side):
    score: np.ndarray = dataset("row rank", "float32", unit="nat", about="scores", chunks={"row": 7})
    starts: np.ndarray = dataset("row_boundary", "int64", unit="row", about="starts", name="row_offset", lazy=True)
    names: Texts = texts("row", about="the rows' names", name="name")
    notes: Texts = texts("note", about="remarks", lazy=True)
    attributes: dict[str, Any]
    extra: np.ndarray | None = dataset("row", "bool", unit="1", about="rarely there", optional=True)
    negative: Side | None = group(Side, about="negative side")


NOTES = ["", "ä", "b"]


def things(rows: int, **more) -> Things:
    return Things(
        count=np.arange(rows),
        score=np.arange(rows * 3.0).reshape(rows, 3),
        starts=np.arange(rows + 1),
        names=[f"row {row}" for row in range(rows)],
        notes=NOTES,
        attributes={},
        **more,
    )


def write(path, record):
    with hdf5.create(path, "things", {}) as file:
        datasets.write(file, record)
    return path


def read(path):
    with hdf5.open(path, "things") as file:
        return datasets.read(file, Things, attributes=dict(file.attrs))


@pytest.mark.parametrize("rows", [0, 1, 20])
@pytest.mark.parametrize("more", [{}, {"extra": True, "negative": True}])
def test_a_record_comes_back_as_it_was(tmp_path, rows, more):
    values = {"extra": np.arange(rows) % 2 == 0, "negative": Side(np.arange(rows) * 2)}
    written = things(rows, **{name: values[name] for name in more})
    back = read(write(tmp_path / "a.h5", written))
    for name in ("count", "score", "starts"):
        np.testing.assert_array_equal(np.asarray(getattr(back, name)), getattr(written, name))
    assert (back.count.dtype, back.score.dtype) == (np.int32, np.float32)
    assert (list(back.names), list(back.notes)) == (written.names, NOTES)
    assert isinstance(back.starts, Pieces)
    assert back.attributes["kind"] == "things"
    if more:
        np.testing.assert_array_equal(back.extra, values["extra"])
        np.testing.assert_array_equal(back.negative.count, values["negative"].count)
    else:
        assert (back.extra, back.negative) == (None, None)


def test_each_dataset_says_what_it_is(tmp_path):
    path = write(tmp_path / "a.h5", things(20, negative=Side(np.arange(20))))
    with hdf5.open(path, "things") as file:
        assert dict(file["score"].attrs)["description"] == "scores"
        assert file["score"].attrs["unit"] == "nat"
        assert file["score"].chunks == (7, 3)
        assert file["negative/count"].attrs["description"] == "negative side: how many"
        assert file["name_offset"].attrs["description"] == "where each row's part of `name` starts"


def test_values_that_would_lose_digits_are_refused(tmp_path):
    with pytest.raises(TypeError):
        write(tmp_path / "a.h5", Side(np.array([1.5])))


@pytest.mark.parametrize("rows", [0, 1, 6, 7, 8, 300_000])
def test_the_bytes_on_disk_are_those_foretold(tmp_path, rows):
    record = things(rows, negative=Side(np.arange(rows)))
    path = write(tmp_path / "a.h5", record)
    sizes = {"row": rows, "rank": 3, "note": 3, "notes_byte": 3, "name_byte": sum(map(len, record.names))}
    stored = 0

    def add(name, item):
        nonlocal stored
        stored += item.id.get_storage_size() if isinstance(item, h5py.Dataset) else 0

    with hdf5.open(path, "things") as file:
        file.visititems(add)
    assert datasets.stored_bytes(Things, sizes, without=["extra"]) == stored
    without = datasets.stored_bytes(Things, sizes, without=["extra", "negative"])
    assert without < stored or rows == 0


def test_room_is_filled_piece_by_piece(tmp_path):
    with hdf5.create(tmp_path / "a.h5", "side", {}) as file:
        datasets.allocate(file, Side, {"row": 5})
        file["count"][:3], file["count"][3:] = 1, 2
    with hdf5.open(tmp_path / "a.h5", "side") as file:
        assert datasets.read(file, Side).count.tolist() == [1, 1, 1, 2, 2]


@dataclass(frozen=True)
class Remarks:
    text: Texts = texts("sentence", about="texts")


TEXTS = st.lists(
    st.text(st.characters(blacklist_categories=["Cs"]), max_size=8)
    | st.sampled_from(["", "\0", "a\0b", "👩‍👧", "\u2028"]),
    max_size=6,
)


@given(TEXTS)
@hypothesis_settings(max_examples=tries(30))
def test_texts_come_back_to_the_letter(tmp_path_factory, written):
    path = tmp_path_factory.mktemp("texts") / "a.h5"
    write(path, Remarks(written))
    with hdf5.open(path, "things") as file:
        back = datasets.read(file, Remarks).text
    assert list(back) == written
    assert len(back) == len(written)
    for outside in (-1, len(written)):
        with pytest.raises(IndexError):
            back[outside]


@given(st.integers(0, 30), st.integers(1, 7), st.data())
@hypothesis_settings(max_examples=tries(60))
def test_pieces_are_read_as_the_whole(tmp_path_factory, length, chunk, data):
    path = tmp_path_factory.mktemp("pieces") / "pieces.h5"
    values = np.arange(length, dtype=np.int32) * 3
    with hdf5.create(path, "corpus", {}) as file:
        hdf5.put(file, "one", values, ["token"], "token", "numbers", chunks=[min(chunk, max(1, length))])
    found = Pieces(h5py.File(path, "r")["one"])
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
        hdf5.put(file, "one", np.full(100_000, 7, np.int32), ["token"], "token", "numbers", chunks=[50_000])
    found = Pieces(h5py.File(path, "r")["one"])
    assert found[0] == 7
    whole = bytearray(path.read_bytes())
    where = whole.rfind(np.full(1000, 7, np.int32).tobytes())
    whole[where : where + 8] = b"overhear"
    path.write_bytes(whole)
    with refused(r"pieces\.h5 is not what ffkv wrote"):
        found[99_000]
