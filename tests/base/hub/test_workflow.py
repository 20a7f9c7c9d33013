"""A run of a model and a data set from the hub through Snakemake."""

import json

import h5py
import pytest
from forks import with_forks
from support import random_sentences, settings_file, snakemake

from tests.base.hub.contents import parquet_dataset, sentences

pytestmark = pytest.mark.workflow
TARGETS = ["triggers.h5", "corpus/validation.h5", "settings.json"]


def test_a_push_in_the_middle_changes_nothing_and_is_said(hub, cache, model_folders, tmp_path):
    """Two runs read two revisions of one model. Both branches and the data set move when the first corpus is read."""
    model, words = hub.model("someone/tiny"), hub.dataset("someone/words")
    first = model.push_folder(model_folders("llama", seed=0))
    early = model.push_folder(model_folders("llama", seed=1), branch="early")
    rows = parquet_dataset({"default": {"train": [{"text": text} for text in random_sentences(0, 200)]}}, group_rows=20)
    read = words.push(rows)
    hub.when(
        "train-00000.*parquet",
        lambda: (
            model.push_folder(model_folders("llama", seed=2)),
            words.push(parquet_dataset({"default": {"train": sentences(50)}})),
        ),
    )
    config = settings_file(
        tmp_path,
        model={"checkpoint": "someone/tiny"},
        corpus={"dataset": "someone/words", "limit": 60},
        shards=1,
        runs={"late": {}, "early": {"model": {"revision": "early"}}},
    )
    environment = hub.environment(cache)
    files = [f"results/{run}/{name}" for run in ("late", "early") for name in TARGETS]
    done = snakemake(tmp_path, config, *files, environment=with_forks(environment))
    assert done.returncode == 0, done.stderr[-8000:]
    for run, commit in {"late": first, "early": early}.items():
        results = tmp_path / "results" / run
        settings = json.loads((results / "settings.json").read_text())
        assert (settings["model"]["revision"], settings["corpus"]["revision"]) == (commit, read)
        anatomy = json.loads((results / "model/anatomy.json").read_text())
        assert (anatomy["revision"], anatomy["commit"]) == ("main" if run == "late" else "early", commit)
        for name in ("values.h5", "triggers.h5"):
            with h5py.File(results / name) as file:
                assert file.attrs["model_commit"] == commit
        for name in ("corpus/train.h5", "corpus/validation.h5", "triggers.h5"):
            with h5py.File(results / name) as file:
                assert (file.attrs["dataset_commit"], file.attrs["dataset_revision"]) == (read, "main")
    hashes = [json.loads((tmp_path / "results" / run / "model/anatomy.json").read_text()) for run in ("late", "early")]
    assert hashes[0]["model_hash"] != hashes[1]["model_hash"]
    assert f"someone/tiny: main is at commit {model.branches['main']} by now" in done.stderr
    assert f"someone/words: main is at commit {words.branches['main']} by now" in done.stderr
    assert "someone/tiny: early" not in done.stderr

    # Without the hub the results stay as they are, and other settings read what was fetched.
    hub.stop()
    offline = hub.environment(cache, HF_HUB_OFFLINE="1")
    again = snakemake(tmp_path, config, *files, environment=offline)
    assert again.returncode == 0, again.stderr[-8000:]
    assert "Nothing to be done" in again.stderr
