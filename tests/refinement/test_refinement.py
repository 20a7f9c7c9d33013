"""Refinement: the cases by their definitions, and the detector's predictions by hand."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from support import WORDS

from ffkv.activations.prefix_file import PrefixLayer
from ffkv.model.head.head_file import load_head
from ffkv.model.head.predictions import predictions
from ffkv.refinement import refinement
from ffkv.refinement.layer import read_out


def naive_case(r, y, o):
    if o == r and o == y:
        return "agreement"
    if o == r:
        return "residual"
    if o == y:
        return "ffn"
    return "other" if r == y else "composition"


def test_every_combination_falls_into_its_one_case():
    triples = np.array(list(itertools.product(range(3), repeat=3)))
    assert refinement.classify(*triples.T).tolist() == [naive_case(*triple) for triple in triples.tolist()]
    assert set(refinement.classify(*triples.T)) == set(refinement.CASES)


def test_the_detectors_predictions_by_hand(detector, loaded_detector):
    """Residual e_w predicts w itself. After a, layer 0 adds 4 e_b: ffn. After b it adds 0.4 e_c: residual, and y predicts c.

    After c it adds to what is there: agreement. After d, nothing: y = 0, all logits alike, id 0 wins; residual.
    """
    import torch

    from ffkv.model.discover.prove import observe

    words = ["a", "b", "c", "d"]
    ids = torch.tensor([[0, WORDS.index(word)] for word in words])
    states, head = observe(loaded_detector.model, loaded_detector.anatomy.layers, ids), load_head(detector, "cpu")
    y, o = (states[0][quantity][:, 1].numpy() for quantity in "yo")
    found = [predictions(head, vectors, 0) for vectors in (o - y, y, o)]
    top_r, top_y, top_o = (prediction.ids for prediction in found)
    assert [WORDS[token] for token in top_r] == words
    assert [WORDS[token] for token in top_y] == ["b", "c", "c", "<bos>"]
    assert [WORDS[token] for token in top_o] == ["b", "b", "c", "d"]
    assert found[1].tied.tolist() == [False, False, False, True]
    assert not found[0].tied.any() and not found[2].tied.any()
    cases = ["ffn", "residual", "agreement", "residual"]
    assert refinement.classify(top_r, top_y, top_o).tolist() == cases
    # the same as one table, with the probability that r gives to a: LayerNorm of 4 e_w is 4 at w and -1/4 at the others
    none = np.zeros((0, 0), np.float32)
    read = read_out(head, PrefixLayer(o - y, none, y, o, none), np.full(4, WORDS.index("a")), 0)
    assert read["case"].tolist() == cases
    assert read["tied"].tolist() == [0, 0, 0, 1]
    total = math.exp(4) + 16 * math.exp(-0.25)
    assert read["probability"].tolist() == pytest.approx(
        [math.exp(4) / total] + 3 * [math.exp(-0.25) / total], rel=1e-3
    )


TABLE = pd.DataFrame(
    {
        "layer": [0, 0, 0, 1, 1, 1],
        "prefix": [0, 1, 2, 0, 1, 2],
        "top_residual": [1, 2, 3, 1, 5, 3],
        "top_ffn": [1, 9, 3, 4, 4, 3],
        "top_output": [1, 2, 4, 4, 6, 3],
        "final": [4, 6, 3, 4, 6, 3],
        "probability": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6],
    }
)
TABLE["case"] = refinement.classify(*(TABLE[name].to_numpy() for name in ("top_residual", "top_ffn", "top_output")))


def test_how_often_the_residual_already_predicts_the_final_token():
    shares = refinement.matches(TABLE)
    assert shares["matching"].tolist() == [1, 1]
    assert shares["share"].tolist() == pytest.approx([1 / 3, 1 / 3])


def test_the_breakdown_counts_every_prefix_once_a_layer():
    counts = refinement.breakdown(TABLE).pivot(index="layer", columns="case", values="prefixes")
    assert counts.loc[0].to_dict() == {"agreement": 1, "residual": 1, "other": 1, "ffn": 0, "composition": 0}
    assert counts.loc[1].to_dict() == {"ffn": 1, "composition": 1, "agreement": 1, "residual": 0, "other": 0}
    assert refinement.breakdown(TABLE).groupby("layer")["share"].sum().tolist() == pytest.approx([1, 1])


def test_probabilities_by_layer():
    assert refinement.probabilities(TABLE)["median"].tolist() == pytest.approx([0.2, 0.5])


def test_sampled_changes_are_changes_and_no_more_than_asked_for():
    last = TABLE[TABLE["layer"] == 1]
    assert refinement.sample_changes(last, 10, 0)["prefix"].tolist() == [0, 1]
    assert len(refinement.sample_changes(last, 1, 0)) == 1
    assert refinement.sample_changes(last[last["prefix"] == 2], 10, 0).empty


def test_closeness_of_tokens_by_hand():
    embedding = np.array([[1, 0], [2, 0], [0, 3], [-1, 0]], np.float32)
    cosine, percentile = refinement.closeness(embedding, np.array([0, 0, 0]), np.array([1, 2, 3]), seed=0)
    assert cosine.tolist() == pytest.approx([1, 0, -1])
    # pairs of different tokens: 1 of 6 has cosine 1, 1 of 3 has -1 ((0,3), (1,3)), the rest 0; 7,500 draws or so
    assert percentile.tolist() == pytest.approx([5 / 6, 1 / 3, 0], abs=0.03)


def test_the_table_to_annotate_tells_text_and_words(detector, write_corpus):
    from ffkv.corpus.corpus_file import read_corpus
    from ffkv.model.checkpoint.read import load_tokenizer
    from ffkv.model.checkpoint.vocabulary import read_vocabulary

    corpus = read_corpus(write_corpus(["a b c", "d e"], load_tokenizer(detector), 17))
    chosen = pd.DataFrame({"prefix": [1], "top_residual": [2], "top_output": [3]})
    made = refinement.changes(
        chosen, corpus, np.array([0, 0, 1]), np.array([1, 2, 1]), read_vocabulary(detector), None, 0
    )
    assert made.loc[0, ["text", "next_token", "residual_token", "output_token", "related"]].tolist() == [
        "a b",
        "c",
        "b",
        "c",
        "",
    ]
    assert np.isnan(made.loc[0, "cosine"])
