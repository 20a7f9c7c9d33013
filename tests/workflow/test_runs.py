"""A whole run of the small embedded model through Snakemake: what stands there afterwards, and what a change reruns."""

import json
import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest
import yaml
from click.testing import CliRunner
from forks import with_forks
from support import OFFLINE, ROOT, described, make_run, settings_file, snakemake
from workflow.dry_run import jobs_to_do

import ffkv
from ffkv.base.files import tables
from ffkv.base.files.columns import GROUP
from ffkv.branches.settings import Settings
from ffkv.corpus.step import choose_sentences
from ffkv.plan.commands import plan
from ffkv.run.results.check import check_run
from ffkv.run.results.expected import TABLES, expected_files

pytestmark = pytest.mark.workflow
# But those that are planned in other tests here.
CONFIGS = sorted({path.name for path in (ROOT / "configs").glob("*.yaml")} - {"tiny.yaml", "training.yaml"})


def test_a_run_ends_in_a_report(tiny):
    page = (tiny / "reports/tiny/index.html").read_text()
    assert all(f"figure_{number}" in page or f"Figure {number}" in page for number in range(2, 12))
    assert len(list((tiny / "reports/tiny/figures").glob("*.svg"))) >= 10
    assert "type on trigger examples, per layer" not in page  # of models in low precision alone


def test_every_table_is_as_it_is_described(tiny):
    """Its columns, their types, their limits and their words. A CSV file only tells numbers from text."""
    run = ffkv.open(tiny / "results/tiny")
    there = {*expected_files(run.settings)}
    described = [table for table in TABLES.values() if {table.path, table.path.replace(GROUP, "0")} & there]
    described.append(TABLES["checkpoint/training.csv"])
    assert len(described) > 25
    for table in described:
        found = tables.read(run.folder / table.path.format(group=0)) if GROUP in table.path else run.table(table.name)
        # The model of this run has no gates, so no cases of their signs.
        assert len(found) or table.path.startswith("roles/sign_cases"), table.path
        table.check(found)
        for column in (each for each in table.columns if each.name in found):
            values, where = found[column.name], f"{table.path}: {column.name}"
            assert GROUP not in table.path or str(values.dtype) == column.dtype, where
            assert GROUP in table.path or pd.api.types.is_numeric_dtype(values) == (column.dtype != "str"), where
            assert column.lowest is None or not (values < column.lowest).any(), where
            assert column.highest is None or not (values > column.highest).any(), where
            assert not column.choices or {*values} <= {*column.choices}, where


def test_the_files_of_a_run_are_those_that_are_expected(tiny):
    """`ffkv check` asks for exactly these: a table that nobody expects would not be missed."""
    run = tiny / "results/tiny"
    settings = Settings.model_validate_json((run / "settings.json").read_bytes())
    folders = [name for name in expected_files(settings) if (run / name).is_dir()]
    files = [path.relative_to(run) for path in run.rglob("*") if path.suffix in {".csv", ".parquet", ".h5", ".json"}]
    alone = {str(path) for path in files if path.parts[0] not in folders and ".blocks" not in str(path)}
    assert alone | set(folders) == set(expected_files(settings))


def test_every_dataset_says_what_it_is(tiny):
    assert len(described(tiny / "results")) > 50


def test_every_job_left_a_log_and_a_benchmark(tiny):
    jobs = {
        path.relative_to(tiny / "results/tiny/benchmarks").with_suffix("")
        for path in (tiny / "results/tiny/benchmarks").rglob("*.tsv")
    }
    logs = {
        path.relative_to(tiny / "results/tiny/logs").with_suffix("")
        for path in (tiny / "results/tiny/logs").rglob("*.log")
    }
    assert jobs == logs
    assert len(jobs) > 20


def test_shards_of_triggers_are_gone_once_they_are_merged(tiny):
    assert not list((tiny / "results/tiny/triggers").glob("*.h5"))
    assert check_run(tiny / "results/tiny")[1] == []


def test_a_corpus_that_was_made_again_repeats_the_triggers_though_their_shards_are_gone(tiny, tmp_path):
    """Of a run that was killed after its corpus step, only times tell that the triggers are of an earlier corpus."""
    copy = shutil.copytree(tiny, tmp_path / "copy", symlinks=True)
    assert jobs_to_do(copy, ROOT / "configs/tiny.yaml") == {}
    corpus, later = copy / "results/tiny/corpus/train.h5", time.time() + 10
    with corpus.open("ab") as file:  # Snakemake compares the contents of small files, too
        file.write(b"another")
    os.utime(corpus, (later, later))
    assert {"triggers", "merge_triggers"} <= jobs_to_do(copy, ROOT / "configs/tiny.yaml").keys()


def test_a_second_run_does_nothing(tiny):
    again = snakemake(tiny, ROOT / "configs/tiny.yaml")
    assert again.returncode == 0
    assert "Nothing to be done" in again.stderr + again.stdout


