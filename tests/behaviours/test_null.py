"""Without an effect there are no memories: shuffled prompts and answers on a trained model."""

import json

import numpy as np
import pytest
from behaviours.conftest import make, write_prompts
from support import ROOT

import ffkv
from ffkv.base.settings import Values
from ffkv.base.steps import Work
from ffkv.branches.values.projections import write_projections

SHUFFLES = 5
FEW = {"candidates": 3, "controls": 5, "directions": 0, "effect_prompts": 5, "sets": [5], "random_sets": 5}
FEW |= {"side_effect_prefixes": 2, "bootstraps": 10, "flips": 2000, "minimum_accuracy": 0}


@pytest.fixture(scope="module")
def files(tiny, tmp_path_factory):
    """What a behaviour reads of the run `tiny`, whose model is trained; projections of both layers in one file."""
    run, projections = tiny / "results/tiny", tmp_path_factory.mktemp("null") / "projections.h5"
    of_values = ffkv.project_values(
        run / "model", run / "values.h5", run / "triggers.h5", Values(top_tokens=5), work=Work("cpu")
    )
    write_projections(projections, of_values[0])
    return (
        run / "model",
        run / "triggers.h5",
        projections,
        run / "sampled_prefixes.h5",
        run / "corpus/train.h5",
        run / "corpus/validation.h5",
    )


def pairs(seed: int | None = None) -> list[dict]:
    """The pairs of the documentation; with a seed half of them turned round, and half with answers in each other's place."""
    rows = [json.loads(line) for line in (ROOT / "configs/prompts/documentation.jsonl").read_text().splitlines()]
    generator = np.random.default_rng(seed)
    for row in rows if seed is not None else ():
        for one, other in (("clean_prefix", "patch_prefix"), ("clean_answer", "patch_answer")):
            if generator.random() < 0.5:
                row[one], row[other] = row[other], row[one]
    return rows


def test_shuffled_prompts_and_answers_have_no_memories(tmp_path, files):
    """Over some shuffles, since memories of one model depend on each other: their p-values are low together, or high."""
    below, significant, gains = [], [], []
    for seed in range(SHUFFLES):
        made = make(tmp_path / str(seed), files, prompts=str(write_prompts(tmp_path / "it.jsonl", pairs(seed))), **FEW)
        for p, q in (("p_value", "q_value"), ("screen_p", "screen_q")):
            below.append([(made.memories[p] <= level).mean() for level in (0.05, 0.25, 0.5)])
            significant.append((made.memories[q] < 0.05).any())
        sets = made.sets.merge(made.answers[["prompt", "difference"]], on="prompt").query("size == 5")
        lost = (sets["difference"] - sets["patched"]).groupby(sets["choice"]).mean()
        gains.append(lost["screen"] - lost["random"])
    # Shares of 2 x 5 tests of dependent memories: p-values may be larger than uniform ones, not smaller.
    assert (np.mean(below, 0) <= (0.1, 0.35, 0.6)).all()
    # For each of both tests, one shuffle in twenty has significant memories: more than two of five with a chance of 0.1 %.
    assert (np.reshape(significant, (SHUFFLES, 2)).sum(0) <= 2).all()
    # Sets that the screen chose cost no more than random ones, within three standard errors over the shuffles.
    assert abs(np.mean(gains)) < 3 * np.std(gains, ddof=1) / np.sqrt(SHUFFLES)


def test_the_pairs_as_they_are_have_memories(tmp_path, files):
    """Else the test above could not fail."""
    made = make(tmp_path / "whole", files, prompts=str(write_prompts(tmp_path / "it.jsonl", pairs())), **FEW)
    assert (made.memories["p_value"] <= 0.05).mean() > 0.2
    assert (made.memories["q_value"] < 0.05).any()
