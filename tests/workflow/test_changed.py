"""A run that was made with other settings is told, also where Snakemake has no notes on it."""

import json
import shutil
from pathlib import Path

import pytest
from support import ROOT, settings_file, snakemake
from workflow.dry_run import planned

from ffkv.base.hub.commit import Commit, write_commit
from ffkv.branches.settings import Settings
from ffkv.workflow.changed import MISSING, Change, changes, rules_of


def made_with(folder: Path, **settings) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "settings.json").write_text(json.dumps(Settings.model_validate(settings).model_dump()))
    return folder


def asked(**settings) -> dict:
    return Settings.model_validate(settings).model_dump()


def test_each_setting_that_is_another_one_now_is_told(tmp_path):
    folder = made_with(
        tmp_path, keys={"per_layer": 24}, values={"top_tokens": 5}, behaviours={"a": {"prompts": "a.jsonl"}}
    )
    now = asked(keys={"per_layer": 12}, values={"top_tokens": 5}, behaviours={"b": {"prompts": "b.jsonl"}}, seed=3)
    found = changes(folder, now)
    assert {str(each) for each in found} == {
        "keys.per_layer was 24 and is 12 now",
        "seed was 0 and is 3 now",
        "behaviours.a is not there any more",
        "behaviours.b is new",
    }
    assert changes(folder, asked(**json.loads((folder / "settings.json").read_text()))) == []


def test_a_setting_that_the_ffkv_of_the_run_did_not_know_has_its_default(tmp_path):
    folder = made_with(tmp_path)
    old = json.loads((folder / "settings.json").read_text())
    del old["translation"], old["keys"]["per_layer"]
    (folder / "settings.json").write_text(json.dumps(old))
    assert changes(folder, asked()) == []
    assert [each.name for each in changes(folder, asked(keys={"per_layer": 3}))] == ["keys/per_layer"]


def test_of_a_run_that_is_not_made_or_cannot_be_read_nothing_is_told(tmp_path):
    assert changes(tmp_path, asked()) == []
    (tmp_path / "settings.json").write_text("{")
    assert changes(tmp_path, asked()) == []


def test_a_commit_counts_as_the_branch_that_it_was_resolved_from(tmp_path):
    settings = {"model": {"checkpoint": "some/model", "revision": "main"}}
    folder = made_with(tmp_path, model={"checkpoint": "some/model", "revision": "a" * 40})
    (folder / "commits").mkdir()
    write_commit(folder / "commits/model.json", Commit("model", "some/model", "main", "a" * 40))
    assert changes(folder, asked(**settings)) == []
    control = made_with(tmp_path / "control", model={"checkpoint": "some/model", "revision": "a" * 40})
    assert changes(control, asked(**settings), folder / "commits") == [] != changes(control, asked(**settings))
    settings["model"]["revision"] = "other"
    assert [str(each) for each in changes(folder, asked(**settings))] == [
        "model.revision was 'main' and is 'other' now"
    ]


@pytest.mark.parametrize(
    ("name", "rules"),
    [
        ("report/title", set()),
        ("corpus/title", set()),
        ("roles/threshold", {"roles_measure"}),
        ("refinement/changes", {"refinement_summarize"}),
        ("model/checkpoint", {"resolve_commit", "unpack", "model"}),
        ("model/adapter", {"resolve_commit", "unpack", "model"}),
        ("annotation/folder", {"annotate_agreement"}),
        ("model/max_memory", set()),
    ],
)
def test_the_rules_of_a_setting(name, rules):
    assert rules_of([Change(name, 1, 2)]) == rules | {"write_settings"}
    assert rules_of([Change(name, MISSING, 2)]) == {"write_settings"}


def test_a_behaviour_that_is_gone_repeats_no_other():
    assert rules_of([Change("behaviours/b", {}, MISSING)]) == {"write_settings", "behaviours_summarize"}


@pytest.mark.workflow
def test_snakemake_says_what_is_new_and_how_to_make_the_run_anew(tiny, tmp_path):
    copy = shutil.copytree(tiny, tmp_path / "copy", symlinks=True)
    config = settings_file(tmp_path, runs={"tiny": {"roles": {"threshold": 0.4}}})
    told = "results/tiny was made with other settings: roles.threshold was 0.5 and is 0.4 now."
    known = snakemake(copy, config, "-n")
    assert told in known.stderr and "no notes" not in known.stderr
    shutil.rmtree(copy / ".snakemake")
    for more in ("-n", "--quiet"):  # nothing is done, so a real run is as fast
        unknown = snakemake(copy, config, more)
        assert unknown.returncode == 0 and planned(unknown.stdout + unknown.stderr) == {}
        assert unknown.stderr.count(told) == 1
        assert "snakemake reports/tiny/index.html --forcerun roles_measure write_settings\n" in unknown.stderr
    refused = snakemake(copy, config, "no/such/file")
    assert refused.returncode and "other settings" not in refused.stderr and "no notes" not in refused.stderr
    forced = snakemake(copy, config, "-n", "--forcerun", "roles_measure", "write_settings")
    assert planned(forced.stdout + forced.stderr).keys() == {"roles_measure", "write_settings", "report", "all"}
    assert told in forced.stderr and "no notes" not in forced.stderr
    assert "other settings" not in snakemake(copy, ROOT / "configs/tiny.yaml", "-n").stderr
