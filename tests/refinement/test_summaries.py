"""Summaries of refinement: small cases by hand."""

import pandas as pd
import pytest

from ffkv.base.intervals import boxes
from ffkv.branches.refinement import summaries
from ffkv.branches.refinement.cases import classify
from ffkv.branches.refinement.tables import CASES

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
    shares = summaries.summarize_residual_agreement(TABLE)
    assert shares["matching"].tolist() == [1, 1]
    assert shares["share"].tolist() == pytest.approx([1 / 3, 1 / 3])
    assert shares["tied"].tolist() == [2, 1]


def test_the_breakdown_counts_every_prefix_once_per_layer():
    counts = summaries.summarize_breakdown(TABLE).pivot(index="layer", columns="case", values="prefixes")
    assert counts.loc[0].to_dict() == {"agreement": 1, "residual": 1, "other": 1, "ffn": 0, "composition": 0}
    assert counts.loc[1].to_dict() == {"ffn": 1, "composition": 1, "agreement": 1, "residual": 0, "other": 0}
    assert summaries.summarize_breakdown(TABLE).groupby("layer")["share"].sum().tolist() == pytest.approx([1, 1])


def test_probabilities_by_layer():
    assert boxes(TABLE, "probability", "prefixes")["median"].tolist() == pytest.approx([0.2, 0.5])


def test_the_breakdown_is_ordered_by_layer_then_case():
    table = summaries.summarize_breakdown(TABLE)
    assert table["layer"].tolist() == [0] * 5 + [1] * 5 and table.index.tolist() == [*range(10)]
    assert table["case"].tolist() == [*CASES, *CASES]
    layers = pd.concat([TABLE.assign(layer=layer) for layer in range(9, 0, -1)])
    assert summaries.summarize_breakdown(layers)["case"].tolist() == [*CASES] * 9
