"""What the head ignores and what it reads as frequency: planted values by hand, heads of all kinds against a second computation."""

import numpy as np
import pytest
import torch
from support import LAYER_KINDS

from ffkv.branches.roles import readout
from ffkv.branches.roles.readout import ignores_mean, make_readout, measure, read_matrix
from ffkv.model.head.head_file import load_head

VOCABULARY, WIDTH = 50, 8


@pytest.fixture
def matrix() -> torch.Tensor:
    """W [d, vocabulary], of which the first two directions write nothing."""
    matrix = torch.randn(WIDTH, VOCABULARY, generator=torch.Generator().manual_seed(0))
    matrix[:2] = 0
    return matrix


def test_values_in_ignored_directions_and_along_the_unigram_direction(matrix):
    """A value that the head ignores, one of which it ignores 16 / 25, one along Wᵀf, one that writes f itself, and none."""
    counts = np.arange(VOCABULARY) ** 2
    f = np.log(counts + 1.0)
    f -= f.mean()
    centred = (matrix - matrix.mean(1, keepdim=True)).double()
    values = torch.zeros(5, WIDTH)
    values[0, :2] = torch.tensor([1.0, -2.0])
    values[1, 1], values[1, 5] = 4, 3
    values[2] = -2 * (centred @ torch.from_numpy(f)).float()
    values[3] = torch.from_numpy(
        np.linalg.lstsq(centred.T.numpy(), f, rcond=None)[0]
    ).float()  # what writes the most like f
    found = measure(make_readout(matrix, counts, 0.01, False), values)
    # Two directions write nothing, which is more than a hundredth of eight. The others are read, and the unigram direction
    # is among them, so that it has no part in the ignored ones.
    assert found["ignored_share"][:3] == pytest.approx([1, 16 / 25, 0], abs=1e-5)
    assert found["unigram_cosine"][2] == pytest.approx(-1, abs=1e-5)
    written = values.double() @ centred
    for row in (1, 2, 3):
        assert found["unigram_correlation"][row] == pytest.approx(np.corrcoef(written[row], f)[0, 1], abs=1e-5)
    assert found["unigram_correlation"][3] >= np.abs(found["unigram_correlation"][1:3]).max()
    assert np.isnan([found[name][4] for name in found]).all()
    assert np.isnan(found["unigram_correlation"][0])  # it writes nothing


def test_a_hundredth_of_the_directions_is_ignored_where_the_head_reads_all():
    """The direction with the smallest singular value of the centred W, by hand."""
    matrix = torch.randn(200, 300, generator=torch.Generator().manual_seed(1))
    made = make_readout(matrix.clone(), np.ones(300), 0.01, False)
    centred = (matrix - matrix.mean(1, keepdim=True)).double()
    smallest = torch.linalg.svd(centred).U[:, -2:]
    assert made.ignored.shape == (200, 2)
    np.testing.assert_allclose((made.ignored.double() @ made.ignored.double().T), smallest @ smallest.T, atol=1e-4)


@pytest.mark.parametrize("unit", [1e-3, 1, 1e3])
def test_a_direction_is_ignored_that_writes_nothing_beside_the_others_whatever_the_unit(unit):
    matrix = unit * torch.randn(4, 50, generator=torch.Generator().manual_seed(0))
    assert make_readout(matrix.clone(), np.ones(50), 0.01, False).ignored.shape == (4, 1)  # one at least
    matrix[:2] *= 1e-3
    assert make_readout(matrix, np.ones(50), 0.01, False).ignored.shape == (4, 2)


def test_products_are_added_in_float64_over_all_tokens(monkeypatch):
    """Two tokens at a time: 2e8 + 2 + ... + 2, which float32 would leave at 2e8."""
    monkeypatch.setattr(readout, "TOKENS", 2)
    matrix = torch.tensor([[1e4, -1e4, *[1, -1] * 40], [0, 0, *[3, -3] * 40], [0] * 82])
    gram = make_readout(matrix, np.ones(82), 0.01, False).gram
    assert gram.tolist() == torch.tensor([[2e8 + 80, 240, 0], [240, 720, 0], [0, 0, 0]]).tolist()


def test_the_mean_is_no_direction_where_the_head_takes_it_off(matrix):
    """A head behind a LayerNorm writes nothing for equal numbers in all dimensions, and they do not make the norm larger."""
    matrix -= matrix.mean(0)
    values = torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(0))
    made = make_readout(matrix.clone(), np.ones(VOCABULARY), 0.01, True)
    assert made.ignored.shape == (WIDTH, 1) and abs(made.ignored.sum()) < 1e-4
    plain, moved = measure(made, values), measure(made, values + torch.tensor([[5.0], [-2.0], [0.5]]))
    np.testing.assert_allclose(plain["ignored_share"], moved["ignored_share"], atol=1e-5)
    assert np.isfinite(plain["ignored_share"]).all()


@pytest.mark.parametrize("weight", [0, 1e-4, 0.01])
def test_a_head_that_reads_a_hundredth_of_the_mean_does_not_ignore_it(weight):
    """Logits may differ by a thousandth."""

    class Reader:
        def logits(self, vectors, layer):
            return vectors - vectors.mean(1, keepdim=True) + weight * vectors.mean(1, keepdim=True)

    assert ignores_mean(Reader(), WIDTH, 0) == (weight < 0.001)


@pytest.mark.parametrize("kind", LAYER_KINDS)
def test_the_matrix_of_heads_of_all_kinds(load_kind, proven, kind, tmp_path):
    """What vectors of length one add to the logits, in float64, is in proportion to their products with the matrix.

    Two random vectors have a cosine of some 0.1 over 60 tokens. The adaptive head of fairseq is no matrix.
    """
    folder = tmp_path / "stage/model" if kind == "fairseq" else proven(kind)
    if kind == "fairseq":
        load_kind(kind)
    head, width = load_head(folder, "cpu"), load_kind_width(folder)
    matrix = read_matrix(head, width, 1)
    if kind == "fairseq":
        assert matrix is None
        unknown = measure(None, torch.ones(2, width)).values()
        assert all(np.isnan(numbers).all() and numbers.dtype == np.float32 for numbers in unknown)
        return
    vectors = torch.randn(20, width, generator=torch.Generator().manual_seed(7))
    written = head.uncapped(vectors, 1) - head.uncapped(torch.zeros(1, width), 1)
    products = vectors.double() @ matrix.double()
    assert torch.cosine_similarity(written.double(), products, dim=1).min() > 0.9999
    assert ignores_mean(head, width, 1) == (kind in ("gpt2", "gpt-neox", "opt-post-norm"))


def load_kind_width(folder) -> int:
    from ffkv.model.anatomy import read_anatomy

    return read_anatomy(folder).width
