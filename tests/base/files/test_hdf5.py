"""HDF5 files: what is written is read back, any reader opens it, and damage never becomes numbers."""

import errno
import itertools
import json
import subprocess
import sys
import time
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
from support import FULL

from ffkv.base.errors import UserError
from ffkv.base.files import hdf5, stored
from ffkv.base.files.stored import sum_path, unreadable

from .conftest import HASHES, NUMBERS, write


def numbers(path):
    with hdf5.open(path, "things", HASHES) as file:
        return file["numbers"][...]


@pytest.fixture
def alone(path):
    """The same without its sum: as other programs hand a file on."""
    sum_path(path).unlink()
    return path


def test_arrays_come_back_as_they_were(subtests, tmp_path):
    shapes = [(5,), (3, 4), (2, 3, 4), (0,), (0, 4), (4, 0)]
    for dtype, shape in itertools.product(["u1", "i4", "i8", "f2", "f4", "f8", "bool"], shapes):
        with subtests.test(dtype=dtype, shape=shape):
            values = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
            with hdf5.create(tmp_path / "a.h5", "things", {}) as file:
                hdf5.put(file, "values", values, ["a", "b", "c"][: len(shape)], "1", "numbers")
            with hdf5.open(tmp_path / "a.h5", "things") as file:
                back = file["values"][...]
                assert back.dtype == values.dtype
                np.testing.assert_array_equal(back, values)


def test_every_quantity_says_what_it_is(path):
    with hdf5.open(path, "things") as file:
        data = file["numbers"]
        assert (data.attrs["unit"], data.attrs["description"]) == ("nat", "some numbers")
        assert [dimension.label or next(iter(dimension.keys())) for dimension in data.dims] == ["row", "column"]
        assert data.fletcher32
        assert file["rows"].dims[0][0] == data.dims[0][0]  # one dimension, shared


def test_axes_of_one_name_have_one_length(tmp_path):
    with pytest.raises(TypeError, match="Shapes do not match"), hdf5.create(tmp_path / "a.h5", "things", {}) as file:
        hdf5.put(file, "a", np.zeros(3), ["row"], "1", "three")
        hdf5.put(file, "b", np.zeros(4), ["row"], "1", "four")
    assert list(tmp_path.iterdir()) == []


def test_a_file_says_what_made_it(path):
    with hdf5.open(path, "things") as file:
        assert (file.attrs["format"], file.attrs["kind"], file.attrs["seed"]) == (hdf5.FORMAT, "things", 3)
        assert json.loads(file.attrs["settings"]) == {"a": [2], "b": 1}
        assert {"ffkv", "python", "torch"} <= set(json.loads(file.attrs["versions"]))
        assert {name: file.attrs[name] for name in HASHES} == HASHES


def test_any_reader_opens_it(path):
    with h5py.File(path) as file:
        np.testing.assert_array_equal(file["numbers"], NUMBERS)


def test_the_same_datasets_have_the_same_bytes(tmp_path, path):
    assert write(tmp_path / "again.h5").read_bytes() == path.read_bytes()


def test_a_missing_file_names_the_remedy(tmp_path):
    with pytest.raises(UserError, match=r"none\.h5 does not exist: run the step that makes it first"):
        numbers(tmp_path / "none.h5")
    with pytest.raises(UserError, match=r"cannot be read: it is a folder\. Name a file"):
        numbers(tmp_path)


@pytest.mark.parametrize("content", [b"", b"text", b"\x89HDF\r\n\x1a\n"])
def test_what_is_no_hdf5_file_is_refused(tmp_path, content):
    (tmp_path / "a.h5").write_bytes(content)
    for path in (tmp_path / "a.h5", tmp_path):
        with pytest.raises(UserError, match=f"{path.name} cannot be read"):
            numbers(path)


@pytest.mark.parametrize("share", [0.001, 0.01, 0.1, 0.5, 0.9, 0.99, 0.9999])
def test_a_truncated_file_is_refused(alone, share):
    content = alone.read_bytes()
    alone.write_bytes(content[: int(share * len(content))])
    with pytest.raises(UserError, match=r"things\.h5 cannot be read"):
        numbers(alone)


def heaps(content: bytes) -> set[int]:
    """The bytes of HDF5's global heaps: texts of attributes, which only `checksum` guards, and links to dimensions."""
    found, at = set(), content.find(b"GCOL")
    while at >= 0:
        size = int.from_bytes(content[at + 8 : at + 16], "little")
        found |= set(range(at, at + size))
        at = content.find(b"GCOL", at + size)
    return found


