"""Running statistics: small cases by hand, histograms against a search of the edges."""

import numpy as np
import pytest
import torch

from ffkv.activations.statistics import Statistics, _tally, _tally_without_waiting, sums
from ffkv.activations.trigger_file import FIXED_POINT, HISTOGRAM_EDGES


def test_sums_count_each_token_as_often_as_it_competes():
    m = torch.tensor([[1.0, -2.0], [0.5, 0.0], [-4.0, 8.0]])
    times = torch.tensor([2.0, 1.0, 3.0])
    assert sums(m, times, two_sided=True).tolist() == [[-9.5, 20], [3, 3], [3, 2]]
    assert sums(m, times, two_sided=False).tolist() == [[-9.5, 20], [3, 3]]
    assert sums(m.to(torch.bfloat16), times.double(), two_sided=False).dtype == torch.float64


def test_two_batches_by_hand():
    found = Statistics(2, "cpu")
    parts = torch.tensor(
        [[[1.0, -0.25], [3, 0], [1, 5]], [[2.0, -0.5], [4, 1], [0, 6]]]
    )  # [part][sum, positive, negative]
    found.add(parts, torch.tensor([[0.5, 0.0], [2.0, 0.25]]), torch.tensor([[-3.0, -1.0], [0.0, -2.0]]))
    assert (found.total * FIXED_POINT).tolist() == [3, -0.75]
    assert (found.fires.tolist(), found.fires_negative.tolist()) == ([7, 1], [1, 11])
    assert (found.maximum.tolist(), found.minimum.tolist()) == ([2, 0.25], [-3, -2])
    found.add(torch.tensor([[[8.0, torch.inf], [1, 1]]]), torch.tensor([[1.0, 0.5]]), None)
    assert found.total[0] * FIXED_POINT == 11 and found.finite.tolist() == [True, False]
    assert (found.fires.tolist(), found.fires_negative.tolist()) == ([8, 2], [1, 11])
    assert (found.maximum.tolist(), found.minimum.tolist()) == ([2, 0.5], [-3, -2])
    found.add(torch.tensor([[[1.0, 1], [0, 0], [2, 1]]]), torch.zeros(1, 2), torch.tensor([[-4.0, -1.0]]))
    assert found.finite.tolist() == [True, False]  # once not finite, never again
    assert (found.fires_negative.tolist(), found.minimum.tolist()) == ([3, 12], [-4, -2])
    counts = (found.fires, found.fires_negative, found.total, found.histogram)
    assert {of_keys.dtype for of_keys in counts} == {torch.int64}


def test_totals_are_rounded_to_whole_units():
    found = Statistics(1, "cpu")
    found.add(torch.tensor([[[0.6 * FIXED_POINT], [1]], [[0.6 * FIXED_POINT], [1]]]), torch.zeros(1, 1), None)
    assert found.total.tolist() == [2]


@pytest.mark.parametrize("weighted", [False, True])
def test_histograms_are_those_of_a_search_of_the_edges(weighted):
    """At each edge, next to it, and far from it; two batches add up."""
    inner = HISTOGRAM_EDGES[2:-1]
    values = np.concatenate(
        [inner, np.nextafter(inner, np.float32(0)), -inner, [0, -0.0, 2**-126, 1e-30, 2e38]]
    ).astype(np.float32)
    coefficients = np.stack([values, np.roll(values, 1) * np.float32(1.5)], 1)
    times = np.arange(len(values)) % 3 if weighted else np.ones(len(values), int)
    found = Statistics(2, "cpu")
    for _ in range(2):
        found.add_histogram(torch.from_numpy(coefficients), torch.from_numpy(times) if weighted else None)
    for key, column in enumerate(coefficients.T):
        bins = np.where(column > 0, np.searchsorted(HISTOGRAM_EDGES, column, "right") - 1, 0)
        assert found.histogram[key].tolist() == (2 * np.bincount(bins, times, len(HISTOGRAM_EDGES) - 1)).tolist()


@pytest.mark.parametrize(
    "weights, expected", [(None, [1, 0, 2, 0]), (torch.tensor([5, 7, 2**40]), [7, 0, 2**40 + 5, 0])]
)
def test_numbers_are_counted_on_a_gpu_as_on_the_cpu(weights, expected):
    for tally in (_tally, _tally_without_waiting):
        found = tally(torch.tensor([2, 0, 2], dtype=torch.int32), weights, 4)
        assert (found.tolist(), found.dtype) == (expected, torch.int64)
