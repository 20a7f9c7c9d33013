"""Bad settings and bad input: one clear message through Snakemake, and no file."""

import pytest
import yaml
from support import OFFLINE, random_checkpoint, settings_file, snakemake

pytestmark = pytest.mark.workflow


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"trigers": {"per_key": 5}}, "Unknown setting 'trigers'"),
        ({"model": {"checkpoint": "package:no_such"}}, "Python finds no package 'no_such'"),
    ],
)
def test_bad_settings_stop_before_the_plan(tmp_path, change, message):
    refused = snakemake(tmp_path, settings_file(tmp_path, **change))
    assert refused.returncode != 0
    assert message in refused.stderr
    assert "Traceback" not in refused.stderr
    assert not (tmp_path / "results").exists()


BAD = {
    "a missing checkpoint": ({"model": {"checkpoint": "./nowhere"}}, "There is no checkpoint folder ./nowhere"),
    "a corpus of one sentence": (
        {"corpus": {"dataset": "files", "train": "one.txt", "validation": "one.txt"}},
        "1 sentences of two tokens or more",
    ),
    "a missing field": (
        {"corpus": {"dataset": "files", "train": "rows.jsonl", "text_field": "body"}},
        "rows.jsonl has no field 'body'",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_ends_with_one_clear_message_and_no_file(tmp_path, case):
    change, message = BAD[case]
    checkpoint = random_checkpoint(tmp_path / "checkpoint", "gpt2")
    for name, text in {"one.txt": "w1 w2 w3\n", "rows.jsonl": '{"text": "w1 w2"}\n'}.items():
        (tmp_path / name).write_text(text)
    config = {"model": {"checkpoint": str(checkpoint)}, "runs": {"bad": {"report": {"control": "none"}}}, **change}
    (tmp_path / "bad.yaml").write_text(yaml.safe_dump(config))
    failed = snakemake(tmp_path, tmp_path / "bad.yaml")
    assert failed.returncode != 0
    assert message in failed.stderr
    assert "Traceback" not in failed.stderr
    if "corpus.log" in failed.stderr:  # a job has begun
        last = failed.stderr.rstrip().splitlines()[-1]
        assert last.startswith("ffkv: the run is not finished. Start the same command again")
    made = {
        path.name
        for path in (tmp_path / "results/bad").rglob("*")
        if path.is_file() and path.suffix not in (".log", ".tsv", ".sha256")
    }
    assert made <= {"settings.json", *([] if "checkpoint" in case else ["values.h5"])} | {
        path.name for path in (tmp_path / "results/bad/model").glob("*")
    } | {"0.h5"}
    assert not (tmp_path / "results/bad/corpus").exists() or not list((tmp_path / "results/bad/corpus").glob("*.h5"))
    assert not (tmp_path / "reports/bad/index.html").exists()


def test_a_missing_text_is_said_before_a_model_is_trained(tmp_path):
    change = {"model": {"checkpoint": "embedded"}, "corpus": {"dataset": "files", "train": "nowhere/*.txt"}}
    failed = snakemake(tmp_path, settings_file(tmp_path, **change))
    assert failed.returncode != 0
    assert "nowhere/*.txt" in failed.stderr and "Traceback" not in failed.stderr
    assert not list(tmp_path.glob("results/*/checkpoint")) and not list(tmp_path.glob("results/*/logs/*"))


def test_a_missing_package_is_said_by_a_dry_run(tmp_path):
    change = {"corpus": {"dataset": "files", "train": "package:no_texts/*.txt"}}
    failed = snakemake(tmp_path, settings_file(tmp_path, **change), "-n")
    assert failed.returncode != 0
    said = failed.stdout + failed.stderr
    assert "Python finds no package 'no_texts'" in said and "Traceback" not in said


def test_a_comparison_whose_package_cannot_be_used_is_told_why(tmp_path):
    """A package that is broken costs its own rules alone, and Snakemake would name only the page that nothing makes."""
    (tmp_path / "broken/ffkv_comparison").mkdir(parents=True)
    (tmp_path / "broken/ffkv_comparison/__init__.py").write_text("raise ImportError('made up')")
    environment = {**OFFLINE, "PYTHONPATH": str(tmp_path / "broken")}
    runs = {"runs": {"one": {}, "two": {"seed": 1}}}
    asked = {"comparisons": {"both": {"runs": ["one", "two"]}}}
    for more, code in ((asked, 1), ({}, 0)):
        told = snakemake(tmp_path, settings_file(tmp_path, **runs, **more), "-n", environment=environment)
        said = told.stdout + told.stderr
        assert told.returncode == code, said
        assert ("'comparison' cannot be used, because" in said and "(ImportError: made up)" in said) == bool(code)
        assert "Missing input files" not in said and "Traceback" not in said


def test_a_run_that_the_settings_file_lacks_is_named(tmp_path):
    failed = snakemake(tmp_path, settings_file(tmp_path), "results/nobody/keys/activity.csv")
    assert failed.returncode != 0
    assert "No run is called nobody. The settings name: " in failed.stderr


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"behaviours": {"agreement": {"prompts": "nowhere.jsonl"}}}, "nowhere.jsonl"),
        ({"concepts": {"french": {"labels": "nowhere.csv"}}}, "No file of labels matches 'nowhere.csv'"),
        (
            {"values": {"readout": "all"}, "translation": {"lens": "nowhere.pt"}},
            "There is no file nowhere.pt. Set translation.lens to another one.",
        ),
    ],
)
def test_a_file_that_the_settings_of_a_branch_name_is_looked_for_before_a_job_starts(tmp_path, section, message):
    failed = snakemake(tmp_path, settings_file(tmp_path, **section), "-n")
    assert failed.returncode != 0
    assert message in failed.stderr and "Traceback" not in failed.stderr
