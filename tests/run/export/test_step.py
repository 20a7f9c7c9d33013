"""Exports as a whole: what is refused, what a kill leaves, what goes on, and what is said beside them."""

import json
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from small_runs import write_run
from support import ROOT, random_checkpoint

import ffkv
from ffkv.base.errors import UserError
from ffkv.cli import COMMANDS
from ffkv.run import commands
from ffkv.run.export import step, store
from ffkv.run.export.selection import random_sentences, select
from ffkv.run.export.settings import FORMATS, Export
from ffkv.run.export.step import export, find_format
from ffkv.run.results.collections import choose_memories
from ffkv.run.results.run import open

from .conftest import complete

SMALL = (Export(memories=["L0.0-2", "L2.5"], examples=2, sentences=4), "cpu")
TABLES = Export(memories=["L0.0"], examples=0)
OF_MEMORIES = [name for name in FORMATS if name != "jacobian-lens"]  # which the run has not


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def whole(run, tmp_path_factory) -> dict[str, bytes]:
    """The files of an export that nothing interrupts."""
    folder = tmp_path_factory.mktemp("whole") / "export"
    export(run, "neuron-record", folder, *SMALL)
    return content(folder)


def test_the_files_are_those_of_the_memories_and_nothing_else(whole):
    sides = ("positive", "negative")
    files = {f"{side}/{place}.json" for side in sides for place in ("0/0", "0/1", "0/2", "2/5")}
    assert {*whole} == {*files, "ffkv-export.json"}


class Killed(BaseException):
    """Ends an export as a signal does."""


def test_a_kill_in_the_pass_loses_a_block_at_most(run, whole, tmp_path, monkeypatch):
    from ffkv.run.trace import coefficients

    monkeypatch.setattr(store, "BLOCK", 3)
    seen, own = [], coefficients.for_each_coefficient

    def counting(loaded, layers, beginning, sentences, *arguments):
        if len(seen) == 6:
            seen.append(None)
            raise Killed
        own(loaded, layers, beginning, sentences, *arguments)
        seen.extend(map(bytes, sentences))

    monkeypatch.setattr(coefficients, "for_each_coefficient", counting)
    with pytest.raises(Killed):
        export(run, "neuron-record", tmp_path / "export", *SMALL)
    assert not [path for path in (tmp_path / "export").iterdir() if not path.name.startswith(".")]
    export(run, "neuron-record", tmp_path / "export", *SMALL)
    wanted = select(run, *choose_memories(run.files, SMALL[0].memories), 2, 4).sentences
    assert len(seen) - 1 == len(wanted) == len({*seen} - {None}), "each sentence runs once"
    found = content(tmp_path / "export")
    assert found.keys() == whole.keys()
    for name in found:  # batches of another shape round otherwise
        if name != "ffkv-export.json":
            np.testing.assert_allclose(values_of(found[name]), values_of(whole[name]), rtol=1e-4, atol=1e-5)


def values_of(text: bytes) -> list[float]:
    records = json.loads(text)["most_positive_activation_records"]
    return [value for record in records for value in record["activations"]]


def test_a_kill_between_two_files_keeps_the_first(run, whole, tmp_path, monkeypatch):
    from ffkv_formats import neuron_record

    written, own = [], neuron_record.neuron_record

    def dying(record, side, generator):
        if len(written) == 3:
            raise Killed
        written.append(record.name)
        return own(record, side, generator)

    monkeypatch.setattr(neuron_record, "neuron_record", dying)
    with pytest.raises(Killed):
        export(run, "neuron-record", tmp_path / "export", *SMALL)
    kept = tmp_path / "export/positive/0/1.json"
    before = kept.stat().st_mtime_ns
    assert not json.loads((tmp_path / "export/ffkv-export.json").read_text())["finished"]
    assert not (tmp_path / "export/positive/2").exists()
    monkeypatch.setattr(neuron_record, "neuron_record", own)
    monkeypatch.setattr("ffkv.run.trace.coefficients.for_each_coefficient", None)  # the pass is done
    export(run, "neuron-record", tmp_path / "export", *SMALL)
    assert content(tmp_path / "export") == whole
    assert kept.stat().st_mtime_ns == before


