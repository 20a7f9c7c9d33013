"""The steps of `values`: projections against a second computation, files against each other, and the commands."""

import math
from dataclasses import fields, replace

import numpy as np
import pandas as pd
import pytest
import torch
from click.testing import CliRunner
from support import WORDS

from ffkv.activations.trigger_file import write_triggers
from ffkv.base.errors import UserError
from ffkv.base.files import tables
from ffkv.base.parts import Part
from ffkv.base.settings import Values
from ffkv.base.steps import Work
from ffkv.branches.commands import command_group
from ffkv.branches.registry import BRANCHES
from ffkv.branches.values.projections import read_projections, write_projections
from ffkv.branches.values.step import project, project_values, summarize_values
from ffkv.model.anatomy import read_anatomy
from ffkv.model.head.head_file import load_head
from ffkv.model.values_file import read_values

ARRAYS = ["layer", "memory", "top", "tied", "top_token", "top_log_probability"]
ARRAYS += ["bottom", "bottom_token", "bottom_log_probability", "norm"]
ARRAYS += ["logit_variance", "logit_skewness", "logit_kurtosis"]


def test_projections_of_the_detectors_values(worked):
    projections = worked.projections
    assert [WORDS[token] for token in projections.top[[0, 1, 2, 4, 5, 6]]] == ["b", "c", "c", "e", "f", "a"]
    assert projections.norm.tolist() == pytest.approx([1, 0.1, 1, 0, 1, 0.5, 1, 0])
    # LayerNorm of a unit vector: 4 at the word, -1/4 at the 16 others
    assert math.exp(projections.top_log_probability[0, 0]) == pytest.approx(
        math.exp(4) / (math.exp(4) + 16 * math.exp(-0.25)), rel=1e-3
    )
    # a value of zeros: all 17 tokens alike; the lowest id wins, and the tie is told
    assert projections.top[[3, 7]].tolist() == [0, 0]
    assert projections.tied.tolist() == [False] * 3 + [True] + [False] * 3 + [True]
    # all tokens but the one that a value writes are alike at the bottom; the lowest id wins
    assert projections.bottom.tolist() == [0] * 8
    # Of a unit vector, LayerNorm makes a variance of 1, and 4 at one of 17 places, -1/4 at the others
    skewness, kurtosis = (4**3 - 16 / 4**3) / 17, (4**4 + 16 / 4**4) / 17
    assert projections.logit_variance[[0, 4]].tolist() == pytest.approx([1, 1], rel=1e-3)
    assert projections.logit_skewness[[0, 4]].tolist() == pytest.approx([skewness] * 2, rel=1e-3)
    assert projections.logit_kurtosis[[0, 4]].tolist() == pytest.approx([kurtosis] * 2, rel=1e-3)
    assert (
        projections.logit_variance[3] == 0
        and np.isnan([projections.logit_skewness[3], projections.logit_kurtosis[3]]).all()
    )


@pytest.mark.parametrize(("kind", "projection"), [("gpt2", "head"), ("gpt2", "unembedding"), ("opt-post-norm", "head")])
def test_projections_against_a_second_computation(proven, kind, projection):
    values, head = read_values(proven(kind).parent / "values.h5"), load_head(proven(kind), "cpu", projection)
    w = np.random.default_rng(0).integers(-1, 60, len(values.value))
    projections, ranks = project(head, values, 5, w)
    for row in range(0, len(values.value), 17):
        logits = head.logits(torch.from_numpy(values.value[row : row + 1]), int(values.layer[row]))[0].double()
        log_probability = torch.log_softmax(logits, 0)
        assert ranks[row] == (-1 if w[row] < 0 else np.sum(logits.numpy() > logits.numpy()[w[row]]))
        order = np.lexsort((np.arange(60), -logits.numpy()))[:5]
        assert projections.top[row] == order[0]
        np.testing.assert_allclose(projections.top_log_probability[row], log_probability[order], atol=1e-4)
        order = np.lexsort((np.arange(60), logits.numpy()))[:5]
        assert projections.bottom[row] == order[0]
        assert projections.bottom_token[row].tolist() == order.tolist()
        np.testing.assert_allclose(projections.bottom_log_probability[row], log_probability[order], atol=1e-4)
        zero = head.logits(torch.zeros(1, values.value.shape[1]), int(values.layer[row]))[0].double()
        written = (logits - zero - (logits - zero).mean()).numpy()
        # Powers of differences of logits in float32, whose rounding is about 1e-6 of them.
        assert projections.logit_variance[row] == pytest.approx((written**2).mean(), rel=1e-4)
        assert projections.logit_skewness[row] == pytest.approx(
            (written**3).mean() / (written**2).mean() ** 1.5, abs=1e-3
        )
        assert projections.logit_kurtosis[row] == pytest.approx(
            (written**4).mean() / (written**2).mean() ** 2, rel=1e-3
        )


