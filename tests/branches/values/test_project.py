"""Values projected: against a second computation, beside triggers by hand, files against each other, and the commands."""

import math
from dataclasses import fields, replace

import numpy as np
import pandas as pd
import pytest
import torch
from support import WORDS

from ffkv.activations.trigger_file import write_triggers
from ffkv.base.errors import UserError
from ffkv.base.files import tables
from ffkv.base.steps import WHOLE, Part, Work
from ffkv.branches.given import Given
from ffkv.branches.registry import BRANCHES
from ffkv.branches.settings import Values
from ffkv.branches.values.project import compare, project, project_values
from ffkv.branches.values.projections import read_projections, write_projections
from ffkv.branches.values.summarize import summarize_values
from ffkv.model.anatomy import read_anatomy
from ffkv.model.head.head_file import load_head
from ffkv.model.values_file import read_values

ARRAYS = [
    "layer",
    "memory",
    "top",
    "tied",
    "top_token",
    "top_log_probability",
    "bottom",
    "bottom_token",
    "bottom_log_probability",
    "norm",
]
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
    assert projections.logit_variance[3] == 0
    assert np.isnan([projections.logit_skewness[3], projections.logit_kurtosis[3]]).all()


def test_predictions_of_values_beside_the_tokens_that_follow_their_triggers(worked):
    """First triggers: a is followed by b (agrees), b by p, c by p, d by e (agrees with the first, not the second), e by a."""
    table = worked.table
    next_words = [WORDS[token] if token >= 0 else None for token in table["next_token"]]
    assert next_words == ["b", "p", "p", None, "e", "e", "a", None]
    assert table["agrees"].tolist() == [True, False, False, False, True, False, True, False]
    # b's triggers go on with p and d; c's with p and c (one prefix a sentence: the first c of "p c c p"); d's with e, e and f
    assert table["matching"].tolist() == [1, 0, 1, 0, 2, 1, 1, 0]
    assert table["first_match"].tolist() == [0, -1, 1, -1, 0, 2, 0, -1]
    assert table["triggers"].tolist() == [2, 2, 2, 0, 3, 3, 2, 0]
    assert table["tied"].tolist() == [False] * 3 + [True] + [False] * 3 + [True]
    # rank: 0 where the value agrees; else one token (the one it writes) is strictly greater; no trigger, no rank
    assert table["rank"].tolist() == [0, 1, 1, -1, 0, 1, 0, -1]
    assert not [name for name in table if name.startswith("negative")]
    lists = zip(worked.projections.norm, worked.triggers.coefficient, worked.triggers.count, strict=True)
    contributions = [norm * (coefficients[:count].mean() if count else 0) for norm, coefficients, count in lists]
    assert table["contribution"].tolist() == pytest.approx(contributions) and max(contributions) > 0


def test_the_bottom_of_values_beside_the_tokens_that_follow_their_negative_triggers(worked, negative_triggers):
    """Every value of the detector is flat but for one token, so that its bottom is BOS, id 0, the lowest of equals."""
    bottom = worked.projections.bottom.copy()
    bottom[[0, 1, 2, 3, 4]] = [WORDS.index(word) for word in "bcbcp"]
    table = compare(replace(worked.projections, bottom=bottom), worked.ranks, negative_triggers)
    # after "a" of the first sentence follows b, after "d" of "d e p" e, after "p" of "p c c p" c, after "a b" p
    next_words = [WORDS[token] if token >= 0 else None for token in table["negative_next_token"]]
    assert next_words == ["b", "e", None, "c", "p", None, None, None]
    assert table["negative_triggers"].tolist() == [2, 1, 0, 1, 1, 0, 0, 0]
    assert table["negative_agrees"].tolist() == [True, False, False, True, True, False, False, False]
    assert table["bottom_token"].tolist() == bottom.tolist()