def test_a_finished_export_is_kept_as_it_is(run, tmp_path, monkeypatch):
    export(run, "parquet", tmp_path / "export", TABLES)
    monkeypatch.setattr("ffkv.run.export.step.fill", None)
    before = content(tmp_path / "export")
    export(run, "parquet", tmp_path / "export", TABLES)
    assert content(tmp_path / "export") == before
    for format_name, changed in (("parquet", {"memories": ["L0.1"]}), ("parquet", {"sentences": 3}), ("transluce", {})):
        with pytest.raises(UserError, match="holds another export: its"):
            export(run, format_name, tmp_path / "export", TABLES.model_copy(update=changed))
    assert content(tmp_path / "export") == before


@pytest.mark.parametrize(
    ("memories", "message"),
    [
        (["L9"], "There is no layer 9"),
        (["L0.64"], "There is no memory 64 in layer 0"),
        (["L0.3-64"], "There is no memory 64 in layer 0"),
        (["L0.5-3"], "ends before it begins"),
        (["church"], "names no memories"),
        (["L0.3,"], "names no memories"),
        (["L0.3", ""], "names no memories"),
    ],
)
def test_memories_that_do_not_exist_are_refused(run, tmp_path, memories, message):
    with pytest.raises(UserError, match=message):
        export(run, "parquet", tmp_path / "export", Export(memories=memories))
    assert not (tmp_path / "export").exists()


def test_memories_are_named_in_several_ways(run):
    layer, memory = choose_memories(run.files, ["L2.5, 0/1", "0.3-5", "L0D4", "L0.4"])
    assert list(zip(layer.tolist(), memory.tolist(), strict=True)) == [(0, 1), (0, 3), (0, 4), (0, 5), (2, 5)]
    assert np.array_equal(choose_memories(run.files, ["L1"])[1], np.arange(64))
    assert len(choose_memories(run.files, [])[0]) == run.anatomy.layer_offset[-1]


def test_other_arguments_are_refused(run, tmp_path, monkeypatch):
    for format_name, arguments, message in (
        ("pickle", {}, "no format 'pickle'"),
        ("parquet", {"examples": -1}, "examples is -1: must be at least 0"),
        ("saedashboard", {"set": "../x"}, "set is '../x': must be a name of small letters"),
        ("neuronpedia", {"model_id": "GPT2"}, "model_id is 'GPT2': must be a name of small letters"),
    ):
        with pytest.raises(UserError, match=message):
            export(run, format_name, tmp_path / "export", Export(**arguments))
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="is a file"):
        export(run, "parquet", tmp_path / "file")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/thesis.txt").touch()
    with pytest.raises(UserError, match=r"holds other files \(thesis.txt\)"):
        export(run, "parquet", tmp_path / "full")
    monkeypatch.setattr("ffkv.run.export.step.DENSE_TOKENS", 10)
    with pytest.raises(UserError, match=r"The text has .* tokens"):
        export(run, "delphi", tmp_path / "export")
    monkeypatch.setattr("shutil.disk_usage", lambda folder: type("Usage", (), {"free": 100}))
    with pytest.raises(UserError, match=r"take \d[\d.]* [kM]B on the disk of .*, which has 0\.1 kB free"):
        export(run, "transluce", tmp_path / "export")
    assert not (tmp_path / "export").exists()


@pytest.mark.parametrize("format_name, unit", [("transluce", "memories"), ("parquet", "memories x files")])
def test_the_bar_says_what_it_counts(run, tmp_path, capfd, format_name, unit):
    export(run, format_name, tmp_path / "export", *SMALL)
    assert f" {unit}/s" in capfd.readouterr().err


def test_a_damaged_sidecar_is_refused(run, tmp_path):
    (tmp_path / "export").mkdir()
    (tmp_path / "export/ffkv-export.json").write_text("{")
    with pytest.raises(UserError, match="cannot be read"):
        export(run, "parquet", tmp_path / "export")


