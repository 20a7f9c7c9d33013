"""A finished run as a Python object: what it says, what it refuses, and how little it reads."""

import json
import re
import time

import numpy as np
import pandas as pd
import pytest

import ffkv
from benchmarks.made_up_run import write_table
from ffkv.base.errors import UserError
from ffkv.base.files import hdf5, tables
from ffkv.branches.settings import Settings
from ffkv.model.anatomy import write_anatomy
from ffkv.run.results import run as run_module
from ffkv.run.results import run_files
from ffkv.run.results.run import open
from tests.run.results.conftest import HOSTILE, IDENTITY, VOCABULARY, anatomy


def test_a_run_knows_what_it_is(run, folder):
    assert (run.name, run.folder) == ("small", folder)
    assert run.settings.layer_groups == 2
    assert run.anatomy.layers[1].memories == 2
    assert list(run.vocabulary) == VOCABULARY
    assert run.files.corpora["train"]["counts"]["sentences"] == 4
    assert (run.files.corpora["validation"]["tokens"], run.files.corpora["validation"]["settings"]) == (
        12,
        {"dataset": "toy"},
    )
    assert run.corpus("validation").texts[3] == " nan nan"
    assert repr(run) == "<Run small: synthetic, 2 layers, 5 memories>"


def test_layers_have_a_row_each(run):
    expected = {
        "layer": [0, 1], "memories": [3, 2], "kind": "gated", "gated": True, "signed": True,
        "dead": [1, 0], "agreement": [0.5, 0.25],
    }  # fmt: skip
    pd.testing.assert_frame_equal(run.layers, pd.DataFrame(expected))


def test_tables_are_called_as_their_files(run):
    assert run.tables == ["activity", "figure_4_agreement", "table_2_predictive_values"]
    assert run.table("figure_4_agreement")["rate"].tolist() == [0.5, 0.25, 0, 0]


def test_a_table_is_a_copy_and_is_read_again_if_its_file_has_changed(run):
    table = run.table("figure_4_agreement")
    table["rate"] = 7.0
    changed = run.table("figure_4_agreement")
    assert changed["rate"].tolist() == [0.5, 0.25, 0, 0]
    tables.write(changed.assign(rate=0.125), run.files.table_files["figure_4_agreement"])
    assert run.table("figure_4_agreement")["rate"].tolist() == [0.125] * 4


@pytest.mark.parametrize("place", ["aside/figure_4_agreement.csv", "zebra/figure_4_agreement.csv"])
def test_a_table_of_ffkv_is_not_replaced_by_one_of_the_same_name(run, folder, place):
    """Such as one of a package that is not installed any more."""
    (folder / place).parent.mkdir()
    tables.write(pd.DataFrame({"layer": [0], "rate": [9.0]}), folder / place)
    assert open(folder).table("figure_4_agreement")["rate"].tolist() == [0.5, 0.25, 0, 0]


def test_texts_in_tables_stay_texts(run):
    table = run.table("table_2_predictive_values")
    assert table["token"].tolist() == ["nan", "1"]
    assert table["next_token"].tolist() == ["null", ""]


def test_a_column_without_a_value_is_nan(run, folder):
    write_table(folder, "keys/figure_3_removal.csv", {"layer": [0], "change": [None]})
    assert open(folder).table("figure_3_removal")["change"].isna().all()


def test_an_unknown_table_is_refused_with_those_there_are(run):
    with pytest.raises(UserError, match=r"figure_99.*activity, figure_4_agreement, table_2_predictive_values"):
        run.table("figure_99")


@pytest.mark.parametrize("name", ["settings.json", "model/anatomy.json"])
def test_a_folder_without_a_run_is_refused(folder, name):
    (folder / name).unlink()
    with pytest.raises(UserError, match=name):
        open(folder)


def test_a_folder_of_runs_names_them(folder, tmp_path):
    with pytest.raises(UserError) as told:
        open(tmp_path)
    assert str(told.value) == f"{tmp_path}/settings.json does not exist. {tmp_path} has these runs: {folder}. Name one."
    with pytest.raises(
        UserError, match=r"settings\.json does not exist\. Name the folder of a finished run, such as results/demo\.$"
    ):
        open(folder / "model")


