"""Values against triggers: the detector's answers by hand, every statistic against a naive one."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import WORDS

from ffkv.activations.trigger_file import Negative
from ffkv.activations.triggers import find_triggers
from ffkv.corpus.corpus_file import read_corpus
from ffkv.files import hdf5
from ffkv.intervals import wilson
from ffkv.model.checkpoint.read import load_tokenizer
from ffkv.model.checkpoint.vocabulary import read_vocabulary
from ffkv.model.head.head_file import load_head
from ffkv.model.values_file import read_values
from ffkv.settings import Activations
from ffkv.settings import Triggers as Settings
from ffkv.values import summaries
from ffkv.values.compare import compare, first_next
from ffkv.values.projections import DESCRIPTIONS, project, write_projections

SENTENCES = ["a b p", "a c p", "b d e a", "p c c p", "d e p", "p d f p"]
# Keys of layer 0 detect a, b, c, nothing and write b, c, c, nothing; of layer 1 d, d, e, nothing and write e, f, a, nothing.


@pytest.fixture
def worked(detector, loaded_detector, write_corpus):
    """Corpus, triggers, projections and the comparison of the detector on SENTENCES."""
    corpus = read_corpus(write_corpus(SENTENCES, load_tokenizer(detector), 17))
    triggers = find_triggers(loaded_detector, corpus, Settings(per_key=4), Activations())
    memories, head = read_values(detector.parent / "memories.h5"), load_head(detector, "cpu")
    projections, ranks = project(head, memories, 3, first_next(memories, triggers))
    return corpus, triggers, projections, compare(projections, ranks, triggers)


def test_projections_of_the_detectors_values(worked):
    _, _, projections, _ = worked
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


def test_what_values_predict_beside_what_follows_their_triggers(worked):
    """First triggers: a is followed by b (agrees), b by p, c by p, d by e (agrees with the first, not the second), e by a."""
    *_, table = worked
    assert [WORDS[token] if token >= 0 else None for token in table["next_token"]] == [
        "b",
        "p",
        "p",
        None,
        "e",
        "e",
        "a",
        None,
    ]
    assert table["agrees"].tolist() == [True, False, False, False, True, False, True, False]
    # b's triggers go on with p and d; c's with p and c (one prefix a sentence: the first c of "p c c p"); d's with e, e and f
    assert table["matching"].tolist() == [1, 0, 1, 0, 2, 1, 1, 0]
    assert table["first_match"].tolist() == [0, -1, 1, -1, 0, 2, 0, -1]
    assert table["triggers"].tolist() == [2, 2, 2, 0, 3, 3, 2, 0]
    assert table["tied"].tolist() == [False] * 3 + [True] + [False] * 3 + [True]
    # rank: 0 where the value agrees; else one token (the one it writes) is strictly greater; no trigger, no rank
    assert table["rank"].tolist() == [0, 1, 1, -1, 0, 1, 0, -1]


def negative_side(triggers, corpus):
    """The detector's triggers, and negative ones as if its first layer were negative on others: sentence and position."""
    places = {0: [(0, 1), (1, 1)], 1: [(4, 1)], 2: [], 3: [(3, 1)], 4: [(0, 2)]}
    shape = triggers.coefficient.shape
    filled = {"coefficient": np.zeros(shape, np.float32), "sentence": np.full(shape, -1, np.int32)}
    filled |= {"position": np.zeros(shape, np.int32), "next_token": np.full(shape, -1, np.int32)}
    for row, found in places.items():
        for rank, (sentence, position) in enumerate(found):
            filled["coefficient"][row, rank], filled["sentence"][row, rank] = rank - 9, sentence
            filled["position"][row, rank] = position
            filled["next_token"][row, rank] = corpus.ids(sentence)[position]
    count = np.array([len(places.get(row, [])) for row in range(shape[0])], np.int32)
    gate = np.zeros(shape, np.int8)
    negative = Negative(**filled, gate=gate, count=count, fires=3 * count, minimum=filled["coefficient"][:, 0])
    return replace(triggers, negative=negative)


