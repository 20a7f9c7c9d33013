"""Damaged and hostile files of dictionaries: what a header claims and a file does not hold, cut-off files, changed bytes, pickles."""

import io
import json
import struct
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import refused, tries

from ffkv.base.errors import UserError
from tests.ffkv_dictionaries import made
from tests.ffkv_dictionaries.made import UNITS, D
from tests.ffkv_dictionaries.test_refusals import FORMS, GEMMA_2, HUGE, NPZ, SAELENS, of, read, sae


def header(path: Path, change: Callable[[dict], Any], length: int | None = None) -> None:
    """Changes the header of a file of safetensors alone."""
    content = path.read_bytes()
    end = 8 + struct.unpack("<Q", content[:8])[0]
    said = json.loads(content[8:end])
    change(said)
    text = json.dumps(said).encode()
    path.write_bytes(struct.pack("<Q", length or len(text)) + text + content[end:])


HEADERS = {
    "units": (lambda said: said["W_enc"].update(shape=[D, HUGE]), r"W_enc claims 6 × 1,099,511,627,776 numbers of F32"),
    "end": (
        lambda said: said["W_enc"].update(shape=[D, HUGE], data_offsets=[0, 24 * HUGE]),
        r"bytes 0 to 26,388,279,066,624",
    ),
    "overlap": (
        lambda said: said["b_dec"].update(data_offsets=said["b_enc"]["data_offsets"]),
        "b_dec claims 6 numbers",
    ),
    "below 0": (lambda said: said["b_dec"].update(data_offsets=[-24, 0]), "'b_dec' has no shape and place"),
    "no list": (lambda said: said["b_dec"].update(shape="6"), "'b_dec' has no shape and place"),
    "nothing": (lambda said: said["b_dec"].clear(), "damaged or of another form"),
    "no tensor": (lambda said: said.update(b_dec=3), "damaged or of another form"),
    "type": (lambda said: said["b_dec"].update(dtype="F33"), "b_dec is of type F33|damaged"),
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_that_claims_what_the_file_does_not_hold(name, tmp_path):
    made.saelens(tmp_path)
    change, message = HEADERS[name]
    header(tmp_path / SAELENS, change)
    with refused(message):
        read(tmp_path)


@pytest.mark.parametrize("length", [2**60, 10**7, 1])
def test_a_header_of_another_length(length, tmp_path):
    made.saelens(tmp_path)
    header(tmp_path / SAELENS, lambda said: None, length)
    with refused("cannot be read, it is damaged"):
        read(tmp_path)


def test_a_file_with_more_numbers_than_memory(tmp_path):
    """A file with holes is as large as it says, and takes no disk: no memory is taken for it either."""
    units = 2**36
    made.saelens(tmp_path, d_sae=units)
    shapes, said, end = {"b_dec": [D], "b_enc": [units], "W_enc": [D, units], "W_dec": [units, D]}, {}, 0
    for name, shape in shapes.items():
        start, end = end, end + 4 * int(np.prod(shape))
        said[name] = {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(said).encode()
    with (tmp_path / SAELENS).open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        try:
            file.truncate(8 + len(text) + end)
        except OSError:
            pytest.skip("the disk takes no file of this size")
    with refused(r"sae_weights\.safetensors holds 3,328\.0 GiB of float32, and .* GiB of memory are free"):
        read(tmp_path)


def npz(path: Path, **members: bytes) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)


def npy(shape: tuple, kind: str = "<f4", numbers: bytes = b"", version: int = 1) -> bytes:
    text = f"{{'descr': {kind!r}, 'fortran_order': False, 'shape': {shape!r}}}".encode() + b"\n"
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H", len(text)) + text + numbers


MEMBERS = {
    "claims": (
        {"W_enc": npy((D, HUGE), numbers=bytes(96))},
        "W_enc.npy claims 6 × 1,099,511,627,776 numbers of float32",
    ),
    "pickle": ({"W_enc": npy((1,), "|O", numbers=b"cos\nsystem\n(S'touch ran'\ntR.")}, "lacks|type object"),
    "version": ({"W_enc": npy((1,), version=9)}, r"version \(9, 0\)"),
    "no numpy": ({"W_enc": b"abc"}, "damaged or of another form"),
    "half": ({"W_enc": npy((1,)).replace(b"(1,)", b"((( ")}, "damaged or of another form"),
    "code": ({"W_enc": npy((1,)).replace(b"(1,)", b"exit")}, "damaged or of another form"),
}


@pytest.mark.parametrize("name", MEMBERS)
def test_an_npz_that_claims_what_it_does_not_hold(name, tmp_path):
    made.gemma(tmp_path)
    members, message = MEMBERS[name]
    npz(tmp_path / NPZ, **members)
    with refused(message):
        read(tmp_path)


def test_an_npz_of_objects_is_named_by_its_tensor(tmp_path):
    made.gemma(tmp_path)
    objects = dict(np.load(tmp_path / NPZ)) | {"b_dec": np.array([{}] * D)}
    np.savez(tmp_path / NPZ, **objects)
    with refused("b_dec is of type object"):
        read(tmp_path)


def test_a_zip_whose_member_claims_to_grow(tmp_path):
    """The sizes in the list of a zip are its own word: one that no packing reaches is refused before numbers are read."""
    made.gemma(tmp_path)
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("W_enc.npy", npy((D, UNITS), numbers=bytes(4 * D * UNITS)))
    changed = bytearray(content.getvalue())
    entry = changed.index(b"PK\x01\x02")
    changed[entry + 24 : entry + 28] = struct.pack("<I", 2**32 - 2)  # the size when unpacked
    (tmp_path / NPZ).write_bytes(changed)
    with refused("W_enc.npy claims 4,294,967,294 bytes, packed in"):
        read(tmp_path)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
def test_a_file_that_was_cut_off(form, share, tmp_path):
    make, path, _ = FORMS[form]
    make(tmp_path)
    content = (tmp_path / path).read_bytes()
    (tmp_path / path).write_bytes(content[: int(share * len(content))])
    with refused(f"{path.rpartition('/')[2]} cannot be read, it is damaged"):
        read(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[1]", "3", '{"k": 1, "k": 2}', "\x00", "[" * 100_000, '{"a": 1e9999'])
@pytest.mark.parametrize(
    ("make", "config"), [(sae(), "cfg.json"), (of("llama"), "hyperparams.json"), (of("circuit_tracer"), "config.yaml")]
)
def test_a_config_that_is_none(make, config, content, tmp_path):
    make(tmp_path)
    (tmp_path / config).write_text(content)
    with refused(f"{config}( cannot be read| holds no mapping)"):
        read(tmp_path)


@settings(max_examples=tries(400), deadline=None)
@given(data=st.data())
def test_a_file_with_any_bytes_changed_is_read_or_told(data, tmp_path_factory):
    """Damage never ends in an error from deep inside, or in numbers that are not finite."""
    make, *_ = FORMS[data.draw(st.sampled_from(sorted(FORMS)))]
    folder = tmp_path_factory.mktemp("made")
    make(folder)
    file = data.draw(st.sampled_from(sorted(each for each in folder.rglob("*") if each.is_file())))
    content = bytearray(file.read_bytes())
    early = data.draw(st.booleans())  # where headers are
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, min(len(content), 200 if early else 10**6) - 1))
        content[place] = data.draw(st.integers(0, 255))
    file.write_bytes(content)
    with warnings.catch_warnings(action="ignore"):
        try:
            found = read(folder)
        except UserError:
            return
    assert all(torch.isfinite(each.encoder).all() and each.encoder.shape[1] == D for each in found)


def test_yaml_that_grows(tmp_path):
    made.circuit_tracer(tmp_path)
    (tmp_path / "config.yaml").write_text("a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n")
    with refused("config.yaml cannot be read: it has aliases"):
        read(tmp_path)


def test_yaml_that_names_code(tmp_path):
    made.circuit_tracer(tmp_path)
    (tmp_path / "config.yaml").write_text(f"model_kind: !!python/object/apply:os.mkdir ['{tmp_path}/ran']\n")
    with refused("config.yaml cannot be read: could not determine a constructor"):
        read(tmp_path)
    assert not (tmp_path / "ran").exists()


class Touches:
    """Its pickle makes a folder when it is opened."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return Path.mkdir, (self.path,)


@pytest.mark.parametrize(
    "name", ["ae.pt", "sae.pth", "pytorch_model.bin", "trainer_0/ae.ckpt", "sae.pkl.gz", "checkpoints/final.pt"]
)
def test_a_pickle_is_named_and_not_opened(name, tmp_path):
    path = tmp_path / "made" / name
    path.parent.mkdir(parents=True)
    torch.save(Touches(tmp_path / "ran"), path)
    for place in (tmp_path / "made" if path.parent.name != "trainer_0" else path.parent, path):
        with refused(f"{name.rpartition('/')[2]} is a pickle, which can run code, and ffkv opens none. .* safetensors"):
            read(place)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("form", FORMS)
def test_a_pickle_in_the_place_of_tensors(form, tmp_path):
    make, path, _ = FORMS[form]
    make(tmp_path)
    pickle = (tmp_path / path).with_suffix(".pt")
    (tmp_path / path).unlink()
    torch.save(Touches(tmp_path / "ran"), pickle)
    asked = pickle.parent if path in (NPZ, GEMMA_2) else tmp_path
    with refused("|".join([f"{pickle.name} is a pickle, which can run code", "There is no layer_0.safetensors"])):
        read(asked)
    assert not (tmp_path / "ran").exists()