def test_of_many_runs_some_are_named_and_a_folder_that_may_not_be_looked_at_is_passed_over(tmp_path, monkeypatch):
    for number in range(12):
        (tmp_path / f"{number:02}").mkdir()
        (tmp_path / f"{number:02}/settings.json").touch()

    def denied(path):
        if path.parent.name == "03":
            raise UserError("Permission denied")
        return path.exists()

    monkeypatch.setattr("ffkv.run.results.expected.exists", denied)
    with pytest.raises(UserError) as told:
        open(tmp_path)
    named = [name for name in map("{:02}".format, range(12)) if str(tmp_path / name) in str(told.value)]
    assert "03" not in named and len(named) == 10


def test_a_place_that_is_no_folder_is_refused(tmp_path):
    with pytest.raises(UserError, match="is not a folder"):
        ffkv.open(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda settings: settings.update(surprise=1), "Unknown setting 'surprise'. Valid here: annotation, .*, values."),
        (lambda settings: settings["triggers"].update(each=settings["triggers"].pop("per_key")),
         "Unknown setting 'triggers.each'. Valid here: .*per_key.*."),
        (lambda settings: settings.update(activations={"batch_tokens": 4}),
         "activations.batch_tokens is called batches.tokens now."),
        (lambda settings: settings.update(layer_groups=0), "layer_groups is 0: must be at least 1."),
    ],
)  # fmt: skip
def test_settings_of_another_version_are_refused_with_what_to_do(folder, change, problem):
    settings = json.loads((folder / "settings.json").read_text())
    change(settings)
    (folder / "settings.json").write_text(json.dumps(settings))
    with pytest.raises(UserError) as refused:
        open(folder)
    assert re.fullmatch(
        f"{folder}/settings.json holds the settings of another version of ffkv: {problem} Run `snakemake` again with the same"
        " settings file, which repeats what has changed, or read the run with the ffkv that wrote it.",
        str(refused.value),
    )


def test_a_setting_that_the_file_lacks_has_its_default(folder):
    settings = json.loads((folder / "settings.json").read_text())
    del settings["layer_groups"], settings["triggers"]["per_key"], settings["report"]
    (folder / "settings.json").write_text(json.dumps(settings))
    read, default = open(folder).settings, Settings()
    assert (read.layer_groups, read.triggers.per_key, read.report) == (1, default.triggers.per_key, default.report)


def test_a_field_of_the_anatomy_that_the_file_lacks_has_its_default(folder):
    path = folder / "model/anatomy.json"
    stored = json.loads(path.read_text())
    del stored["remarks"], stored["layers"][0]["output_scale"]
    path.write_text(json.dumps(stored))
    read = open(folder).anatomy
    assert (read.remarks, read.layers[0].output_scale) == ([], 1)
    path.write_text(json.dumps(stored | {"surprise": 1}))
    with pytest.raises(UserError, match=r"anatomy\.json cannot be read \(surprise: "):
        open(folder)


@pytest.mark.parametrize("text", ["", "{", "[1]"])
def test_settings_that_are_no_mapping_are_refused(folder, text):
    (folder / "settings.json").write_text(text)
    with pytest.raises(UserError, match=r"settings\.json cannot be read \("):
        open(folder)


READS = {
    "triggers.h5": lambda run: run.memory(0, 0).triggers,
    "corpus/train.h5": lambda run: run.corpus(),
    "model/vocabulary.h5": lambda run: run.vocabulary,
    "values/projections/1.h5": lambda run: run.memory(1, 0).promotes(1),
}


@pytest.mark.parametrize(
    "name, identity",
    [(name, "tokenizer_hash") for name in READS]  # a corpus belongs to a tokenizer, not to a model
    + [(name, "model_hash") for name in READS if not name.startswith("corpus")]
    + [("triggers.h5", "corpus_hash")],
)
def test_a_file_of_another_model_tokenizer_or_corpus_is_refused_by_name(run, folder, name, identity):
    with hdf5.open(folder / name, None) as file:
        kind = file.attrs["kind"]
    with hdf5.create(folder / name, kind, {**IDENTITY, identity: "of another"}):
        pass
    with pytest.raises(UserError, match=f"{name} belongs to another {identity.removesuffix('_hash')}"):
        READS[name](run)


@pytest.mark.parametrize("name", ["values/by_memory", "keys/patterns"])
@pytest.mark.parametrize("identity", ["model_hash", "corpus_hash"])
def test_a_table_of_another_model_or_corpus_is_refused(run, folder, name, identity):
    table = run.files.details(name)
    table.attrs = {identity: "of another"}
    for group in (0, 1):
        tables.write(table, folder / f"{name}/{group}.parquet")
    for read in (lambda: run.files.details(name), lambda: run.files.memory_rows(name, 1, 0)):
        with pytest.raises(UserError, match=rf"{name}/.\.parquet belongs to another {identity.removesuffix('_hash')}"):
            read()


