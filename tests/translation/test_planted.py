"""Values that hold predictions behind a rotation: the map finds them, and finds none where there is none."""

import numpy as np
import pandas as pd
import pytest

from ffkv.branches.translation.maps import TranslatedHead
from ffkv.branches.translation.readings import explained_variance
from ffkv.branches.translation.ridge import fit, fold_of
from ffkv.branches.translation.summaries import above_chance, summarize_differences
from ffkv.branches.translation.tables import BY_MEMORY
from ffkv.model.head.head_file import load_head
from ffkv.model.head.topk import predictions

WORDS = 17  # of the detector, whose head is a norm and the identity
MEMORIES = 2000


def agreement(detector, planted: float) -> dict[str, np.ndarray]:
    """Returns by reading whether each value predicts its word, if a share of them hold it behind a rotation."""
    generator = np.random.default_rng(0)
    rotation = np.linalg.qr(generator.normal(size=(WORDS, WORDS)))[0]
    last = 4 * np.eye(WORDS)[generator.integers(WORDS, size=900)] + 0.3 * generator.normal(size=(900, WORDS))
    states = last @ rotation + 1 + 0.05 * generator.normal(size=last.shape)
    own, shuffled = fit(states, last, fold_of(np.arange(900) // 3), generator.permutation(900))
    assert explained_variance(last, states @ own.weight + own.offset) > 0.95
    w = generator.integers(WORDS, size=MEMORIES)
    values = generator.normal(size=(MEMORIES, WORDS))
    holds = np.arange(MEMORIES) < planted * MEMORIES
    values[holds] = 4 * np.eye(WORDS)[w[holds]] @ rotation
    head, values = load_head(detector, "cpu"), values.astype(np.float32)
    heads = {"head": head} | {
        name: TranslatedHead(head, ridge.weight.astype(np.float32), None, 1)
        for name, ridge in (("translated", own), ("shuffled", shuffled))
    }
    return {name: predictions(each, values, 0).ids == w for name, each in heads.items()}


@pytest.mark.parametrize("planted", [0.0, 0.4])
def test_the_planted_rate_is_recovered_by_the_map_alone(detector, planted):
    found = agreement(detector, planted)
    error = 5 * np.sqrt(1 / WORDS / MEMORIES)  # five standard errors of agreement by chance, 1 in 17
    assert found["translated"].mean() == pytest.approx(planted + (1 - planted) / WORDS, abs=error)
    if planted:
        assert found["translated"][: int(planted * MEMORIES)].mean() > 0.99
    # A fixed rotation sends each word to one direction, whose highest word is another fixed one: by luck it is the same word.
    assert found["head"].mean() == pytest.approx(1 / WORDS, abs=max(error, 2.5 * planted / WORDS))
    assert found["shuffled"].mean() == pytest.approx(1 / WORDS, abs=max(error, 2.5 * planted / WORDS))


def rows(reading: str, layer: int, top: list[int], next_token: list[int], head_top: list[int]) -> pd.DataFrame:
    agrees = np.equal(top, next_token)
    row = {"reading": reading, "layer": layer, "memory": range(len(top)), "top_token": top, "next_token": next_token}
    row |= {"agrees": agrees, "head_top_token": head_top, "head_agrees": np.equal(head_top, next_token), "triggers": 1}
    return pd.DataFrame(dict.fromkeys(BY_MEMORY.names, 0) | row, index=range(len(top)))


def test_agreement_above_chance_by_hand():
    """Four keys: a, a, b, c follow. Values that say a, a, b, b agree in 3 of 4; permuted keys in (2·2 + 2·1) / 16 = 6 / 16."""
    table = rows("translated", 0, [1, 1, 2, 2], [1, 1, 2, 3], [3, 3, 3, 3]).set_index(["layer", "memory"])
    assert above_chance(table, "agrees").tolist() == [0.625, 0.625, 0.625, -0.375]


def test_a_reading_that_says_the_most_frequent_token_gains_nothing():
    """All values say a, which follows two of four keys: half agree, and so do half of permuted keys."""
    follow, other = [1, 1, 2, 3], [4, 4, 4, 4]
    table = pd.concat(
        [rows("translated", layer, [1] * 4 if layer < 2 else follow, follow, other) for layer in range(5)]
        + [rows("shuffled", layer, other, follow, other) for layer in range(5)]
    )
    found = summarize_differences(table, 5).set_index(["half", "compared"])
    assert found["memories"].groupby("half").first().to_dict() == {"all": 20, "lower": 8, "upper": 8}
    assert found.loc["lower", "mean"].to_dict() == {
        "translated": 0, "head": 0, "translated - head": 0, "translated - shuffled": 0
    }  # fmt: skip
    # In the upper half all agree, and 6 of 16 permuted ones.
    assert found.loc[("upper", "translated - head"), "mean"] == 0.625
    assert ((found["low"] <= found["mean"]) & (found["mean"] <= found["high"])).all()
    assert found.loc[("upper", "translated"), "low"] == found.loc[("upper", "translated"), "high"] == 0.625