@pytest.fixture(scope="module")
def unsigned(tmp_path_factory) -> tuple[Path, Path]:
    """A run of a model with ReLU, and the folder of its checkpoint."""
    folder = tmp_path_factory.mktemp("unsigned")
    checkpoint = random_checkpoint(folder / "checkpoint", "gpt2-relu")
    return complete(write_run(folder / "run", checkpoint, "auto", "float32")), checkpoint


def test_a_model_without_negative_coefficients(unsigned, tmp_path):
    run = open(unsigned[0])
    some = (Export(memories=["L0.0-7"], examples=2, sentences=4), "cpu")
    export(run, "neuron-record", tmp_path / "records", *some)
    assert not (tmp_path / "records/negative").exists()
    export(run, "delphi", tmp_path / "delphi", *some)
    assert [path.name for path in (tmp_path / "delphi/latents").iterdir()] == ["layers.0.mlp"]
    export(run, "transluce", tmp_path / "exemplars", *some)
    for path in (tmp_path / "exemplars/0").iterdir():
        records = json.loads(path.read_text())["activation_records"]
        assert all(each["min"] and min(each["min"][0]["activations"]) >= 0 for each in records.values())


def test_every_format_writes_the_same_bytes_each_time(run, tmp_path):
    for name in OF_MEMORIES:
        for again in ("first", "second"):
            export(run, name, tmp_path / name / again, *SMALL)
        first, second = (content(tmp_path / name / again) for again in ("first", "second"))
        assert first == second, name
        assert not any(socket.gethostname().encode() in data for data in first.values()), name


def test_without_the_checkpoint_tables_are_exported_and_texts_are_not(unsigned, tmp_path):
    run_folder, checkpoint = unsigned
    away = checkpoint.rename(checkpoint.with_name("away"))
    try:
        with pytest.raises(UserError, match="checkpoint"):
            export(open(run_folder), "neuron-record", tmp_path / "records", Export(memories=["L0.0"]))
        assert not (tmp_path / "records").exists()
        export(open(run_folder), "parquet", tmp_path / "tables", TABLES)
        assert (tmp_path / "tables/memories.parquet").exists()
        assert not (tmp_path / "tables/coefficients.parquet").exists()
    finally:
        away.rename(checkpoint)


def test_the_sidecar_says_what_the_numbers_are(run, whole):
    text = json.loads(whole["ffkv-export.json"])
    assert text["finished"] and text["asked_for"] == SMALL[0].memories and text["left_out"] == []
    for name in ("model_hash", "tokenizer_hash", "corpus_hash"):
        assert text["identity"][name] == run.files.identity("train")[name]
    assert text["versions"]["ffkv"] == ffkv.__version__
    assert "multiplied by -1" in text["definitions"]["activations"]
    assert str(run.folder.parent) not in whole["ffkv-export.json"].decode(), "no path of this machine is published"
    assert str(Path(run.anatomy.checkpoint).parent) not in whole["ffkv-export.json"].decode()


def test_the_random_sentences_depend_on_the_seed_alone(run):
    assert random_sentences(run, 5).tolist() == random_sentences(run, 5).tolist()
    assert random_sentences(run, 1000).tolist() == list(range(len(run.corpus("train"))))


def test_several_trigger_examples_in_one_sentence_are_one_sentence():
    from ffkv.run.export.selection import _strongest_of_each

    sentence = np.array([[4, 4, 2, 4, 7], [1, -1, -1, -1, -1]], np.int32)
    position = np.array([[3, 1, 5, 2, 9], [2, 0, 0, 0, 0]], np.int32)
    found = _strongest_of_each(sentence, position, 2)
    assert [each.tolist() for each in found] == [[[4, 2], [1, -1]], [[3, 5], [2, 0]]]


def test_the_command(run, tmp_path, monkeypatch):
    output = tmp_path / "export"
    arguments = [str(run.folder), "--format", "neuronpedia", "--output", str(output), "--memories", "L0.0,L1.2"]
    arguments += ["--examples", "2", "--sentences", "3", "--device", "cpu", "--set", "mine", "--model-id", "gpt2-small"]
    done = CliRunner().invoke(commands.export, arguments, catch_exceptions=False)
    assert done.exit_code == 0
    assert f"{output}: written in the format neuronpedia." in done.output
    request = json.loads((output / "0-mine/batch-0.json").read_text())
    assert (request["modelId"], request["source"]) == ("gpt2-small", "0-mine")
    assert "export" in COMMANDS


