"""The same memory in several runs, and memories that are matched by their coefficients."""

import numpy as np
import pytest
import torch

import ffkv
from ffkv.base.errors import UserError
from ffkv.base.settings import Comparison
from ffkv.run.comparison.compared import open_compared
from ffkv.run.comparison.matching import highest_correlation, match_memories, random_rotation, standardise
from ffkv.run.comparison.same_memories import (
    Memories,
    classify,
    compare_memories,
    follow_memories,
    permute,
    read_keys,
    read_memories,
    take,
)


def test_equal_runs_have_equal_memories(pair):
    by_memory, by_layer = follow_memories(pair)
    for measure in ("jaccard", "rank_biased_overlap", "same_top_token", "key_cosine", "value_cosine"):
        np.testing.assert_allclose(by_memory[measure].dropna(), 1, atol=1e-6)  # lengths of 1 in float32
        assert (by_layer[f"permuted_{measure}"] < 0.9).all()  # a few tokens are on top of most values
    assert set(by_memory["kind"]) <= {"stayed", ""} and (by_layer[["appeared", "lost", "changed"]] == 0).all(axis=None)
    assert (by_memory["top_token"] == by_memory["reference_token"]).all()
    assert len(by_memory) == 2 * 2 * pair.runs[0].anatomy.layer_offset[-1]


def test_permuted_memories_have_chance_overlap(pair, monkeypatch):
    """A run whose memories are permuted overlaps as much as the permutations that the tables show beside it."""
    monkeypatch.chdir(pair.runs[0].folder.parents[1])
    run = pair.runs[0]
    memories, offset = read_memories(run), np.asarray(run.anatomy.layer_offset)
    permuted = take(memories, permute(offset, np.random.default_rng(3)))
    overlap = compare_memories(memories, permuted, True)["jaccard"].mean()
    chance = follow_memories(pair)[1]["permuted_jaccard"].mean()
    assert overlap == pytest.approx(chance, abs=0.05) and overlap < 0.3


def test_kinds_by_hand():
    def memories(agrees, top):
        nothing = np.zeros((5, 1))
        return Memories(nothing, np.array(top), np.ones(5), np.array(agrees, bool), None, nothing)

    before, after = memories([0, 1, 1, 1, 0], [1, 2, 3, 4, 5]), memories([1, 0, 1, 1, 0], [1, 2, 3, 9, 9])
    assert classify(before, after).tolist() == ["appeared", "lost", "stayed", "changed", ""]


def test_keys_are_the_rows_of_the_first_matrix(pair):
    run = pair.runs[0]
    model = run.model("cpu").model
    first = torch.cat([block.mlp.c_fc.weight.T for block in model.transformer.h])  # Conv1D: inputs by outputs
    expected = torch.nn.functional.normalize(first, dim=1).detach().numpy()
    np.testing.assert_allclose(read_keys(run), expected, atol=1e-6)  # lengths of 1 in float32


def test_a_partner_is_found_and_rotated_layers_have_none():
    generator = np.random.default_rng(0)
    own = generator.standard_normal((2000, 5)).astype(np.float32)
    others = generator.standard_normal((2000, 40)).astype(np.float32)
    others[:, [7, 11, 13]] = own[:, [2, 0, 4]] + 0.1 + 0.2 * generator.standard_normal((2000, 3))
    others[:, 5] = 1  # never changes
    best, correlation = highest_correlation(standardise(own), standardise(others))
    assert best[[2, 0, 4]].tolist() == [7, 11, 13]
    expected = [np.corrcoef(own[:, i], others[:, j])[0, 1] for i, j in enumerate(best)]
    np.testing.assert_allclose(correlation, expected, atol=1e-5)  # float32
    _, rotated = highest_correlation(standardise(own), standardise(others @ random_rotation(40, generator)))
    assert (correlation[[2, 0, 4]] > 0.95).all() and (rotated < 0.75).all()


def test_a_rotation_keeps_lengths_and_is_not_the_identity():
    q = random_rotation(30, np.random.default_rng(1))
    np.testing.assert_allclose(q @ q.T, np.eye(30), atol=1e-5)  # float32
    assert np.abs(np.diag(q)).max() < 0.9


def test_matching_a_run_with_itself_finds_each_memory(folders, monkeypatch):
    monkeypatch.chdir(folders[0].parents[1])
    compared = open_compared(
        folders, Comparison(runs=["tiny", "again"], memories="by_correlation", sampled_memories=40)
    )
    found = match_memories(compared)
    assert len(found) > 20 and (found["correlation"] > 1 - 1e-4).all()  # float32
    own = (found["layer"] == found["matched_layer"]) & (found["memory"] == found["matched_memory"])
    assert own.mean() > 0.9  # two memories may fire on the same single prefix
    assert (found["rotated_correlation"] <= found["correlation"] + 1e-4).all()


def test_other_runs_than_those_of_the_settings_are_refused(folders):
    with pytest.raises(UserError, match="The folders are of the runs tiny, again, not of tiny, other"):
        ffkv.compare_runs(folders, Comparison(runs=["tiny", "other"]))
