"""The steps of keys on files, and their commands: layers in groups, dead layers, files of other runs."""

from itertools import product
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from support import call_branch

import ffkv.activations.last_token
import ffkv.branches.given
import ffkv.branches.keys.removal
import ffkv.model.checkpoint.load
from ffkv.activations.trigger_file import read_triggers, write_triggers
from ffkv.base.errors import UserError
from ffkv.base.files import tables
from ffkv.base.steps import Part, Work
from ffkv.branches.given import Given
from ffkv.branches.keys.patterns import find_patterns
from ffkv.branches.keys.removal import measure_precision, remove_tokens
from ffkv.branches.keys.summarize import summarize_keys
from ffkv.branches.settings import Keys

FEW = Keys(per_layer=4, background_prefixes=1000)


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


def given(run, work=Work(), **others):
    return Given(work, triggers=run.triggers, train=run.corpus_file, **others)


def write(run, step, outputs, group=0, groups=1, extra=""):
    """Runs a command of `ffkv keys` on a group of layers; returns the tables that it wrote. `outputs`: option to name."""
    paths = [run.folder / f"{name}-{group}-{groups}.parquet" for name in outputs.values()]
    written = " ".join(f"--{option} {path}" for option, path in zip(outputs, paths))
    files = f"--triggers {run.triggers} --train {run.corpus_file}"
    call_branch("keys", f"{step} {files} --per-layer 4 --layer-group {group} --layer-groups {groups} {written} {extra}")
    return paths


def write_patterns(run, group=0, groups=1, extra=""):
    outputs = {"output-patterns": "patterns", "output-by-prefix": "by_prefix"}
    return write(run, "patterns", outputs, group, groups, f"--background-prefixes 1000 {extra}")


def write_removal(run, group=0, groups=1):
    return write(run, "removal", {"output": "removal"}, group, groups, f"--model {run.folder}")[0]


def test_patterns_of_a_run(run):
    patterns, prefixes = map(tables.read, write_patterns(run))
    of_triggers = patterns[(patterns["sample"] == "trigger") & (patterns["layer"] == 0)]
    assert of_triggers["memory"].nunique() == 4
    first = of_triggers[of_triggers["pattern"] == 0]
    assert {*first["kind"]} == {"last word"} and {*first["prefixes"]} == {25}
    assert of_triggers["ranks"].iloc[0].tolist() == list(range(25))
    assert set(patterns["layer"]) == {0}
    assert prefixes.groupby(["sample", "layer"]).size().to_dict() == {
        (sample, layer): 100 for sample in ("random", "trigger") for layer in (0, 2)
    }


def test_the_command_writes_what_the_step_returns(run):
    written = map(tables.read, write_patterns(run, 1, 2))
    for one, other in zip(written, find_patterns(given(run, Work(part=Part(1, 2))), FEW)):
        pd.testing.assert_frame_equal(one, other)
        assert one.attrs == other.attrs


@pytest.mark.parametrize("groups", [2, 5])
def test_groups_of_layers_change_nothing(run, groups):
    """Of several layers, of one, and without any."""
    whole = write_patterns(run)
    parts = [write_patterns(run, group, groups) for group in range(groups)]
    for one, several in zip(whole, zip(*parts)):
        pd.testing.assert_frame_equal(tables.read(one), tables.read_all(several))


def test_a_pattern_needs_no_more_prefixes_than_are_looked_at(run):
    with pytest.raises(UserError, match=r"minimum_prefixes is 9: must be at most keys\.pattern_triggers, 5"):
        write_patterns(run, extra="--minimum-prefixes 9 --pattern-triggers 5")


def test_triggers_of_another_corpus_are_refused(run, write_corpus):
    _, run.corpus_file = write_corpus([["another corpus", "of two sentences"]])
    with pytest.raises(UserError, match="belongs to another corpus"):
        find_patterns(given(run), FEW)


@pytest.fixture
def fake_model(monkeypatch, tmp_path):
    """A model folder whose coefficients are the number of tokens times the memory's number among all, plus one."""
    identity = {"model_hash": "fake", "tokenizer_hash": "blanks"}

    def last_coefficients(model, rows, memories, batch_tokens, branching=False, on_rows=None):
        return np.array([len(row) * (memory + 1) for row, memory in zip(rows, memories)], np.float32)

    anatomy = SimpleNamespace(identity=identity, layers=range(3))
    monkeypatch.setattr(ffkv.branches.given, "read_anatomy", lambda folder: anatomy)
    model = SimpleNamespace(model=torch.nn.Module(), batch_tokens=64)
    monkeypatch.setattr(ffkv.model.checkpoint.load, "load_for", lambda *_: model)
    monkeypatch.setattr(ffkv.activations.last_token, "last_coefficients", last_coefficients)
    monkeypatch.setattr(ffkv.activations.last_token, "can_branch", lambda *_: True)
    return identity