def test_the_bottom_of_values_beside_what_follows_their_negative_triggers(worked):
    """Every value of the detector is flat but for one token, so that its bottom is BOS, id 0, the lowest of equals."""
    corpus, triggers, projections, table = worked
    assert not [name for name in table if name.startswith("negative")]
    both = negative_side(triggers, corpus)
    bottom = projections.bottom.copy()
    bottom[[0, 1, 2, 3, 4]] = [WORDS.index(word) for word in "bcbcp"]
    compared = compare(replace(projections, bottom=bottom), table["rank"].to_numpy(), both)
    # after "a" of the first sentence follows b, after "d" of "d e p" e, after "p" of "p c c p" c, after "a b" p
    follows = [WORDS[token] if token >= 0 else None for token in compared["negative_next_token"]]
    assert follows == ["b", "e", None, "c", "p", None, None, None]
    assert compared["negative_triggers"].tolist() == [2, 1, 0, 1, 1, 0, 0, 0]
    assert compared["negative_agrees"].tolist() == [True, False, False, True, True, False, False, False]
    assert compared["bottom_token"].tolist() == bottom.tolist()
    rates = summaries.agreement(compared, corpus.unigram, seed=0).set_index(["layer", "source"])
    row = rates.loc[(0, "negative")]
    assert row[["agreeing", "keys", "dead", "rate"]].tolist() == pytest.approx([2, 3, 1, 2 / 3])
    assert (row["low"], row["high"]) == tuple(float(bound) for bound in wilson(2, 3))
    assert rates.loc[(1, "negative"), ["agreeing", "keys", "dead", "rate"]].tolist() == [1, 1, 3, 1]
    # the other sources are what they are without it
    without = summaries.agreement(table, corpus.unigram, seed=0).set_index(["layer", "source"])
    pd.testing.assert_frame_equal(rates.drop("negative", level="source"), without)


def test_a_layer_without_negative_triggers_has_no_rate_of_them(worked, detector):
    corpus, _, _, table = worked
    none = table.assign(negative_triggers=0, negative_next_token=-1, negative_agrees=False)
    row = summaries.agreement(none, corpus.unigram, 0).set_index(["source", "layer"]).loc[("negative", 1)]
    assert np.isnan(row["rate"])
    assert row[["agreeing", "keys", "dead", "low", "high"]].tolist() == [0, 0, 4, 0, 1]


def test_agreement_by_layer_counts_dead_keys_beside_the_others(worked):
    corpus, _, _, table = worked
    rates = summaries.agreement(table, corpus.unigram, seed=0).set_index(["layer", "source"])
    assert rates.loc[(0, "trigger"), ["agreeing", "keys", "dead", "rate"]].tolist() == pytest.approx([1, 3, 1, 1 / 3])
    assert rates.loc[(1, "trigger"), ["agreeing", "keys", "dead", "rate"]].tolist() == pytest.approx([2, 3, 1, 2 / 3])
    assert rates.loc[(0, "uniform"), "rate"] == pytest.approx(1 / 17)
    # layer 0 predicts b, c, c; of the 21 tokens 2 are b and 3 are c
    assert rates.loc[(0, "unigram"), "rate"] == pytest.approx((2 / 21 + 2 * 3 / 21) / 3)
    # tops b, c, c against next tokens b, p, p: one pair of nine
    assert rates.loc[(0, "permuted"), "rate"] == pytest.approx(1 / 9)


def test_the_table_of_predictive_values_shows_a_trigger_that_matches(worked, detector):
    corpus, triggers, _, table = worked
    chosen = summaries.predictive(table, 5)
    shown = summaries.examples(chosen, triggers, corpus, read_vocabulary(detector), per_key=4).set_index(
        ["layer", "memory"]
    )
    assert shown.loc[(1, 1), ["token", "prefix", "next_token", "precision"]].tolist() == ["f", "p d", "f", 0.25]
    assert shown.loc[(0, 2), ["token", "prefix", "next_token"]].tolist() == ["c", "p c", "c"]
    places = summaries.predictive_layers(chosen, 2)
    assert places["values"].tolist() == [2, 3]  # the dead ones are flat, and value (0, 1) is short: LayerNorm's epsilon
    assert places["matching"].tolist() == [2, 3]


def test_agreement_by_probability_puts_every_key_with_a_trigger_into_one_bin(worked):
    *_, table = worked
    bins = summaries.by_probability(table, 3)
    assert bins["values"].sum() == 6
    assert bins["agreeing"].sum() == 3
    assert (bins["rate"].dropna() == (bins["agreeing"] / bins["values"]).dropna()).all()
    assert bins["high"].iloc[-1] == table["top_probability"][table["triggers"] > 0].max()


def test_bins_of_one_probability_or_of_no_key(worked):
    *_, table = worked
    assert summaries.by_probability(table[table["triggers"] == 0], 3).empty
    same = table.assign(top_probability=0.5)
    assert summaries.by_probability(same, 3)["values"].sum() == 6