@pytest.fixture
def run(worked, detector, tmp_path):
    """The inputs of `project_values`: model, values and triggers."""
    identity = {**read_anatomy(detector).identity, "corpus_hash": worked.corpus.attributes["corpus_hash"]}
    write_triggers(tmp_path / "triggers.h5", replace(worked.triggers, attributes={**identity, "settings": {}}))
    return detector, worked.values_file, tmp_path / "triggers.h5"


def test_the_step_projects_and_compares(run, worked):
    projections, table = project_values(*run, Values(top_tokens=3), Work("cpu"))
    pd.testing.assert_frame_equal(table, worked.table)
    assert projections.attributes == {**read_anatomy(run[0]).identity, "projection": "head"}
    assert (
        project_values(*run, Values(projection="unembedding"), Work("cpu"))[0].attributes["projection"] == "unembedding"
    )


def test_groups_of_layers_change_nothing(run, tmp_path):
    """More groups than layers leave an empty one, which is written and read as the others."""
    whole, table = project_values(*run, Values(top_tokens=3), Work("cpu"))
    groups = [project_values(*run, Values(top_tokens=3), Work("cpu", part=Part(group, 3))) for group in range(3)]
    for group, (projections, _) in enumerate(groups):
        write_projections(tmp_path / f"{group}.h5", projections)
    again = [read_projections(tmp_path / f"{group}.h5", whole.attributes) for group in range(3)]
    assert sorted(len(projections.layer) for projections in again) == [0, 4, 4]
    assert {field.name for field in fields(whole)} == {*ARRAYS, "attributes"}
    for name in ARRAYS:
        np.testing.assert_array_equal(np.concatenate([getattr(group, name) for group in again]), getattr(whole, name))
    assert all(projections.top_token.shape[1] == 3 for projections in again)
    pd.testing.assert_frame_equal(pd.concat([rows for _, rows in groups if len(rows)], ignore_index=True), table)


def test_triggers_of_another_model_are_refused(run, worked, tmp_path):
    stranger = {**worked.triggers.attributes, "model_hash": "0" * 16}
    write_triggers(tmp_path / "other.h5", replace(worked.triggers, attributes=stranger))
    with pytest.raises(UserError, match=r"other\.h5 belongs to another model"):
        project_values(*run[:2], tmp_path / "other.h5", work=Work("cpu"))
    tables.write(worked.table, tmp_path / "0.parquet")
    with pytest.raises(UserError, match=r"other\.h5 belongs to another model"):
        summarize_values([tmp_path / "0.parquet"], run[0], tmp_path / "other.h5", worked.corpus_file)


@pytest.mark.parametrize("what", ["model", "tokenizer", "corpus"])
def test_a_table_of_another_model_or_corpus_is_refused(run, worked, tmp_path, what):
    _, table = project_values(*run, work=Work("cpu"))
    assert {"model_hash", "tokenizer_hash", "corpus_hash"} <= set(table.attrs)
    table.attrs[f"{what}_hash"] = "0" * 16
    tables.write(table, tmp_path / "0.parquet")
    with pytest.raises(UserError, match=rf"0\.parquet belongs to another {what}"):
        summarize_values([tmp_path / "0.parquet"], run[0], run[2], worked.corpus_file)


def test_the_commands_write_projections_and_the_tables_of_the_figures(run, worked, tmp_path):
    model, values, triggers = run
    folder = tmp_path / "values"
    inputs = f"--model {model} --triggers {triggers}"
    for group in (0, 1):
        outputs = f"--output-projections {folder}/{group}.h5 --output-by-memory {folder}/{group}.parquet"
        options = f"--top-tokens 3 --device cpu --layer-group {group} --layer-groups 2"
        call(f"project {inputs} --values {values} {options} {outputs}")
    call(
        f"summarize --by-memory {folder}/0.parquet --by-memory {folder}/1.parquet {inputs} --train {worked.corpus_file} --predictive 5"
        f" --bins 3 --seed 0 --output {folder}"
    )
    assert {path.stem for path in folder.glob("*.csv")} == {
        table.name for table in BRANCHES["values"].steps["summarize"].writes
    }
    assert tables.read(folder / "figure_4_agreement.csv")["agreeing"].iloc[0] == 1
    assert len(tables.read(folder / "table_2_predictive_values.csv")) == 5


def call(line: str) -> None:
    result = CliRunner().invoke(command_group(BRANCHES["values"]), line.split(), catch_exceptions=False)
    assert result.exit_code == 0, result.output
