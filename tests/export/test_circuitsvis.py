"""The arguments of CircuitsVis."""

import numpy as np
import pytest

import ffkv
from ffkv.base.errors import UserError


def test_the_arguments_of_circuitsvis(run):
    memory = run.memory(1, 5)
    found = ffkv.circuitsvis(memory, examples=2, device="cpu")
    sentences = [*memory.triggers["sentence"][:2], *memory.negative_triggers["sentence"][:2]]
    sentences = [*dict.fromkeys(sentences)]
    assert ["".join(tokens) for tokens in found["tokens"]] == [run.corpus("train").texts[s] for s in sentences]
    m = ffkv.coefficients(run, sentences, "L1.5", "cpu")["L1.5"]
    for number, own in enumerate(found["activations"]):
        np.testing.assert_allclose(own[:, 0, 0], m.loc[number], rtol=1e-4, atol=1e-5)
        assert own.ndim == 3
    with pytest.raises(UserError, match="examples is 0"):
        ffkv.circuitsvis(memory, 0)


def test_circuitsvis_that_is_not_installed_is_named(run, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "circuitsvis.activations", None)
    with pytest.raises(UserError, match="pip install circuitsvis"):
        ffkv.circuitsvis(run.memory(1, 5), 1, "cpu").show()