def everything(path):
    """All that a reader gets: attributes and numbers."""
    with hdf5.open(path, "things", HASHES) as file:
        attributes = {name: str(value) for name, value in file.attrs.items()}
        return attributes, {name: file[name][...].tobytes() for name in ("numbers", "rows")}


@pytest.mark.slow
@pytest.mark.many
def test_no_flipped_byte_in_a_file_becomes_another_number(tmp_path):
    """Without its sum, as of a file that is too large to be compared whole: the checksums inside are enough."""
    path = tmp_path / "things.h5"
    with hdf5.create(path, "things", {**HASHES, "settings": {"a": [2]}, "seed": 3}) as file:
        hdf5.put(file, "numbers", NUMBERS[:20, :5], ["row", "column"], "nat", "some numbers", chunks=[7, 5])
        hdf5.put(file, "rows", np.arange(20), ["row"], "1", "which row")
    sum_path(path).unlink()
    content, whole = path.read_bytes(), everything(path)
    refused = 0
    # A damaged structure of a heap may make the HDF5 library search it for ever; it never makes it give numbers.
    places = sorted(set(range(len(content))) - heaps(content))[:: 1 if FULL else 5]
    for place in places:
        path.write_bytes(content[:place] + bytes([content[place] ^ (place % 255 + 1)]) + content[place + 1 :])
        try:
            assert everything(path) == whole, place
        except UserError:
            refused += 1
    assert refused > (1000 if FULL else 200)


def test_a_flipped_byte_in_the_text_of_an_attribute_is_found(path):
    sum_path(path).unlink()
    content = path.read_bytes()
    for text in (b'{"a": [2], "b": 1}', b"things", b'"ffkv"'):
        place = content.index(text) + 2
        path.write_bytes(content[:place] + b"9" + content[place + 1 :])
        with pytest.raises(UserError, match="its attributes do not fit their checksum"):
            everything(path)


def test_a_file_of_another_kind_is_refused_by_name(path):
    with pytest.raises(UserError, match=r"things\.h5 holds things, not triggers"), hdf5.open(path, "triggers"):
        pass


@pytest.mark.parametrize("name, value", [("format", 999), ("format", "1"), ("kind", None)])
def test_another_format_is_refused(alone, name, value):
    with h5py.File(alone, "r+") as file:
        del file.attrs[name]
        if value is not None:
            file.attrs[name] = value
    with pytest.raises(UserError, match=f"is not of this ffkv's file format {hdf5.FORMAT}"):
        numbers(alone)