WITHOUT = """
from pathlib import Path
from ffkv.base import doors
found = doors.entries
doors.entries = lambda door: {name: each for name, each in found(door).items() if each.dist.name != "ffkv-formats"}
from click.testing import CliRunner
from ffkv.run.commands import export
from ffkv.run.export.step import UserError
from ffkv.run.export.step import export as of_python
for words in ["--help"], [".", "--format", "neuronpedia", "--output", "out"]:
    print(" ".join(CliRunner().invoke(export, words).output.split()))
try:
    of_python(None, "neuronpedia", Path("out"))
except UserError as error:
    print(error)
"""


def test_without_the_package_of_formats_the_help_and_the_refusals_name_it():
    run = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=True)
    helped, refused, raised = run.stdout.splitlines()
    install = "More are in the package ffkv-formats. In a clone of ffkv: pip install ./packages/ffkv-formats"
    assert "--format [parquet] " in helped and f"The format of the other tool. {install} " in helped
    assert "'neuronpedia' is not 'parquet'." in refused and refused.endswith(install)
    assert raised == f"There is no format 'neuronpedia'. Choose one of: parquet. {install}"


def test_with_the_package_nobody_is_told_to_install_it():
    assert "ffkv-formats" not in CliRunner().invoke(commands.export, ["--help"]).output
    with pytest.raises(UserError, match=r"There is no format 'pickle'\. Choose one of: .*, transluce\.$"):
        find_format("pickle")


def test_every_format_is_found_by_its_name_and_described():
    page = (ROOT / "docs/exports.md").read_text()
    rows = dict(re.findall(r"^\| `([a-z-]+)` \|.*\| ([\d,]+, [\d,]+) \|$", page, re.MULTILINE))
    formats = {name: find_format(name) for name in FORMATS}
    assert rows == {name: f"{each.examples}, {each.sentences:,}" for name, each in formats.items()}
    for name in FORMATS:
        assert f"**{name}.**" in page


@pytest.mark.parametrize("format_name", OF_MEMORIES)
def test_an_export_in_any_format_is_whole(exported, format_name):
    folder = exported(format_name)
    about = json.loads((folder / "ffkv-export.json").read_text())
    assert about["finished"] and about["identity"]["format"] == format_name
    assert find_format(format_name).definitions.items() <= about["definitions"].items()
    assert len([path for path in folder.rglob("*") if path.is_file()]) > 1
    for path in folder.rglob("*.json"):
        json.loads(path.read_text(), parse_constant=pytest.fail)  # NaN is no JSON


def test_the_files_of_the_pass_are_gone_at_the_end(run, tmp_path):
    export(run, "transluce", tmp_path / "export", *SMALL)
    assert not [path for path in (tmp_path / "export").iterdir() if path.name.startswith(".")]
    (tmp_path / "export/.ffkv-export").mkdir()  # as a kill at the end of the export leaves it
    (tmp_path / "export/.ffkv-export/sample.f32").touch()
    export(run, "transluce", tmp_path / "export", *SMALL)
    assert not [path for path in (tmp_path / "export").iterdir() if path.name.startswith(".")]
    shutil.rmtree(tmp_path / "export")


@pytest.mark.parametrize(
    ("format_name", "lacking"), [("jacobian-lens", "in these readings only"), ("neuron-record", "does not exist")]
)
def test_what_the_run_lacks_is_said_before_the_model_runs_and_nothing_is_left(
    run, tmp_path, monkeypatch, format_name, lacking
):
    shutil.copytree(run.folder, tmp_path / "run")
    shutil.rmtree(tmp_path / "run/values/projections")
    monkeypatch.setattr(step, "fill", lambda *_: pytest.fail("the model runs"))
    with pytest.raises(UserError, match=lacking):
        export(open(tmp_path / "run"), format_name, tmp_path / "export", *SMALL)
    assert not (tmp_path / "export").exists()
