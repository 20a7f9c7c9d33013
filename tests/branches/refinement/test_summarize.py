"""Summaries of refinement: small cases by hand."""

import numpy as np
import pandas as pd
import pytest

from ffkv.base.intervals import boxes
from ffkv.branches.refinement import summarize
from ffkv.branches.refinement.measure import classify
from ffkv.branches.refinement.summarize import describe_changes, measure_closeness, sample_changes
from ffkv.branches.refinement.tables import CASES
from ffkv.corpus.corpus_file import read_corpus
from ffkv.model.checkpoint.tokenizer import load_tokenizer
from ffkv.model.checkpoint.vocabulary import read_vocabulary

TABLE = pd.DataFrame(
    {
        "layer": [0, 0, 0, 1, 1, 1],
        "prefix": [0, 1, 2, 0, 1, 2],
        "top_residual": [1, 2, 3, 1, 5, 3],
        "top_ffn": [1, 9, 3, 4, 4, 3],
        "top_output": [1, 2, 4, 4, 6, 3],
        "final": [4, 6, 3, 4, 6, 3],
        "probability": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6],
        "tied": [0, 2, 1, 0, 0, 3],
    }
)
TABLE["case"] = classify(*(TABLE[name].to_numpy() for name in ("top_residual", "top_ffn", "top_output")))


def test_how_often_the_residual_already_predicts_the_final_token():
    shares = summarize.summarize_residual_agreement(TABLE)
    assert shares["matching"].tolist() == [1, 1]
    assert shares["share"].tolist() == pytest.approx([1 / 3, 1 / 3])
    assert shares["tied"].tolist() == [2, 1]


def test_the_breakdown_counts_every_prefix_once_per_layer_and_is_ordered_by_layer_then_case():
    table = summarize.summarize_breakdown(TABLE)
    assert table["layer"].tolist() == [0] * 5 + [1] * 5 and table.index.tolist() == [*range(10)]
    counts = table.pivot(index="layer", columns="case", values="prefixes")
    assert counts.loc[0].to_dict() == {"agreement": 1, "residual": 1, "other": 1, "ffn": 0, "composition": 0}
    assert counts.loc[1].to_dict() == {"ffn": 1, "composition": 1, "agreement": 1, "residual": 0, "other": 0}
    assert table.groupby("layer")["share"].sum().tolist() == pytest.approx([1, 1])
    layers = pd.concat([TABLE.assign(layer=layer) for layer in range(9, 0, -1)])
    assert summarize.summarize_breakdown(layers)["case"].tolist() == [*CASES] * 9


def test_probabilities_by_layer():
    assert boxes(TABLE, "probability", "prefixes")["median"].tolist() == pytest.approx([0.2, 0.5])


def test_sampled_changes_are_changes_and_no_more_than_asked_for():
    last = pd.DataFrame({"prefix": [0, 1, 2], "top_residual": [1, 5, 3], "top_output": [4, 6, 3]})
    assert sample_changes(last, 10, 0)["prefix"].tolist() == [0, 1]
    assert len(sample_changes(last, 1, 0)) == 1
    assert sample_changes(last[last["prefix"] == 2], 10, 0).empty


def test_closeness_of_tokens_by_hand():
    embedding = np.array([[1, 0], [2, 0], [0, 3], [-1, 0]], np.float32)
    cosine, percentile = measure_closeness(embedding, np.array([0, 0, 0]), np.array([1, 2, 3]), np.arange(4), seed=0)
    assert cosine.tolist() == pytest.approx([1, 0, -1])
    short, _ = measure_closeness(embedding / 8, np.array([0]), np.array([1]), np.arange(4), seed=0)
    assert short.tolist() == pytest.approx([1])
    # pairs of different tokens: 1 of 6 has cosine 1, 1 of 3 has -1 ((0,3), (1,3)), the rest 0; 7,500 draws or so
    assert percentile.tolist() == pytest.approx([5 / 6, 1 / 3, 0], abs=0.03)


def test_rows_that_no_text_uses_do_not_enter_the_random_pairs():
    """Padding of the vocabulary is alike: with it, most random pairs would be as close as can be."""
    embedding = np.array([[1, 0], [0, 1], [-1, 0], *[[1, 1]] * 50], np.float32)
    _, percentile = measure_closeness(embedding, np.array([0]), np.array([1]), np.array([0, 1, 2]), seed=0)
    assert percentile[0] == pytest.approx(1 / 3, abs=0.03)  # of the three pairs of used rows one is less close


def test_the_table_to_annotate_tells_text_and_words(detector, write_corpus):
    corpus = read_corpus(write_corpus(["a b c", "d e"], load_tokenizer(detector)))
    changes = pd.DataFrame({"prefix": [1], "top_residual": [2], "top_output": [3]})
    sentence, position, tokens = np.array([0, 0, 1]), np.array([1, 2, 1]), read_vocabulary(detector)
    row = describe_changes(changes, corpus, sentence, position, tokens, None, 0).loc[0]
    texts = ["prefix", "text", "next_token", "residual_token", "output_token", "related"]
    assert row[texts].tolist() == [1, "a b", "c", "b", "c", ""]
    assert np.isnan(row["cosine"]) and np.isnan(row["cosine_percentile"])
    embedding = np.random.default_rng(0).normal(size=(17, 3)).astype(np.float32)
    row = describe_changes(changes, corpus, sentence, position, tokens, embedding, 7).loc[0]
    used = np.unique(np.asarray(corpus.tokens))  # without the tokens that the text does not have
    cosine, percentile = measure_closeness(embedding, np.array([2]), np.array([3]), used, 7)
    assert len(used) < 17 and (row["cosine"], row["cosine_percentile"]) == (cosine[0], percentile[0])
