"""What stands in a file is what was written, or it is refused."""

import errno
import os
import shutil
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from support import tries

from ffkv.base.errors import UserError
from ffkv.base.files import hdf5, tables
from ffkv.base.files.atomic import atomic
from ffkv.base.files.stored import sum_path, verify_sum


def write_hdf5(path):
    with hdf5.create(path, "things", {"settings": {"a": 1}}) as file:
        hdf5.put(file, "numbers", np.arange(5000.0), ["row"], "1", "some numbers")


def csv(path):
    tables.write(pd.DataFrame({"layer": [0, 1], "share": [0.5, 0.25]}), path)


WRITERS = {"a.h5": write_hdf5, "a.csv": csv, "a.parquet": csv}
READERS = {"a.h5": lambda path: hdf5.verify(path), "a.csv": tables.read, "a.parquet": tables.read}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """One file of each sort, as it was written."""
    folder = tmp_path_factory.mktemp("whole")
    for name, write in WRITERS.items():
        write(folder / name)
    return folder, {name: (folder / name).read_bytes() for name in WRITERS}


def refused(path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(
        UserError, match=f"{path.name} is not what ffkv wrote.*Delete it and make it again: `snakemake "
    ):
        READERS[path.name](path)


@given(st.sampled_from(list(WRITERS)), st.floats(0, 1, exclude_max=True), st.integers(1, 255))
@hypothesis_settings(max_examples=tries(60))
def test_any_flipped_byte_is_found(whole, name, place, flip):
    """Wherever it is: in numbers, in names, in what HDF5 keeps no checksum of."""
    folder, written = whole
    content = bytearray(written[name])
    content[int(place * len(content))] ^= flip
    refused(folder / name, content)


@given(st.sampled_from(list(WRITERS)), st.floats(0, 1, exclude_max=True))
@hypothesis_settings(max_examples=tries(30))
def test_a_file_cut_anywhere_is_found(whole, name, share):
    folder, written = whole
    refused(folder / name, written[name][: int(share * len(written[name]))])


@pytest.mark.parametrize("name", WRITERS)
def test_a_file_as_it_was_written_is_read_and_its_sum_is_the_commands(whole, name):
    folder, written = whole
    (folder / name).write_bytes(written[name])
    READERS[name](folder / name)
    checked = subprocess.run(["sha256sum", "--check", sum_path(folder / name).name], cwd=folder, capture_output=True)
    assert checked.returncode == 0, checked.stderr


def test_a_file_without_a_sum_is_read(whole, tmp_path):
    shutil.copy(whole[0] / "a.csv", tmp_path)
    verify_sum(tmp_path / "a.csv")


def test_a_file_that_is_written_again_has_the_new_sum(tmp_path):
    for content in ("old", "new"):
        with atomic(tmp_path / "a") as temporary:
            temporary.write_text(content)
        verify_sum(tmp_path / "a")


@pytest.fixture
def model(tmp_path):
    """A folder that was written as one."""
    with atomic(tmp_path / "model") as folder:
        (folder / "deep").mkdir(parents=True)
        (folder / "deep" / "a.json").write_text("{}")
        (folder / "b").write_text("b")
    return tmp_path / "model"


def damage(path):
    path.write_text("[]")


@pytest.mark.parametrize("change", [damage, lambda path: path.unlink()], ids=["damaged", "missing"])
@pytest.mark.parametrize("asked", ["", "deep/a.json"])
def test_a_folder_that_was_written_as_one_is_verified_and_deleted_as_one(model, change, asked):
    """Deleting a single file of it would not make Snakemake write it again."""
    verify_sum(model / asked)
    change(model / "deep" / "a.json")
    verify_sum(model / "b")
    with pytest.raises(
        UserError,
        match=rf"model/deep/a\.json is not what ffkv wrote.*Delete {model} and make it again: `snakemake {model}`",
    ):
        verify_sum(model / asked)


def test_the_sums_of_a_folder_are_the_commands(model):
    command = ["sha256sum", "--check", ".model.sha256"]
    assert (
        subprocess.run(command, cwd=model.parent, capture_output=True).stdout == b"model/b: OK\nmodel/deep/a.json: OK\n"
    )


def test_sums_do_not_depend_on_the_language_of_the_shell(tmp_path):
    with atomic(tmp_path / "é") as temporary:
        temporary.mkdir()
        (temporary / "ü").write_text("x")
    script = "import sys; from pathlib import Path; from ffkv.base.files.stored import verify_sum; verify_sum(Path(sys.argv[1]))"
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0"}
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "é")], env=environment, check=True)


def test_files_made_inside_of_larger_things_have_one_sum_under_their_own_name(tmp_path):
    """The model stage writes HDF5 files inside its folder, and values.h5 together with it."""
    with atomic(tmp_path / "model") as folder, atomic(tmp_path / "values.h5") as memories:
        folder.mkdir()
        write_hdf5(folder / "vocabulary.h5")
        write_hdf5(memories)
    names = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}
    assert names == {"values.h5", "model", "model/vocabulary.h5", ".values.h5.sha256", ".model.sha256"}
    for name in ("model", "model/vocabulary.h5", "values.h5"):
        verify_sum(tmp_path / name)


@pytest.mark.parametrize("content", ["", "garbage\n", "0123  a.csv\n", "\n"], ids=["empty", "garbage", "cut", "line"])
def test_a_damaged_sum_is_said(tmp_path, content):
    """A power cut can leave an empty checksum."""
    csv(tmp_path / "a.csv")
    sum_path(tmp_path / "a.csv").write_text(content)
    with pytest.raises(UserError, match=r"\.a\.csv\.sha256 is empty or damaged, so ffkv cannot tell .* --force"):
        tables.read(tmp_path / "a.csv")


def test_sums_that_lack_a_file_are_said(model):
    path = sum_path(model)
    path.write_text(path.read_text().splitlines()[0] + "\n")
    for asked in (model, model / "deep/a.json"):
        with pytest.raises(UserError, match=r"\.model\.sha256 has no checksum of .*deep/a\.json: it is incomplete"):
            verify_sum(asked)


def test_a_system_s_own_files_in_a_folder_do_no_harm(model):
    (model / ".DS_Store").touch()
    verify_sum(model)


def test_sums_that_may_not_be_looked_up_are_not_called_missing(tmp_path, monkeypatch):
    """Else a damaged file would pass."""
    csv(tmp_path / "a.csv")
    (tmp_path / "a.csv").write_text("layer,share\n0,0.75\n")
    real, hidden = os.stat, str(sum_path(tmp_path / "a.csv"))

    def stat(path, *given, **more):
        if str(path) == hidden:
            raise PermissionError(errno.EACCES, "Permission denied", hidden)
        return real(path, *given, **more)

    monkeypatch.setattr(os, "stat", stat)
    with pytest.raises(UserError, match=r"a\.csv\.sha256 cannot be looked up: Permission denied"):
        verify_sum(tmp_path / "a.csv")