def test_ranks_of_keys_with_a_trigger(worked):
    *_, table = worked
    boxes = summaries.ranks(table)
    assert boxes["keys"].tolist() == [3, 3]
    assert boxes["median"].tolist() == [1, 0]


def test_a_layer_of_dead_keys_has_no_rate_but_is_counted(worked):
    corpus, _, _, table = worked
    dead = table.assign(triggers=np.where(table["layer"] == 1, 0, table["triggers"]))
    row = summaries.agreement(dead, corpus.unigram, 0).set_index("layer").loc[1]
    assert row[["source", "keys", "dead", "agreeing"]].tolist() == ["trigger", 0, 4, 0]
    assert np.isnan(row["rate"])


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=5))
def test_the_expected_agreement_of_permuted_keys_is_the_mean_over_all_permutations(pairs):
    from itertools import permutations

    tops, w = (np.array(part) for part in zip(*pairs, strict=True))
    every = [np.mean(tops == np.array(order)) for order in permutations(w)]
    found = summaries.permutation_baseline(tops, w, 0)
    assert found.rate == pytest.approx(np.mean(every))
    assert found.low <= found.high


def test_a_null_at_its_known_value():
    """Values and next tokens drawn alike from 5 tokens: both the rate and its permuted baseline are about a fifth."""
    generator = np.random.default_rng(0)
    n = 20_000
    table = pd.DataFrame(
        {"layer": 0, "top_token": generator.integers(0, 5, n), "next_token": generator.integers(0, 5, n), "triggers": 1}
    )
    table["agrees"] = table["top_token"] == table["next_token"]
    rates = summaries.agreement(table, np.ones(5), 0).set_index("source")["rate"]
    # standard error sqrt(0.2 * 0.8 / 20000) = 0.0028; four of them
    assert rates.to_numpy() == pytest.approx([0.2] * 4, abs=0.0115)


@pytest.mark.parametrize(("kind", "projection"), [("gpt2", "head"), ("gpt2", "unembedding"), ("opt-post-norm", "head")])
def test_projections_against_a_second_computation(proven, kind, projection):
    memories, head = read_values(proven(kind).parent / "memories.h5"), load_head(proven(kind), "cpu", projection)
    w = np.random.default_rng(0).integers(-1, 60, len(memories.value))
    found, ranks = project(head, memories, 5, w)
    for row in range(0, len(memories.value), 17):
        logits = head.logits(torch.from_numpy(memories.value[row : row + 1]), int(memories.layer[row]))[0].double()
        order = np.lexsort((np.arange(60), -logits.numpy()))
        assert found.top[row] == order[0]
        assert ranks[row] == (-1 if w[row] < 0 else np.sum(logits.numpy() > logits.numpy()[w[row]]))
        np.testing.assert_allclose(
            found.top_log_probability[row], torch.log_softmax(logits, 0)[order[:5].copy()], atol=1e-4
        )
        order = np.lexsort((np.arange(60), logits.numpy()))
        assert found.bottom[row] == order[0]
        assert found.bottom_token[row].tolist() == order[:5].tolist()
        np.testing.assert_allclose(
            found.bottom_log_probability[row], torch.log_softmax(logits, 0)[order[:5].copy()], atol=1e-4
        )


def test_groups_of_layers_change_nothing(detector, tmp_path):
    head, w = load_head(detector, "cpu"), np.array([1, 2, 3, -1, 5, 6, 7, -1])
    whole, ranks = project(head, read_values(detector.parent / "memories.h5"), 3, w)
    groups = [
        project(head, read_values(detector.parent / "memories.h5", range(layer, layer + 1)), 3, w[4 * layer :][:4])
        for layer in (0, 1)
    ]
    for name in DESCRIPTIONS:
        np.testing.assert_array_equal(
            np.concatenate([getattr(group, name) for group, _ in groups]), getattr(whole, name)
        )
    np.testing.assert_array_equal(np.concatenate([of_group for _, of_group in groups]), ranks)
    nothing, none = project(head, read_values(detector.parent / "memories.h5", range(1, 1)), 3, w[:0])
    assert none.shape == (0,)
    write_projections(tmp_path / "0.h5", replace(nothing, attributes={"projection": "head"}))
    with hdf5.open(tmp_path / "0.h5", "projections") as file:
        assert file["top_token"].shape == file["bottom_token"].shape == (0, 3)
