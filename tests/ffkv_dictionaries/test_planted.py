"""Planted dictionaries: units whose triggers are known, and known directions that the training of `make dictionary` finds again."""

import importlib.util

import pytest
import torch
from support import ROOT, WORDS

from ffkv.base.settings import Dictionary as Settings
from ffkv.base.settings import Model
from ffkv.branches.settings import Settings as AllSettings
from ffkv.model.step import prove
from ffkv.model.tap.tap import observe
from ffkv.workflow.inputs import unreadable_inputs
from ffkv_dictionaries import choose
from ffkv_dictionaries.forms import Dictionary


@pytest.fixture
def words(detector, written, form) -> Settings:
    """A dictionary of layer 0 of the detector with a unit per word: x has 4 at the last word, so that unit w is on behind w alone."""
    proven = prove(Model(checkpoint=str(detector.parents[1] / "checkpoint")))
    every = torch.arange(len(WORDS))[:, None]  # a sentence of one word each
    values = observe(proven.model, proven.anatomy.layers, every, "y")[0]["y"][:, 0] / 4
    keys, zeros = torch.eye(len(WORDS)), torch.zeros(len(WORDS))
    return written({0: Dictionary(keys, zeros, values, zeros, threshold=zeros + 1)})


def test_planted_units_have_the_planted_triggers(words, detector):
    proven = prove(Model(checkpoint=str(detector.parents[1] / "checkpoint")), dictionary=words)
    assert proven.anatomy.dictionaries[0].unexplained < 1e-8
    ids = torch.randint(len(WORDS), (4, 12), generator=torch.Generator().manual_seed(1))
    layer = proven.anatomy.layers[0]
    assert layer.memories == len(WORDS) and layer.is_dictionary
    m = observe(proven.model, proven.anatomy.layers, ids, "m")[0]["m"]
    # rounding of LN: it adds 1e-5 to a variance of 16/289
    torch.testing.assert_close(m, 4 * torch.nn.functional.one_hot(ids, len(WORDS)).float(), rtol=1e-3, atol=1e-5)


def test_training_finds_known_directions():
    """y is a sum of few of 20 directions, each on with a key of its own in x. The units that are learned have these directions."""
    spec = importlib.util.spec_from_file_location("train_transcoder", ROOT / "tools/train_transcoder.py")
    training = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(training)
    torch.manual_seed(4)
    keys, values = (torch.nn.functional.normalize(torch.randn(20, 32), dim=1) for _ in range(2))
    amounts = torch.rand(6000, 20) * (torch.rand(6000, 20) < 0.1)
    with torch.enable_grad():  # commands of other tests switch gradients off
        tensors = training.train(amounts @ keys, amounts @ values, units=64, active=2, seconds=600, steps=800)
    assert {name: tuple(each.shape) for name, each in tensors.items()} == {
        "W_enc": (32, 64), "b_enc": (64,), "W_dec": (64, 32), "b_dec": (32,), "threshold": (64,)
    }  # fmt: skip
    learned = torch.nn.functional.normalize(tensors["W_dec"].detach(), dim=1)
    found = (values @ learned.T).max(1).values
    assert (found > 0.9).sum() >= 18  # of 20; random units come to 0.5
    dictionary = Dictionary(
        tensors["W_enc"].T, tensors["b_enc"], tensors["W_dec"], tensors["b_dec"], threshold=tensors["threshold"]
    )
    with torch.no_grad():
        assert choose.unexplained(dictionary, amounts @ keys, amounts @ values) < 0.2


def test_a_folder_that_is_not_there_is_told_before_a_run():
    settings = AllSettings.model_validate({"dictionary": {"path": "no/such"}, "model": {"checkpoint": "a"}})
    assert "There is no no/such. Set dictionary.path to another folder." in unreadable_inputs(settings)
    both = AllSettings.model_validate({"dictionary": {"path": "a", "explains": 0.5}})
    assert any("has several of path, largest and explains" in each for each in both.contradictions())