def test_removal_of_a_run(run, fake_model):
    table = tables.read(write_removal(run))
    assert table.groupby(["layer", "removed"]).size().to_dict() == {
        (layer, removed): 4 for layer in (0, 2) for removed in ("first", "last", "random")
    }
    assert (table["triggers"] + table["skipped"] == Keys().removal_triggers).all()
    assert table["change"].between(-50, 0).all()
    first, last = (table[table["removed"] == removed]["change"].tolist() for removed in ("first", "last"))
    assert first == last
    pd.testing.assert_frame_equal(table, tables.read_all([write_removal(run, 0, 2), write_removal(run, 1, 2)]))


def test_precision_of_a_run(run, fake_model):
    """The fixtures' coefficients are 100, 99, ... by rank; the fake model's go by length and memory."""
    files = f"--model {run.folder} --triggers {run.triggers} --train {run.corpus_file}"
    call_branch("keys", f"precision {files} --per-layer 100 --output {run.folder}")
    table, triggers = tables.read(run.folder / "precision.csv"), read_triggers(run.triggers)
    assert table[["layer", "keys", "triggers"]].to_numpy().tolist() == [[0, 6, 150], [1, 0, 0], [2, 5, 125]]
    rows = triggers.rows(2)
    exact = triggers.position[rows] * np.arange(*triggers.layer_offset[2:4])[:, None] + triggers.position[rows]
    errors = np.abs(exact - triggers.coefficient[rows]) / triggers.coefficient[rows]
    assert table["error_median"][2] == pytest.approx(np.median(errors), rel=1e-6)
    assert table["error_largest"][2] == pytest.approx(errors.max(), rel=1e-6)
    assert table["first_stays"][2] == (exact.argmax(1) == 0).mean()


def test_precision_reads_a_part_of_many_keys(run, fake_model, monkeypatch):
    monkeypatch.setattr(ffkv.branches.keys.removal, "PRECISION_KEYS", 3)
    found = measure_precision(given(run, model=run.folder))
    assert found["keys"].tolist() == [3, 0, 3]


def test_triggers_of_another_model_are_refused(run, fake_model):
    fake_model["model_hash"] = "other"
    with pytest.raises(UserError, match="belongs to another model"):
        remove_tokens(given(run, model=run.folder), FEW)


def test_the_summary_has_every_layer(run, fake_model):
    options = ""
    for group in range(2):
        patterns, by_prefix = write_patterns(run, group, 2)
        options += f" --patterns {patterns} --by-prefix {by_prefix} --removal {write_removal(run, group, 2)}"
    call_branch("keys", f"summarize --triggers {run.triggers} {options} --output {run.folder}/keys")
    rows = {"figure_2_categories": 24, "figure_2_pattern_counts": 6, "figure_3_removal": 9, "activity": 3}
    assert {path.stem: len(tables.read(path)) for path in (run.folder / "keys").glob("*.csv")} == rows
    patterns = tables.read(run.folder / "keys/figure_2_pattern_counts.csv").set_index(["sample", "layer"])
    assert patterns.loc[("trigger", 0), "keys_with_pattern"] == 4
    assert patterns.loc[("random", 0), "keys_with_pattern"] == 0


def test_a_group_that_is_missing_is_noticed(run, fake_model):
    patterns, by_prefix = write_patterns(run, 0, 3)
    files = {
        "triggers": run.triggers,
        "patterns": [patterns],
        "by_prefix": [by_prefix],
        "removal": [write_removal(run)],
    }
    with pytest.raises(UserError, match=r"--by-prefix: layers \[2\] are missing"):
        summarize_keys(Given(**files))


def test_a_table_of_another_run_is_refused_by_name(subtests, run, fake_model):
    """Also a table without rows, of a group without living layers."""
    groups = [(*write_patterns(run, group, 3), write_removal(run, group, 3)) for group in range(3)]
    tables_of = {"triggers": run.triggers, **dict(zip(("patterns", "by_prefix", "removal"), zip(*groups)))}
    summarize_keys(Given(**tables_of))
    for path, name in product(groups[1], ("model", "tokenizer", "corpus")):
        with subtests.test(path=path.name, name=name):
            own, other = tables.read(path), tables.read(path)
            assert own.empty
            other.attrs[f"{name}_hash"] = "other"
            tables.write(other, path)
            with pytest.raises(UserError, match=rf"{path.name} belongs to another {name} \(other, expected"):
                summarize_keys(Given(**tables_of))
            tables.write(own, path)
