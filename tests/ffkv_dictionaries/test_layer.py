"""A layer that is read through a dictionary: its sums, by hand and by brute force in float64; changes; what it leaves."""

from dataclasses import replace

import pytest
import torch
from support import refused, some_ids

from ffkv.model.anatomy import DictionaryPlace
from ffkv.model.checkpoint.load import load
from ffkv.model.keys_and_values import factors, keys, values
from ffkv.model.tap.change import scaled
from ffkv.model.tap.hooks import forward
from ffkv.model.tap.tap import observe
from ffkv_dictionaries.forms import Dictionary
from ffkv_dictionaries.layer import activate, gain_of, put
from tests.ffkv_dictionaries.conftest import of_layer

EXACT = 1e-6  # relative: sums of some 40 products in float32


def noisy(dictionary: Dictionary, seed: int = 0, noise: float = 0.05) -> Dictionary:
    """Another dictionary, that does not explain everything, with a skip connection."""
    generator = torch.Generator().manual_seed(seed)

    def beside(tensor):
        return tensor + noise * torch.randn(tensor.shape, generator=generator)

    width = dictionary.encoder.shape[1]
    moved = {name: beside(tensor) for name, tensor in dictionary.tensors().items()}
    return replace(dictionary, **moved, skip=beside(torch.zeros(width, width)))