ALWAYS = {"write_settings", "report", "all"}
COMPOSITION = {"composition_measure", "composition_summarize"}
VALUES = {"values_project", "values_summarize"}
KEYS = {"keys_patterns", "keys_removal", "keys_summarize"}
INTERVENTION = {"intervention_measure", "intervention_summarize"}
ROLES = {"roles_measure"}
LENS = {"translation_jacobian", "translation_summarize"}
TRANSLATION = {"translation_measure"} | LENS
READS_VALUES = COMPOSITION | INTERVENTION | TRANSLATION
# The projections of values are in one step with their comparison to triggers, and four branches read the projections.
TRIGGERS = {"triggers", "merge_triggers", "translation_keys"} | KEYS | VALUES | READS_VALUES | ROLES
PREFIXES = {"sampled_prefixes", "merge_sampled_prefixes", "refinement_measure", "refinement_summarize"} | READS_VALUES
PREFIXES |= {"translation_fit", "translation_average"}  # judge the maps on them


@pytest.mark.parametrize(
    ("change", "reruns"),
    [
        ({"report": {"title": "Another"}, "corpus": {"title": "Another"}, "model": {"gpus": 2}}, set()),
        ({"triggers": {"per_key": 21}}, TRIGGERS),
        ({"values": {"projection": "unembedding"}}, VALUES | READS_VALUES | ROLES),
        ({"composition": {"mass": 0.8}}, COMPOSITION),
        ({"refinement": {"changes": 3}}, {"refinement_summarize"}),
        ({"intervention": {"controls": 6}}, INTERVENTION),
        ({"intervention": {"memories": 0}}, set()),
        ({"roles": {"threshold": 0.4}}, ROLES),
        (
            {"translation": {"prefixes": 400}},
            {"translation_read", "translation_fit", "translation_measure", "translation_summarize"},
        ),
        ({"translation": {"skip": 3}}, {"translation_derive", "translation_average", "translation_keys"} | LENS),
        ({"keys": {"minimum_prefixes": 4}}, {"keys_patterns", "keys_summarize"}),
        ({"prefixes": {"count": 150}}, PREFIXES),
    ],
)
def test_a_changed_setting_reruns_what_depends_on_it_and_nothing_else(tiny, tmp_path, change, reruns):
    assert jobs_to_do(tiny, settings_file(tmp_path, runs={"tiny": change})).keys() == reruns | ALWAYS


def same_datasets(one, other):
    def compare(name, item):
        if isinstance(item, h5py.Dataset):
            np.testing.assert_array_equal(item[...], second[name][...], err_msg=f"{one}: {name}")

    with h5py.File(one) as first, h5py.File(other) as second:
        first.visititems(compare)


@pytest.mark.parametrize(("times", "told"), [("-a", False), ("-r", True)])
def test_a_copy_of_a_folder_has_nothing_to_do(tiny, tmp_path, times, told):
    """If the copy keeps the times of files; or, after `cp -r`, once Snakemake is told."""
    config, place = ROOT / "configs/tiny.yaml", tmp_path / "copy"
    subprocess.run(["cp", times, tiny, place], check=True)
    if told:
        assert snakemake(place, config, "--touch").returncode == 0
    assert jobs_to_do(place, config) == {}
    assert check_run(place / "results/tiny")[1] == []


def test_shards_and_groups_change_no_number(tiny, tmp_path):
    """The tiny run has two shards and two groups of layers; here three and one, from the same checkpoint."""
    checkpoint = {"checkpoint": str(tiny / "results/tiny/checkpoint")}
    make_run(tmp_path, settings_file(tmp_path, shards=3, layer_groups=1, model=checkpoint), "--omit-from", "report")
    assert not (tmp_path / "results/tiny/checkpoint").exists()
    for name in ("triggers.h5", "sampled_prefixes.h5", "values.h5", "corpus/train.h5", "corpus/validation.h5"):
        same_datasets(tiny / "results/tiny" / name, tmp_path / "results/tiny" / name)
    for path in (tiny / "results/tiny").glob("*/*.csv"):
        if path.parent.name != "checkpoint":
            assert (
                path.read_text() == (tmp_path / "results/tiny" / path.relative_to(tiny / "results/tiny")).read_text()
            ), path


@pytest.fixture(scope="module")
def compared(tiny, tmp_path_factory) -> Path:
    """The tiny run once more, compared with an untrained model."""
    folder = shutil.copytree(tiny, tmp_path_factory.mktemp("compared") / "runs", symlinks=True)
    config = settings_file(folder, report={"cards": 4})
    assert jobs_to_do(folder, config) == CONTROL | {"write_settings": 2, "report": 1, "all": 1}
    make_run(folder, config)
    return folder


# The jobs of a control: one layer group instead of two. Its model is not trained.
CONTROL = dict.fromkeys((TRIGGERS | PREFIXES) - {"merge_triggers"}, 1)
CONTROL |= {"merge_triggers": 1, "model": 1, "copy_corpus": 2, "translation_read": 1, "translation_derive": 1}


