from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

import ffkv.activations.last_token
import ffkv.keys.precision
import ffkv.model.anatomy
import ffkv.model.checkpoint.load
from ffkv.activations.trigger_file import read_triggers, write_triggers
from ffkv.errors import UserError
from ffkv.files import tables
from ffkv.keys.commands import keys

FEW = ["--per-layer", 4, "--background-prefixes", 1000]


def ffkv_keys(*arguments):
    result = CliRunner().invoke(keys, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output


@pytest.fixture
def run(written, make_triggers, tmp_path):
    """Files of a run of 3 layers: keys that detect a last word, random keys and a dead layer."""
    corpus, corpus_file = written
    generator = np.random.default_rng(0)
    position = np.array([generator.integers(1, length) for length in corpus.lengths])
    last = corpus.tokens[corpus.offsets[:-1] + position - 1]
    words = np.argsort(-np.bincount(last), kind="stable")[10:16]
    detectors = [[(s, position[s]) for s in np.flatnonzero(last == word)[:25]] for word in words]
    anything = [[(s, position[s]) for s in generator.permutation(len(corpus))[:25]] for _ in range(5)]
    triggers = make_triggers(corpus, [detectors, [[], []], anything])
    write_triggers(tmp_path / "triggers.h5", triggers)
    return SimpleNamespace(folder=tmp_path, corpus=corpus, corpus_file=corpus_file, triggers=tmp_path / "triggers.h5")


def find_patterns(run, group=0, groups=1, extra=()):
    names = [run.folder / f"{what}-{group}-{groups}.parquet" for what in ("patterns", "prefixes")]
    part = ["--layer-group", group, "--layer-groups", groups]
    files = ["--triggers", run.triggers, "--corpus", run.corpus_file, "--patterns", names[0], "--prefixes", names[1]]
    ffkv_keys("patterns", *files, *FEW, *part, *extra)
    return names


def test_patterns_of_a_run(run):
    patterns, prefixes = map(tables.read, find_patterns(run))
    found = patterns[(patterns["sample"] == "trigger") & (patterns["layer"] == 0)]
    assert found["memory"].nunique() == 4
    assert set(found[found["pattern"] == 0]["kind"]) == {"last word"}
    assert set(found[found["pattern"] == 0]["prefixes"]) == {25}
    assert found["ranks"].iloc[0].tolist() == list(range(25))
    assert set(patterns["layer"]) == {0}
    assert prefixes.groupby(["sample", "layer"]).size().to_dict() == {
        (sample, layer): 100 for sample in ("random", "trigger") for layer in (0, 2)
    }


@pytest.mark.parametrize("groups", [2, 3, 5])
def test_groups_of_layers_change_nothing(run, groups):
    whole = find_patterns(run)
    parts = [find_patterns(run, group, groups) for group in range(groups)]
    for one, several in zip(whole, zip(*parts)):
        pd.testing.assert_frame_equal(tables.read(one), tables.read_all(several))


def test_a_pattern_needs_no_more_prefixes_than_are_looked_at(run):
    with pytest.raises(UserError, match=r"minimum_prefixes is 9: at most keys\.pattern_triggers, 5"):
        find_patterns(run, extra=["--minimum-prefixes", 9, "--pattern-triggers", 5])


def test_triggers_of_another_corpus_are_refused(run, write_corpus):
    _, run.corpus_file = write_corpus([["another corpus", "of two sentences"]])
    with pytest.raises(UserError, match="belongs to another corpus"):
        find_patterns(run)


@pytest.fixture
def fake_model(monkeypatch, tmp_path):
    """A model folder whose coefficients are the number of tokens times the memory's number plus one."""
    identity = {"model_hash": "fake", "tokenizer_hash": "blanks"}

    def last_coefficients(model, layer, rows, memories, batch_tokens):
        return np.array([len(row) * (memory + 1) for row, memory in zip(rows, memories)], np.float32)

    monkeypatch.setattr(ffkv.model.anatomy, "read_anatomy", lambda folder: SimpleNamespace(identity=identity))
    model = SimpleNamespace(model=SimpleNamespace(float=lambda: None))
    monkeypatch.setattr(ffkv.model.checkpoint.load, "load", lambda folder, device: model)
    for module in (ffkv.activations.last_token, ffkv.keys.precision):
        monkeypatch.setattr(module, "last_coefficients", last_coefficients)
    return identity


def remove(run, group=0, groups=1):
    output = run.folder / f"removal-{group}-{groups}.parquet"
    part = ["--layer-group", group, "--layer-groups", groups, "--per-layer", 4]
    ffkv_keys(
        "removal",
        "--model",
        run.folder,
        "--triggers",
        run.triggers,
        "--corpus",
        run.corpus_file,
        *part,
        "--output",
        output,
    )
    return output


def test_removal_of_a_run(run, fake_model):
    found = tables.read(remove(run))
    assert found.groupby(["layer", "removed"]).size().to_dict() == {
        (layer, removed): 4 for layer in (0, 2) for removed in ("first", "last", "random")
    }
    assert (found["triggers"] + found["skipped"] == 25).all()
    assert found["change"].between(-50, 0).all()
    first, last, _ = (found[found["removed"] == removed]["change"].tolist() for removed in ("first", "last", "random"))
    assert first == last
    pd.testing.assert_frame_equal(found, tables.read_all([remove(run, 0, 2), remove(run, 1, 2)]))


def test_precision_of_a_run(run, fake_model):
    """The fixtures' coefficients are 100, 99, ... by rank; the fake model's go by length and memory."""
    output = run.folder / "precision.csv"
    files = ["--triggers", run.triggers, "--corpus", run.corpus_file, "--output", output]
    ffkv_keys("precision", "--model", run.folder, *files, "--per-layer", 100)
    found, triggers = tables.read(output), read_triggers(run.triggers)
    assert found["layer"].tolist() == [0, 1, 2]
    assert found["keys"].tolist() == [6, 0, 5]
    assert found["triggers"].tolist() == [150, 0, 125]
    rows = triggers.rows(2)
    exact = triggers.position[rows] * np.arange(1, 6)[:, None]
    errors = np.abs(exact - triggers.coefficient[rows]) / triggers.coefficient[rows]
    assert found["error_median"][2] == pytest.approx(np.median(errors), rel=1e-6)
    assert found["error_largest"][2] == pytest.approx(errors.max(), rel=1e-6)
    assert found["first_stays"][2] == (exact.argmax(1) == 0).mean()


def test_triggers_of_another_model_are_refused(run, fake_model):
    fake_model["model_hash"] = "other"
    with pytest.raises(UserError, match="belongs to another model"):
        remove(run)


def test_the_summary_has_every_layer(run, fake_model):
    groups = [(*find_patterns(run, group, 2), remove(run, group, 2)) for group in range(2)]
    options = [part for group in groups for part in zip(("--patterns", "--prefixes", "--removal"), group)]
    ffkv_keys("summarize", "--triggers", run.triggers, *sum(options, ()), "--output", run.folder / "keys")
    expected = {"categories": 2 * 3 * 4, "patterns": 2 * 3, "removal": 3 * 3, "activity": 3}
    assert {name: len(tables.read(run.folder / "keys" / f"{name}.csv")) for name in expected} == expected
    patterns = tables.read(run.folder / "keys" / "patterns.csv").set_index(["sample", "layer"])
    assert patterns.loc[("trigger", 0), "keys_with_pattern"] == 4
    assert patterns.loc[("random", 0), "keys_with_pattern"] == 0


def test_a_group_that_is_missing_is_noticed(run, fake_model):
    patterns, prefixes = find_patterns(run, 0, 3)
    with pytest.raises(UserError, match=r"--prefixes: layers \[2\] are missing"):
        ffkv_keys(
            "summarize", "--triggers", run.triggers, "--patterns", patterns, "--prefixes", prefixes,
            "--removal", remove(run), "--output", run.folder / "keys",
        )  # fmt: skip


def test_help_names_every_subcommand():
    result = CliRunner().invoke(keys, ["--help"])
    assert all(name in result.output for name in ("patterns", "removal", "summarize"))
