"""The cases of figure 11 by their definitions."""

import itertools

import numpy as np

from ffkv.branches.refinement.cases import classify
from ffkv.branches.refinement.tables import CASES


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
    assert classify(*triples.T).tolist() == [naive_case(*triple) for triple in triples.tolist()]
    assert set(classify(*triples.T)) == set(CASES)
