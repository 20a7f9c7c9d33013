"""Where a dictionary reads and writes is measured: every place is found, a wrong one is named, and what fits nowhere is refused."""

import pytest
import torch
from support import refused

from ffkv.base.settings import Model
from ffkv.model.discover.probe_texts import passages
from ffkv.model.step import prove
from ffkv_dictionaries import choose
from ffkv_dictionaries.layer import gain_of
from tests.ffkv_dictionaries.conftest import fitted, of_layer


@pytest.fixture
def seen(models):
    """What layer 1 of a model reads and writes on the texts of the proof, by the names of inputs and outputs."""

    def get(kind: str) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        proven = prove(Model(checkpoint=str(models(kind)[0])))
        ids = torch.cat(passages(proven.model, proven.tokenizer))
        own = choose._see(proven.model, proven.anatomy.layers[1:], ids)[1]
        gain, bias = gain_of(own.read.norm, 16)
        inputs = {"normed": own.read.x, "unscaled": (own.read.x - bias) / gain, "residual": own.read.h}
        return inputs, {where: own.outputs[name] for where, name in own.places.items()}

    return get


PLACES = [
    *(("gpt2", reads, "before") for reads in ("normed", "unscaled", "residual", "output")),
    *(("gemma2", reads, writes) for reads in ("normed", "unscaled", "residual") for writes in ("before", "after")),
]


@pytest.mark.parametrize(("kind", "reads", "writes"), PLACES)
def test_the_place_is_found(kind, reads, writes, seen, proven):
    inputs, outputs = seen(kind)
    y = outputs[writes]
    x = y if reads == "output" else inputs[reads]
    made = proven(kind, {1: fitted(x, y)})
    (place,) = made.anatomy.dictionaries
    assert place.unexplained < 0.5
    assert place.layer == 1
    layer = {"gpt2": "transformer.h.1.", "gemma2": "model.layers.1."}[kind]
    norm, first, second = {
        "gpt2": ("ln_2", "mlp.c_fc", "mlp.c_proj"),
        "gemma2": ("pre_feedforward_layernorm", "mlp.gate_proj", "mlp.down_proj"),
    }[kind]
    second = "post_feedforward_layernorm" if writes == "after" else second
    expected = {"normed": layer + first, "unscaled": layer + first, "residual": layer + norm, "output": ""}[reads]
    assert (place.writes, place.reads) == (layer + second, expected)
    assert place.without_gain == (layer + norm if reads == "unscaled" else "")
    assert max(made.anatomy.errors.values()) < 1e-4
    # Every candidate is told, the best one first.
    told = [line for line in made.anatomy.remarks if line.startswith("reads ")]
    assert len(told) == (9 if kind == "gemma2" else 5)
    assert choose.READS[reads] in told[0] and choose.WRITES[writes] in told[0]


def test_what_explains_nothing_is_refused(models, proven):
    other = of_layer(models("gpt2")[1], 0)
    with refused(r"layer 1 explains too little .* input of the norm, .* Its files say: it reads ln2"):
        proven("gpt2", {1: other})


def test_two_places_that_explain_as_much_are_refused(seen, proven, monkeypatch):
    """What reads nothing explains the same wherever it reads: here a skip of zeros, and values that are the mean."""
    inputs, outputs = seen("gpt2")
    dictionary = fitted(inputs["normed"], outputs["before"])
    same = torch.zeros_like(dictionary.encoder)
    constant = type(dictionary)(same, same[:, 0] + 1, same, outputs["before"].mean(0), threshold=same[:, 0])
    with refused("explains too little"):
        proven("gpt2", {1: constant})
    monkeypatch.setattr(choose, "MOST", 1.1)
    with refused("two places explain about as much.* Set dictionary.reads and dictionary.writes"):
        proven("gpt2", {1: constant})
    # Who knows it says it.
    assert proven("gpt2", {1: constant}, reads="normed").anatomy.dictionaries[0].unexplained == pytest.approx(1)


def test_layers_are_chosen_and_checked(models, proven):
    both = {number: of_layer(models("opt")[1], number) for number in (0, 1)}
    assert [place.layer for place in proven("opt", both, layers=[1]).anatomy.dictionaries] == [1]
    with refused(r"dictionary.layers: .* has no layer 5 to read so. It has: \[0, 1\]"):
        proven("opt", both, layers=[5])
    with refused("has a dictionary of layer 2, but the model has the layers 0 to 1"):
        proven("opt", {2: both[0]})


def test_another_width_is_refused(proven):
    dictionary = fitted(torch.randn(50, 12), torch.randn(50, 12))
    with refused("reads vectors of 12 numbers, but layer 0 of the model reads 16"):
        proven("gpt2", {0: dictionary})


def test_a_place_that_is_not_there_is_refused(models, proven):
    with refused("the layers do not have such a place"):
        proven("gpt2", {0: of_layer(models("gpt2")[1], 0)}, writes="after")