def test_a_control_is_a_run_of_the_same_text_that_comes_with_its_run(compared):
    results = compared / "results"
    whole, copy = (results / name / "corpus/validation.h5" for name in ("tiny", "tiny-untrained"))
    assert whole.read_bytes() == copy.read_bytes()
    run, control = (ffkv.open(results / name) for name in ("tiny", "tiny-untrained"))
    part = choose_sentences(len(run.corpus("train"))).tolist()
    assert list(control.corpus("train").texts) == [run.corpus("train").texts[number] for number in part]
    assert (run.settings.report.control, control.settings.report.control) == ("tiny-untrained", "none")
    assert control.anatomy.weights == "random"
    assert [layer.memories for layer in control.anatomy.layers] == [layer.memories for layer in run.anatomy.layers]
    assert check_run(control.folder)[1] == []
    assert not (compared / "reports/tiny-untrained").exists()
    assert jobs_to_do(compared, compared / "settings.yaml", "reports/tiny-untrained/index.html") == {"report": 1}


def test_steps_of_a_training_share_one_control(tmp_path):
    found = jobs_to_do(tmp_path, ROOT / "configs/training.yaml")
    assert (found["train"], found["report"], found["model"], found["corpus"]) == (1, 5, 6, 10)


def test_a_tuning_waits_for_its_base(tmp_path):
    assert jobs_to_do(tmp_path, ROOT / "configs/tuned.yaml", "results/full/checkpoint") == {"train": 2}


@pytest.mark.parametrize("name", ["../config.yaml", *CONFIGS])
def test_every_settings_file_has_a_plan(tmp_path, name):
    (tmp_path / "configs").symlink_to(ROOT / "configs")  # of prompts, which must be there
    assert "report" in jobs_to_do(tmp_path, ROOT / "configs" / name)


def test_snakemakes_own_report_lists_the_figures(tiny, tmp_path):
    made = snakemake(tiny, ROOT / "configs/tiny.yaml", "--report", str(tmp_path / "report.zip"))
    assert made.returncode == 0, made.stderr
    listed = subprocess.run(
        ["python", "-m", "zipfile", "-l", tmp_path / "report.zip"], capture_output=True, text=True
    ).stdout
    assert "figure_4.svg" in listed


def written(folder) -> dict[str, int]:
    """Bytes below a folder, of each file but what Snakemake keeps for itself."""
    return {
        str(path.relative_to(folder)): path.stat().st_size
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith(".") and not {"logs", "benchmarks"} & set(path.parts)
    }


def test_a_plan_says_what_a_run_writes(tiny, tmp_path):
    # Nothing is done yet in its folder.
    command = ["ffkv", "plan", "--configfile", ROOT / "configs/tiny.yaml", "--json"]
    planned = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=with_forks(OFFLINE))
    assert planned.returncode == 0, planned.stderr
    found = json.loads(planned.stdout)
    run = found["runs"]["tiny"]
    anatomy = json.loads((tiny / "results/tiny/model/anatomy.json").read_text())
    assert run["shape"]["parameters"] == anatomy["parameters"]
    made = written(tiny / "results/tiny") | written(tiny / "reports/tiny")
    made |= {f"triggers/{shard}.h5": made["triggers.h5"] for shard in range(2)}
    assert 0.9 * sum(made.values()) < found["total"]["written"] < 1.3 * sum(made.values())
    rules = {rule["rule"]: rule for rule in run["rules"]}
    # The shards, each as large as the file, are gone. Trigger examples of the random weights that a plan tries compress less
    # than those of a trained model: to 1.4 times the size here.
    assert 0.85 < rules["triggers"]["written"] / (3 * made["triggers.h5"]) < 1.6
    assert all(rule["memory"] > 0 and rule["seconds"] > 0 for rule in run["rules"] if rule["rule"] != "write_settings")


def test_a_finished_run_has_nothing_left_to_do(tiny, tmp_path, monkeypatch, forked_python):
    monkeypatch.chdir(tiny)
    config = yaml.safe_load((ROOT / "configs/tiny.yaml").read_text())
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(config))
    planned = CliRunner().invoke(plan, ["--configfile", str(tmp_path / "tiny.yaml"), "--json"])
    found = json.loads(planned.stdout)
    assert all(rule["done"] for rule in found["runs"]["tiny"]["rules"])
    assert found["total"]["seconds"] == found["total"]["written"] == 0
    assert found["runs"]["tiny"]["text"]["train"]["source"] == "read from its file"


def test_the_tutorial_runs_as_it_is_written(own_tiny, monkeypatch, capsys):
    (own_tiny / "results/demo").symlink_to("tiny")  # the checkpoint of the run is in results/tiny
    monkeypatch.chdir(own_tiny)
    tutorial = ROOT / "docs/python.md"
    page, variables = tutorial.read_text(), {}
    for block in re.finditer(r"```python\n(.*?)```", page, re.DOTALL):
        line = page[: block.start()].count("\n") + 1
        exec(compile("\n" * line + block[1], tutorial, "exec"), variables)
    assert "There is no layer 99. The model has layers 0 to 1." in capsys.readouterr().out
    assert len(variables["by_memory"]) == variables["run"].anatomy.layer_offset[1]  # its first group: a layer of two