def by_hand(dictionary: Dictionary, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """m and what the dictionary writes beside its units, in float64, unit by unit."""
    own = {name: tensor.double() for name, tensor in dictionary.tensors().items()}
    x = x.double()
    m = torch.zeros(*x.shape[:-1], len(own["encoder"]), dtype=torch.float64)
    for unit, (key, bias) in enumerate(zip(own["encoder"], own["encoder_bias"], strict=True)):
        pre = (x * key).sum(-1) + bias
        m[..., unit] = torch.where(pre > own["threshold"][unit], pre, torch.zeros_like(pre))
    skip = own.get("skip", torch.zeros(x.shape[-1], x.shape[-1], dtype=torch.float64))
    return m, own["decoder_bias"] + x @ skip.T


@pytest.mark.parametrize("kind", ["gpt2", "opt"])
def test_sums_are_those_of_the_formula(kind, models, loaded):
    dictionaries = {number: noisy(of_layer(models(kind)[1], number), number) for number in (0, 1)}
    found = loaded(kind, dictionaries)
    ids = some_ids(2, 2, 12)
    plain = observe(load_native(kind, models), layers_of(models, kind), ids, "xyo")
    states = observe(found.model, found.anatomy.layers, ids, "xmbuyo")
    for number, (own, native) in enumerate(zip(states, plain, strict=True)):
        m, beside = by_hand(dictionaries[number], native["x"])
        torch.testing.assert_close(own["x"], native["x"], rtol=EXACT, atol=EXACT)
        torch.testing.assert_close(own["m"].double(), m, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(own["b"].double(), beside.expand(own["b"].shape), rtol=1e-5, atol=1e-5)
        # The model computes what it computed, and what the dictionary leaves is a part.
        torch.testing.assert_close(own["y"], native["y"], rtol=0, atol=0)
        torch.testing.assert_close(own["o"], native["o"], rtol=0, atol=0)
        error = native["y"].double() - m @ dictionaries[number].decoder.double() - beside
        assert error.abs().max() > 0.01
        torch.testing.assert_close(own["u"].double(), error, rtol=1e-4, atol=1e-4)


def load_native(kind, models):
    return models(kind)[1].eval()


def layers_of(models, kind):
    from ffkv.base.settings import Model
    from ffkv.model.step import prove

    return prove(Model(checkpoint=str(models(kind)[0]))).anatomy.layers


def test_a_layer_as_its_own_dictionary_is_the_layer(models, loaded):
    model = models("opt")[1]
    found = loaded("opt", {number: of_layer(model, number) for number in (0, 1)})
    assert [place.unexplained <= 1e-10 for place in found.anatomy.dictionaries] == [True, True]
    native = layers_of(models, "opt")
    assert [layer.memories for layer in found.anatomy.layers] == [layer.memories for layer in native]
    ids = some_ids(4)
    theirs, own = observe(model, native, ids, "mby"), observe(found.model, found.anatomy.layers, ids, "mbuy")
    for one, other, before, after in zip(theirs, own, native, found.anatomy.layers, strict=True):
        for quantity in "mby":
            torch.testing.assert_close(one[quantity], other[quantity], rtol=EXACT, atol=EXACT)
        assert other["u"].abs().max() <= 1e-5
        assert torch.equal(values(model, before)[0], values(found.model, after)[0])
        assert torch.equal(keys(model, before), keys(found.model, after))
        for one, other in zip(factors(model, before, 16), factors(found.model, after, 16), strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


def test_a_layer_without_a_dictionary_stays_as_it_is(models, loaded):
    model = models("opt")[1]
    found = loaded("opt", {1: noisy(of_layer(model, 1))})
    native = layers_of(models, "opt")
    assert found.anatomy.layers[0] == native[0]
    assert found.anatomy.layers[1].second_matrices[0].module == "model.decoder.layers.1.fc2.decoder"
    states = observe(found.model, found.anatomy.layers, some_ids(4), "mu")
    assert ["u" in own for own in states] == [False, True]


def test_a_dictionary_of_zeros_leaves_everything(models):
    """Its units write nothing: the error is the output of the layer."""
    from ffkv.base.settings import Model
    from ffkv.model.discover.prove import prove_layers
    from ffkv.model.step import prove

    proven = prove(Model(checkpoint=str(models("opt")[0])))
    zeros = torch.zeros(8, 16)
    empty = Dictionary(zeros, zeros[:, 0], zeros, torch.zeros(16), threshold=zeros[:, 0])
    layer = proven.anatomy.layers[0]
    names = [layer.second_matrices[0].module, layer.second_matrices[0].first_matrices[0]]
    put(proven.model, DictionaryPlace(0, "", 0, layer.block, *names, "", names[:1], 1.0), empty)
    layers = prove_layers(proven.model, some_ids(1, 2, 12), some_ids(2, 2, 12)).layers
    (own, _) = observe(proven.model, layers, some_ids(3), "mbuy")
    assert torch.equal(own["u"], own["y"])
    assert own["y"].abs().max() > 0.1
    assert not own["m"].any() and not own["b"].any()


def test_coefficients_change_the_output_by_their_values(models, loaded):
    """m_i := c m_i changes y by (c - 1) m_i v_i: not by what the dictionary leaves, and not by what the layer computes."""
    found = loaded("opt", {0: noisy(of_layer(models("opt")[1], 0))})
    layers, ids = found.anatomy.layers, some_ids(6, 1)
    before = observe(found.model, layers, ids, "mbuyo")[0]
    unit = int(before["m"][0].sum(0).argmax())
    with scaled(found.model, layers, {(0, unit): -1.5}):
        after = observe(found.model, layers, ids, "mbuyo")[0]
    change = -2.5 * before["m"][..., unit, None] * values(found.model, layers[0])[0][unit]
    assert change.abs().max() > 0.1
    torch.testing.assert_close(after["y"] - before["y"], change, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(after["o"] - before["o"], change, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(after["u"], before["u"], rtol=1e-5, atol=1e-5)


def test_logits_are_those_of_the_model(models, loaded):
    found, ids = loaded("gpt2", {1: noisy(of_layer(models("gpt2")[1], 1))}), some_ids(7)
    made = found.model.transformer.h[1].mlp.c_proj
    made.encoder.forward = lambda x: pytest.fail("nobody reads the units, and they are computed")
    assert torch.equal(forward(found.model, ids).logits, forward(models("gpt2")[1], ids).logits)


@pytest.mark.parametrize("either_sign", [False, True])
def test_the_largest_are_kept(either_sign):
    pre = torch.tensor([[3.0, -5.0, 1.0, 2.0, -0.5], [-1.0, -2.0, 0.5, -3.0, -4.0]])
    expected = (
        [[3.0, -5, 0, 0, 0], [0, 0, 0, -3, -4]] if either_sign else [[3.0, 0, 0, 2, 0], [0, 0, 0.5, 0, 0]]
    )  # of one sign, a second one is 0
    assert activate(pre, None, 2, either_sign).tolist() == expected


def test_what_a_threshold_equals_is_off():
    assert activate(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 1.5, 4.0]), 0, False).tolist() == [0, 2, 0]


@pytest.mark.parametrize("width", [16, 15])
@pytest.mark.parametrize("kind", [torch.nn.LayerNorm, torch.nn.RMSNorm])
def test_gains_are_read_off_a_norm(kind, width):
    norm = kind(width)
    for parameter in norm.parameters():
        parameter.data = torch.linspace(-2, 3, width)
    gain, bias = gain_of(norm, width)
    torch.testing.assert_close(
        gain, norm.weight.detach(), rtol=1e-4, atol=1e-5
    )  # the norm adds 1e-5 to a variance of 1
    expected = getattr(norm, "bias", None)
    torch.testing.assert_close(bias, torch.zeros(width) if expected is None else expected.detach())


def test_another_file_is_refused(models, loaded, written, tmp_path):
    loaded("opt", {0: of_layer(models("opt")[1], 0)})
    written({0: noisy(of_layer(models("opt")[1], 0))})
    with refused("The weights of .* or .*dictionary have changed"):
        load(tmp_path / "model", "cpu")


@pytest.mark.parametrize("kind", ["gpt2", "gemma2"])
def test_memories_are_cut_to_the_largest(kind, models, tmp_path):
    """By brute force: at each token the k largest |m_i| ‖v_i‖ stay; the rest is the error. Gemma's layers are gated, with a norm after."""
    from ffkv.base.settings import Dictionary as Settings
    from ffkv.base.settings import Model
    from ffkv.model.step import prove

    checkpoint = Model(checkpoint=str(models(kind)[0]))
    native = prove(checkpoint)
    cut = prove(checkpoint, dictionary=Settings(largest=3, layers=[1]))
    ids = some_ids(5, 2, 12)
    before = observe(native.model, native.anatomy.layers, ids, "mbsyo")[1]
    after = observe(cut.model, cut.anatomy.layers, ids, "mbsuyo")[1]
    layer = cut.anatomy.layers[1]
    assert layer.is_dictionary and not cut.anatomy.layers[0].is_dictionary
    assert layer.second_matrices[0].kind == native.anatomy.layers[1].second_matrices[0].kind
    v = values(cut.model, layer)[0]
    torch.testing.assert_close(v, values(native.model, native.anatomy.layers[1])[0])
    weight = values(native.model, replace(native.anatomy.layers[1], output_kind=""))[
        0
    ]  # what the second matrix itself writes
    expected = torch.zeros_like(before["m"])
    for place in torch.cartesian_prod(torch.arange(2), torch.arange(12)).tolist():
        own = before["m"][tuple(place)]
        kept = sorted(range(len(own)), key=lambda unit: -float(own[unit].abs() * weight[unit].norm()))[:3]
        expected[(*place, kept)] = own[kept]
    torch.testing.assert_close(after["m"], expected, rtol=0, atol=0)
    torch.testing.assert_close(after["u"], (before["m"] - expected) @ weight, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(after["y"], before["y"], rtol=0, atol=0)
    place = cut.anatomy.dictionaries[0]
    assert place.largest == 3 and place.unexplained > 0.01
    with refused("dictionary.layers: .* has no layer 7 to read so"):
        prove(checkpoint, dictionary=Settings(largest=3, layers=[7]))


@pytest.mark.parametrize("largest", [3, 10**6])
def test_a_layer_of_as_many_memories_as_dimensions_is_cut(largest, models):
    """There, the second matrix has the shape of a first one."""
    from ffkv.base.settings import Dictionary as Settings
    from ffkv.base.settings import Model
    from ffkv.model.step import prove

    cut = prove(Model(checkpoint=str(models("square")[0])), dictionary=Settings(largest=largest))
    for layer, place in zip(cut.anatomy.layers, cut.anatomy.dictionaries, strict=True):
        assert layer.memories == 16 and layer.second_matrices[0].first_matrices[0].endswith("fc1")
        assert (place.unexplained < 1e-10) == (largest > 16)


def test_experts_cannot_be_cut(checkpoints):
    from ffkv.base.settings import Dictionary as Settings
    from ffkv.base.settings import Model
    from ffkv.model.step import prove

    with refused(r"layer 0 \(4 experts, gated\) cannot be cut"):
        prove(Model(checkpoint=str(checkpoints("mixtral"))), dictionary=Settings(largest=3))


def test_the_fewest_memories_that_explain_a_share(models):
    from ffkv.base.settings import Dictionary as Settings
    from ffkv.base.settings import Model
    from ffkv.model.step import prove

    checkpoint = Model(checkpoint=str(models("opt")[0]))
    place = prove(checkpoint, dictionary=Settings(explains=0.8, layers=[1])).anatomy.dictionaries[0]
    assert place.unexplained <= 0.2
    less = prove(checkpoint, dictionary=Settings(largest=place.largest - 1, layers=[1])).anatomy.dictionaries[0]
    assert less.unexplained > 0.2
    assert 1 < place.largest < 24