def test_a_file_of_somebody_else_is_refused(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = [1]
    with pytest.raises(UserError, match="is not of this ffkv's file format"):
        numbers(tmp_path / "a.h5")


@pytest.mark.parametrize("name", ["model", "tokenizer"])
def test_a_file_of_another_model_or_tokenizer_is_refused_by_name(path, name):
    message, other = rf"belongs to another {name} \({name[0]}1, expected other\)", {f"{name}_hash": "other"}
    with pytest.raises(UserError, match=message), hdf5.open(path, "things", {**HASHES, **other}):
        pass


def test_only_identities_that_both_have_are_compared(path):
    with hdf5.open(path, "things", {"corpus_hash": "c", "seed": 99}) as file:
        assert file["rows"].shape == (300,)


def test_a_file_of_links_has_the_same_bytes_at_any_time(tmp_path):
    """HDF5 notes the time at which a dataset was made, unless it is told not to."""
    with hdf5.create(tmp_path / "part.h5", "things", {}) as file:
        hdf5.put(file, "numbers", np.arange(6.0), ["row"], "1", "some numbers")
    contents = []
    for pause in (0, 1.1):  # seconds; HDF5 counts whole ones
        time.sleep(pause)
        with hdf5.create(tmp_path / "whole.h5", "things", {}) as file, h5py.File(tmp_path / "part.h5") as part:
            hdf5.link(
                file,
                "numbers",
                [part["numbers"].shape],
                part["numbers"].dtype,
                ["part.h5"],
                ["row"],
                0,
                "1",
                "some numbers",
            )
        contents.append((tmp_path / "whole.h5").read_bytes())
    assert contents[0] == contents[1]


def test_files_that_read_each_other_are_refused(tmp_path):
    """A file may read one beside it, but that one reads from folders alone. So no file leads back to itself."""
    for name, other in (("one.h5", "other.h5"), ("other.h5", "one.h5"), ("whole.h5", "part.h5")):
        with hdf5.create(tmp_path / name, "things", {}) as file:
            hdf5.link(file, "numbers", [(6,)], "f8", [other], ["row"], 0, "1", "some numbers")
    with hdf5.create(tmp_path / "part.h5", "things", {}) as file:
        hdf5.put(file, "numbers", np.arange(6.0), ["row"], "1", "some numbers")
    with hdf5.open(tmp_path / "whole.h5", "things") as file:
        assert file["numbers"][...].tolist() == [0, 1, 2, 3, 4, 5]
    for name, other in (("one.h5", "other.h5"), ("other.h5", "one.h5")):
        refused = f"{other} is not as ffkv writes it: it reads {name}, which does not lie in a folder beside it"
        with pytest.raises(UserError, match=refused), hdf5.open(tmp_path / name, "things"):
            pass


@pytest.mark.parametrize(
    "name, value", [("many", np.zeros(3)), ("texts", ["x"] * 3), ("long", np.bytes_(b"x" * (2**22 + 1)))]
)
def test_attributes_of_any_size_are_not_read(path, name, value):
    with h5py.File(path, "a") as file:
        copy = dict(file.attrs)
    with h5py.File(path, "w", libver="latest") as file:
        file.attrs.update(copy)
        file.attrs[name] = value
    sum_path(path).unlink()
    with pytest.raises(UserError, match="its attributes are not those of a file of ffkv"), hdf5.open(path, "things"):
        pass


def test_what_an_attribute_says_as_json_has_a_limit(path):
    deep = SimpleNamespace(attrs={"deep": "[" * 100_000})
    with pytest.raises(UserError, match="attribute deep cannot be read: it is nested"), hdf5.open(path, "things"):
        hdf5.parsed(deep, "deep")


def test_an_intact_file_is_never_to_be_deleted(path):
    with (
        pytest.raises(UserError, match=r"it is what ffkv wrote: its checksum fits\. Keep it") as told,
        hdf5.open(path, "things"),
    ):
        raise OSError("a memory error of the library")
    assert "elete" not in str(told.value)


@pytest.mark.parametrize("small", [True, False])  # a small file is compared with its checksum first
@pytest.mark.parametrize("end", ["close", "kill"])
def test_a_file_that_another_program_has_open_for_writing_is_named_as_that(path, monkeypatch, small, end):
    monkeypatch.setattr(hdf5, "SMALL", 2**20 if small else 0)
    program = f"import h5py, sys; file = h5py.File({str(path)!r}, 'a'); print(1, flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=-1, stdout=-1) as other:
        other.stdout.readline()
        for read in (lambda: hdf5.open(path, "things").__enter__(), lambda: hdf5.verify(path)):
            with pytest.raises(UserError, match="is open for writing in another program") as told:
                read()
            assert type(told.value) is UserError and "elete" not in str(told.value)
        if end == "kill":
            other.kill()
        else:
            other.stdin.close()
        other.wait()
    stored._digest_of.cache_clear()
    if end == "close":
        hdf5.verify(path)
    else:  # the mark stays
        with pytest.raises(UserError, match="h5clear -s"):
            hdf5.verify(path)


def test_a_file_system_without_locks_has_a_remedy(path):
    words = "Unable to synchronously open file (unable to lock file, errno = 37, error message = 'No locks available')"
    with pytest.raises(UserError, match="Set the environment variable HDF5_USE_FILE_LOCKING=FALSE") as told:
        raise unreadable(path, OSError(37, words))
    assert "elete" not in str(told.value)


def test_a_file_without_a_checksum_is_not_called_damaged(alone):
    with (
        pytest.raises(UserError, match="no checksum beside it, so ffkv cannot tell") as told,
        hdf5.open(alone, "things"),
    ):
        raise OSError("odd bytes")
    assert "elete" not in str(told.value)


def test_errors_of_other_libraries_are_not_taken_for_those_of_hdf5(path):
    """Both raise RuntimeError. HDF5 does where the disk does not give what it asks for."""
    with (
        pytest.raises(UserError, match=r"things\.h5 cannot be read \(Can't get info for object"),
        hdf5.open(path, None) as file,
    ):
        h5py.h5g.get_objinfo(file.id, b"nothing")
    with pytest.raises(RuntimeError, match="the model's"), hdf5.open(path, None):
        raise RuntimeError("the model's")


def test_an_output_that_is_a_folder_may_have_other_faults(tmp_path):
    """A model is a folder. What the system says of it is told."""
    assert "Input/output error" in str(unreadable(tmp_path, OSError(errno.EIO, "Input/output error")))
