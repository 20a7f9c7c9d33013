"""Which coefficients are tied, and that nothing but the corpus decides between tied prefixes."""

from functools import partial

import numpy as np
import pytest
import torch
from support import random_sentences

from ffkv.activations.ties import rough, tied_first
from ffkv.activations.triggers import find_triggers
from ffkv.base.settings import Batches, Triggers
from ffkv.corpus.corpus_file import read_corpus
from ffkv.model.checkpoint.load import load
from ffkv.model.checkpoint.tokenizer import load_tokenizer
from ffkv.model.tap.hooks import after

STEP = 2**-14  # between two numbers from 1 to 2 with 15 significant binary digits


def test_fifteen_binary_digits_count():
    sizes = np.array([0, 1, 1 + 0.99 * STEP, 1 + STEP, 2 - 0.01 * STEP, 2, 2 + 1.99 * STEP, 1e30], np.float32)
    digits = rough(sizes)
    assert digits[0] == -1
    assert (np.diff(digits) > 0).tolist() == [True, False, True, True, True, False, True]
    np.testing.assert_array_equal(rough(-sizes), digits)


def test_a_key_is_tied_if_its_first_two_trigger_examples_are():
    rows = [[1 + STEP, 1, 1], [1, 1 + STEP / 2, 0.5], [1, 0, 0], [0, 0, 0], [2, 1, 1]]
    assert tied_first(np.array(rows, np.float32)).tolist() == [False, True, False, False, False]
    assert tied_first(-np.array(rows, np.float32)).tolist() == [False, True, False, False, False]
    assert not tied_first(np.array([[1.0]], np.float32)).any()


def round_otherwise(generator: torch.Generator, *call):
    """What a first matrix returns, with errors as another processor makes them."""
    output = call[-1]
    return output * (1 + 2e-7 * torch.randn(output.shape, generator=generator))


@pytest.mark.parametrize("kind", ["gpt2", "gpt-neox"])
def test_neither_batches_nor_rounding_decide_between_tied_prefixes(proven, write_corpus, kind):
    """Negative coefficients of GELU crowd at its lowest point. Layer 0 of GPT-NeoX sees the last token only.

    Where all digits count, these changes give such keys other lists.
    """
    loaded, found = load(proven(kind), "cpu"), []
    corpus = read_corpus(write_corpus(random_sentences(1, 1500), load_tokenizer(proven(kind))))
    layers = loaded.anatomy.layers
    matrices = [loaded.model.get_submodule(layer.second_matrices[0].first_matrices[0]) for layer in layers]
    for tokens, block, seed in ((1024, 2048, 0), (40, 2048, 0), (4000, 100, 1), (300, 700, 2)):
        generator = torch.Generator().manual_seed(seed)
        noisy = [(matrix, partial(round_otherwise, generator)) for matrix in matrices if seed]
        with after(*noisy):
            batching = Batches(tokens=tokens, block_sentences=block)
            found.append(find_triggers(loaded, corpus, Triggers(per_key=20), batching))
    crowded = found[0].negative if kind == "gpt2" else found[0]
    assert tied_first(crowded.coefficient[: found[0].layer_offset[1]]).mean() > 0.9
    for one in found[1:]:
        for first, other in ((found[0], one), (found[0].negative, one.negative)):
            same = (first.sentence == other.sentence) & (first.position == other.position)
            # A coefficient between two steps can still fall to either side of it.
            assert (~same.all(1)).mean() < 0.05
            np.testing.assert_allclose(first.coefficient, other.coefficient, rtol=2 * STEP)