@pytest.mark.parametrize(("kind", "projection"), [("gpt2", "head"), ("gpt2", "unembedding"), ("opt-post-norm", "head")])
def test_projections_against_a_second_computation(proven, kind, projection):
    values, head = read_values(proven(kind).parent / "values.h5"), load_head(proven(kind), "cpu", projection)
    w = np.random.default_rng(0).integers(-1, 60, len(values.value))
    projections, ranks = project(head, values, 5, w)
    for row in range(0, len(values.value), 17):
        logits = head.logits(torch.from_numpy(values.value[row : row + 1]), int(values.layer[row]))[0].double()
        log_probability = torch.log_softmax(logits, 0)
        assert ranks[row] == (-1 if w[row] < 0 else np.sum(logits.numpy() > logits.numpy()[w[row]]))
        for end, sign in (("top", -1), ("bottom", 1)):
            order = np.lexsort((np.arange(60), sign * logits.numpy()))[:5]
            assert getattr(projections, end)[row] == order[0]
            assert getattr(projections, f"{end}_token")[row].tolist() == order.tolist()
            found = getattr(projections, f"{end}_log_probability")[row]
            np.testing.assert_allclose(found, log_probability[order], atol=1e-4)
        zero = head.logits(torch.zeros(1, values.value.shape[1]), int(values.layer[row]))[0].double()
        written = (logits - zero - (logits - zero).mean()).numpy()
        # Powers of differences of logits in float32, whose rounding is about 1e-6 of them.
        second, third, fourth = ((written**power).mean() for power in (2, 3, 4))
        assert projections.logit_variance[row] == pytest.approx(second, rel=1e-4)
        assert projections.logit_skewness[row] == pytest.approx(third / second**1.5, abs=1e-3)
        assert projections.logit_kurtosis[row] == pytest.approx(fourth / second**2, rel=1e-3)


@pytest.fixture
def run(worked, detector, tmp_path):
    """The files of `project_values`: model, values and triggers."""
    identity = {**read_anatomy(detector).identity, "corpus_hash": worked.corpus.attributes["corpus_hash"]}
    write_triggers(tmp_path / "triggers.h5", replace(worked.triggers, attributes={**identity, "settings": {}}))
    return {"model": detector, "values": worked.values_file, "triggers": tmp_path / "triggers.h5"}


def projected(run, settings=Values(), part=WHOLE, **others):
    """What the step returns. `others`: files in place of those of the run."""
    return project_values(Given(Work("cpu", part=part), **run | others), settings)


def summarized(run, worked, *by_memory):
    files = {"by_memory": by_memory, "model": run["model"], "triggers": run["triggers"], "train": worked.corpus_file}
    return summarize_values(Given(**files), Values(predictive=5, bins=3))


def test_the_step_projects_and_compares(run, worked):
    projections, table = projected(run, Values(top_tokens=3))
    pd.testing.assert_frame_equal(table, worked.table)
    assert projections.attributes == {**read_anatomy(run["model"]).identity, "projection": "head"}
    assert projected(run, Values(projection="unembedding"))[0].attributes["projection"] == "unembedding"


def test_groups_of_layers_change_nothing(run, tmp_path):
    """More groups than layers leave an empty one, which is written and read as the others."""
    whole, table = projected(run, Values(top_tokens=3))
    groups = [projected(run, Values(top_tokens=3), Part(group, 3)) for group in range(3)]
    for group, (projections, _) in enumerate(groups):
        write_projections(tmp_path / f"{group}.h5", projections)
    again = [read_projections(tmp_path / f"{group}.h5", whole.attributes) for group in range(3)]
    assert sorted(len(projections.layer) for projections in again) == [0, 4, 4]
    assert {field.name for field in fields(whole)} == {*ARRAYS, "attributes"}
    for name in ARRAYS:
        np.testing.assert_array_equal(np.concatenate([getattr(group, name) for group in again]), getattr(whole, name))
    assert all(projections.top_token.shape[1] == 3 for projections in again)
    pd.testing.assert_frame_equal(pd.concat([rows for _, rows in groups if len(rows)], ignore_index=True), table)


def test_triggers_and_tables_of_another_model_or_corpus_are_refused(run, worked, tmp_path):
    stranger = {**worked.triggers.attributes, "model_hash": "0" * 16}
    write_triggers(tmp_path / "other.h5", replace(worked.triggers, attributes=stranger))
    with pytest.raises(UserError, match=r"other\.h5 belongs to another model"):
        projected(run, triggers=tmp_path / "other.h5")
    for what in ("model", "tokenizer", "corpus"):
        _, table = projected(run)
        table.attrs[f"{what}_hash"] = "0" * 16
        tables.write(table, tmp_path / "0.parquet")
        with pytest.raises(UserError, match=rf"0\.parquet belongs to another {what}"):
            summarized(run, worked, tmp_path / "0.parquet")


def test_the_tables_of_the_figures_are_those_of_all_groups(run, worked, tmp_path):
    paths = [tmp_path / f"{group}.parquet" for group in (0, 1)]
    for group, path in enumerate(paths):
        tables.write(projected(run, Values(top_tokens=3), Part(group, 2))[1], path)
    found = summarized(run, worked, *paths)
    for described in BRANCHES["values"].steps["summarize"].writes:
        described.check(found[described.name])
    assert found["figure_4_agreement"]["agreeing"].iloc[0] == 1
    assert len(found["table_2_predictive_values"]) == 5
