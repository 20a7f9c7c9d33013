"""`ffkv check`: every damaged or left-over file of a run is named, and nothing else."""

import hashlib
import re
import shlex
import shutil
import struct
import subprocess
import sys

import h5py
import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from support import obeying_rights

from ffkv.base.errors import UserError
from ffkv.base.files import hdf5, tables
from ffkv.base.files.atomic import atomic
from ffkv.base.files.stored import sum_path
from ffkv.branches.settings import Settings
from ffkv.run.commands import check
from ffkv.run.results import check as module
from ffkv.run.results.check import check_run


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A folder with a file of each sort: all that its settings ask for."""
    names = ["triggers.h5", "keys.csv", "by_memory.parquet", "settings.json"]
    monkeypatch.setattr(module, "expected_files", lambda settings: names)
    folder = tmp_path / "results" / "a run"
    folder.mkdir(parents=True)
    with hdf5.create(folder / "triggers.h5", "things", {"model_hash": "a"}) as file:
        hdf5.put(file, "x", np.arange(10_000.0), ["row"], "1", "numbers")
        hdf5.put(file, "negative/x", np.arange(100.0), ["other"], "1", "numbers")
    tables.write(pd.DataFrame({"a": [1, 2]}), folder / "keys.csv")
    tables.write(pd.DataFrame({"a": [1, 2]}), folder / "by_memory.parquet")
    with atomic(folder / "settings.json") as path:
        path.write_text(Settings().model_dump_json())
    return folder


def test_a_whole_run_is_whole(run):
    assert check_run(run) == (4, [])
    result = CliRunner().invoke(check, [str(run)])
    assert (result.exit_code, result.output) == (0, f"{run}: 4 files, all that the run has, and all are whole.\n")


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 255
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["triggers.h5", "by_memory.parquet", "settings.json"])
def test_a_truncated_file_is_named(run, name):
    path = run / name
    path.write_bytes(path.read_bytes()[: -max(1, path.stat().st_size // 3)])
    assert [problem.path for problem in check_run(run)[1]] == [path]


@pytest.mark.parametrize("dataset", ["x", "negative/x"])
def test_a_flipped_byte_of_any_dataset_is_found(run, dataset):
    with h5py.File(run / "triggers.h5") as file:
        place = file[dataset].id.get_chunk_info(0).byte_offset
    flip(run / "triggers.h5", place + 9)
    (problem,) = check_run(run)[1]
    assert problem.path == run / "triggers.h5"
    assert "damaged" in problem.reason


def test_a_file_that_hdf5_reads_for_ever_is_named(run, monkeypatch):
    """One wrong size among its texts is enough. Its checksum fits: somebody made it so."""
    monkeypatch.setattr(module, "PATIENCE", 3)
    path = run / "triggers.h5"
    data = bytearray(path.read_bytes())
    first = data.index(b"GCOL") + 16  # a text: 8 bytes, its size, and the text
    struct.pack_into(
        "<Q", data, first + 8, 2**64 - 16
    )  # with these 16 bytes it is 0, so the next text begins here again
    path.write_bytes(data)
    sum_path(path).write_text(f"{hashlib.sha256(data).hexdigest()}  {path.name}\n")
    read, (problem,) = check_run(run)
    assert (read, problem.path, problem.kind) == (4, path, "doubtful") and "did not end within 3 s" in problem.reason


def test_settings_of_another_version_are_foreign(run):
    (run / "settings.json").unlink()
    with atomic(run / "settings.json") as path:
        path.write_text('{"surprise": 1}')
    said = told(run)
    assert "settings.json holds the settings of another version of ffkv: Unknown setting 'surprise'" in said
    assert "snakemake --force" in said


def test_what_a_kill_left_is_named_and_what_is_to_be_deleted(run):
    left = run / ".sampled_prefixes.h5.node1.4711.partial"
    left.write_bytes(b"half")
    folder = run / ".model.node1.4712.partial"
    folder.mkdir()
    (folder / "anatomy.json").write_text("{")  # a part of what is left over, no problem of its own
    result = CliRunner().invoke(check, [str(run)])
    assert isinstance(result.exception, UserError)
    commands = [shlex.split(line) for line in str(result.exception).splitlines()]
    assert ["rm", "-r", str(folder), str(left)] in commands
    assert not any(command[0] == "snakemake" for command in commands)  # there is nothing to make again


@pytest.mark.parametrize("change", [lambda path: path.unlink(), lambda path: path.write_text("[]")])
def test_a_folder_that_a_step_wrote_is_made_again_as_one(run, change):
    with atomic(run / "model") as folder:
        folder.mkdir()
        (folder / "anatomy.json").write_text("{}")
        (folder / "tokenizer.txt").write_text("of a sort that ffkv does not read itself")
    assert check_run(run)[1] == []
    change(run / "model" / "tokenizer.txt")
    flip(run / "triggers.h5", 5000)
    result = CliRunner().invoke(check, [str(run)])
    assert "tokenizer.txt is not what ffkv wrote" in result.output
    *_, rm, _, snakemake = (shlex.split(line) for line in str(result.exception).splitlines())
    assert rm == ["rm", "-r", str(run / "model"), str(run / "triggers.h5")]
    assert snakemake == ["snakemake", f"results/{run.name}/model", f"results/{run.name}/triggers.h5"]


def told(run) -> str:
    result = CliRunner().invoke(check, [str(run)])
    assert isinstance(result.exception, UserError)
    return result.output + str(result.exception)


def test_the_message_counts(run):
    flip(run / "triggers.h5", 5000)
    assert f"{run}: 4 files were read. Not as they should be: 1 damaged." in told(run)
    (run / "keys.csv").unlink()
    assert "Not as they should be: 1 damaged, 1 missing." in told(run)


@pytest.mark.parametrize("with_sum", [False, True])
@pytest.mark.parametrize("name", ["triggers.h5", "keys.csv", "by_memory.parquet", "settings.json"])
def test_a_deleted_file_is_missing_and_to_be_made_again(run, name, with_sum):
    """Its checksum may be gone too."""
    (run / name).unlink()
    if with_sum:
        sum_path(run / name).unlink()
    said = told(run)
    assert f"{run / name} does not exist: it was deleted, or its step has not ended yet." in said
    assert (
        f"snakemake {run.parent.name}/{shlex.quote(run.name)}/{name}"
        in said.replace("'", "").replace(shlex.quote(run.name), run.name)
        or name in said.splitlines()[-1]
    )
    assert "rm -r" not in said


@pytest.mark.parametrize("content", [None, ""], ids=["no sum", "an empty sum"])
def test_a_file_that_nothing_vouches_for_is_doubtful_and_stays(run, content):
    path = sum_path(run / "keys.csv")
    path.unlink() if content is None else path.write_text(content)
    said = told(run)
    assert "1 doubtful" in said
    assert "rm -r" not in said


@pytest.mark.parametrize("name", ["keys.csv", ".keys.csv.sha256", "folder"])
def test_what_may_not_be_read_is_not_to_be_deleted(run, name):
    """The same holds for a file, a checksum and a folder."""
    (run / "folder").mkdir()
    (run / name).chmod(0)
    checked = subprocess.run(obeying_rights("ffkv", "check", str(run)), capture_output=True, text=True)
    (run / name).chmod(0o700)
    assert checked.returncode == 2
    assert re.search(
        rf"{name} .*cannot be read: Permission denied\. Check its rights|{name} cannot be read", checked.stdout
    )
    assert "rm -r" not in checked.stderr


def test_a_closed_folder_is_doubtful(run, tmp_path):
    """Whether it may be listed, entered, or neither."""
    (run / "keys/deeper").mkdir(parents=True)
    for place in ("keys/a.csv", "keys/deeper/a.csv"):
        tables.write(pd.DataFrame({"a": [1, 2]}), run / place)
    closed = {}  # the rights of the folder that is closed in each copy of the run
    for name in ("", "keys", "keys/deeper"):
        for rights in (0o000, 0o111, 0o444):
            copy = shutil.copytree(run, tmp_path / "copies" / str(len(closed)))
            closed[copy] = copy / name
            (copy / name).chmod(rights)
    asked = ["settings.json", "keys/a.csv", "keys/deeper/a.csv"]
    code = (
        "import ffkv.run.results.check as module, sys; from pathlib import Path\n"
        f"module.expected_files = lambda settings: {asked}\n"
        "for run in sys.argv[1:]: print(*{problem.kind for problem in module.check_run(Path(run))[1]})"
    )
    command = obeying_rights(sys.executable, "-c", code, *map(str, closed))
    checked = subprocess.run(command, capture_output=True, text=True)
    for folder in closed.values():
        folder.chmod(0o700)
    assert checked.stdout == "doubtful\n" * 9, checked.stderr


def test_the_advice_holds_wherever_the_command_is_typed(run, monkeypatch):
    (run / "keys.csv").unlink()
    (run / "by_memory.parquet").unlink()
    target = "  snakemake 'results/a run/by_memory.parquet' 'results/a run/keys.csv'"
    make, outside = "Make these files, with the options", f"Make these files in {run.parents[1]}, with the options"
    for place, folder, advice in (
        (run.parents[1], "results/a run", make),
        (run.parents[1], str(run), make),
        (run, ".", outside),
        (run / "..", "a run", outside),
    ):
        monkeypatch.chdir(place)
        lines = told(folder).splitlines()
        assert lines[-2].startswith(advice)
        assert lines[-1] == target


def test_a_run_outside_of_results_is_made_where_it_was(run, tmp_path, monkeypatch):
    (run / "keys.csv").unlink()
    moved = run.rename(tmp_path / "moved")
    monkeypatch.chdir(moved)
    *_, words, command = told(".").splitlines()
    assert "where your run was made, in the folder that holds results" in words
    assert command == "  snakemake results/moved/keys.csv"


@pytest.mark.parametrize("split, name", [("train", "triggers"), ("validation", "sampled_prefixes")])
def test_a_file_of_another_corpus_is_named(run, split, name):
    for path, kind, corpus in ((f"corpus/{split}", "corpus", "a"), (name, name, "b"), (f"{name}/0", name, "a")):
        with hdf5.create(run / f"{path}.h5", kind, {"corpus_hash": corpus}):
            pass
    # These files lack all their datasets, which is told after their corpus.
    problems = {problem.path: problem.reason for problem in check_run(run)[1] if problem.kind == "foreign"}
    assert [path for path, reason in problems.items() if "belongs to another" in reason] == [run / f"{name}.h5"]
    assert "belongs to another corpus (b, expected a)" in problems[run / f"{name}.h5"]


def test_a_table_of_another_corpus_is_named(run):
    with hdf5.create(run / "corpus/train.h5", "corpus", {"corpus_hash": "a"}):
        pass
    table = pd.DataFrame({"layer": [0]})
    table.attrs = {"corpus_hash": "b"}
    tables.write(table, run / "values/by_memory/0.parquet")
    problems = [problem for problem in check_run(run)[1] if "belongs to another corpus" in problem.reason]
    assert [(problem.path, problem.kind) for problem in problems] == [(run / "values/by_memory/0.parquet", "foreign")]


def test_a_folder_that_is_no_run_is_refused_before_it_is_read(tmp_path, monkeypatch):
    (tmp_path / "model").mkdir()  # whatever else it holds
    monkeypatch.setattr(module, "_outputs", lambda *places: pytest.fail("the folder is read"))
    with pytest.raises(UserError, match="no file of a run"):
        check_run(tmp_path)