def test_a_table_by_group_is_found_by_its_name_alone(run, monkeypatch):
    """Also of a branch whose numbers are about no split."""
    whole = run.table("keys/patterns")
    for name in ("keys", "keys/patterns"):
        monkeypatch.delitem(run_files.SPLIT_OF, name, raising=False)
    pd.testing.assert_frame_equal(run.table("keys/patterns"), whole)
    for name in ("keys", "keys/pattern"):
        with pytest.raises(UserError, match=rf"no table '{name}'\..* Choose one of: keys/patterns, "):
            run.files.details(name)


def test_a_split_that_does_not_exist_is_refused(run):
    with pytest.raises(UserError, match=r"'test'\. Choose one of: train, validation"):
        run.corpus("test")


@pytest.mark.parametrize("name", ["values/by_memory/1.parquet", "triggers.h5", "values/projections/0.h5"])
def test_a_missing_file_is_named(run, folder, name):
    (folder / name).unlink()
    with pytest.raises(UserError, match=name):
        run.memories(promotes="church")


def test_benchmarks_are_per_rule_and_of_this_run(run, folder):
    for name, seconds, memory in (
        ("triggers/0", 61.5, "812.3"),
        ("triggers/1", 9.5, "1"),  # an earlier run had two shards
        ("corpus/train", 2, "10"),
        ("corpus/validation", 1, "-"),
        ("values_project/1", 4, "5"),
        ("train", 9, "9"),  # an earlier run trained its model
        ("report", 9, "9"),
    ):
        path = folder / "benchmarks" / f"{name}.tsv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"s\th:m:s\tmax_rss\n{seconds}\t0:01:01\t{memory}\n")
    (folder / "benchmarks/model.tsv").write_text("s\th:m")  # the power went
    expected = pd.DataFrame(
        {"rule": ["corpus", "triggers", "values_project"], "jobs": [2, 1, 1], "seconds": [3, 61.5, 4],
         "longest": [2, 61.5, 4], "memory": [10, 812.3, 5]}
    )  # fmt: skip
    pd.testing.assert_frame_equal(run.files.benchmarks(), expected, check_dtype=False)
    (folder / "benchmarks/unreadable.tsv").mkdir()
    with pytest.raises(UserError, match=r"unreadable\.tsv cannot be read"):
        run.files.benchmarks()


def test_a_run_without_benchmark_files_has_no_benchmarks(run):
    assert run.files.benchmarks().empty


def test_the_summary_is_escaped_and_needs_nothing_from_outside(run, folder):
    (folder.parent / HOSTILE.replace("/", "")).symlink_to(folder)
    html = open(folder.parent / HOSTILE.replace("/", ""))._repr_html_()
    assert "figure_4_agreement" in html
    assert "<script" not in html
    run.settings.corpus.__dict__["dataset"] = HOSTILE
    assert "<script" not in run._repr_html_()
    assert "\u202e" not in run._repr_html_()


def test_opening_reads_two_small_files(folder, monkeypatch):
    """A run of 36,864 memories opens in a moment: nothing that grows with the memories is opened."""
    write_anatomy(folder / "model", anatomy([3072] * 12))
    monkeypatch.setattr(hdf5, "open", lambda *_: pytest.fail("opened a data file"))
    monkeypatch.setattr(run_module, "read_table", lambda *_: pytest.fail("read a table"))
    start = time.perf_counter()
    run = open(folder)
    assert time.perf_counter() - start < 0.2
    assert run.anatomy.layer_offset[-1] == 36_864


def test_the_model_is_loaded_from_the_run(run, monkeypatch):
    from ffkv.model.checkpoint import load

    def load_for(folder, work, gradients):
        return load.LoadedModel(folder, run.anatomy, work.device, batch_tokens=7 if gradients else 64)

    monkeypatch.setattr(load, "load_for", load_for)
    model = run.model("cpu")
    assert model.batch_tokens == 7  # graphs of prompts differentiate it
    assert (model.model, model.folder, model.device) == (run.folder / "model", run.folder / "model", "cpu")
    assert run.model("cpu") is model


def test_details_are_the_rows_of_all_layer_groups(run):
    assert run.files.details("values/by_memory")["layer"].tolist() == [0, 0, 0, 1, 1]
    assert run.files.layer_groups == [range(1), range(1, 2)]
    assert np.array_equal(run.files.memory_rows("values/by_memory", 1, 1)[["layer", "memory"]], [[1, 1]])
