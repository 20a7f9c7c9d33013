"""One dictionary in each form of files reads back to the coefficients and the outputs of that form's own formulas."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import tries

from ffkv.base.doors import load_all
from ffkv_dictionaries import door
from ffkv_dictionaries.forms import form_of
from tests.ffkv_dictionaries import made
from tests.ffkv_dictionaries.made import UNITS, D

HALF, BRAIN = torch.float16, torch.bfloat16
CASES = {
    "standard": lambda folder: made.saelens(folder),
    "standard, no shift": lambda folder: made.saelens(folder, apply_b_dec_to_input=False),
    "standard, float16": lambda folder: made.saelens(folder, dtype=HALF),
    "standard, bfloat16": lambda folder: made.saelens(folder, dtype=BRAIN),
    "standard, float64": lambda folder: made.saelens(folder, dtype=torch.float64),
    "gated": lambda folder: made.saelens(folder, "gated"),
    "gated, no shift": lambda folder: made.saelens(folder, "gated", apply_b_dec_to_input=False),
    "topk": lambda folder: made.saelens(folder, "topk"),
    "topk, rescaled": lambda folder: made.saelens(folder, "topk", rescale_acts_by_decoder_norm=True),
    "abstopk": lambda folder: made.saelens(folder, "abstopk"),
    "abstopk, rescaled": lambda folder: made.saelens(folder, "abstopk", rescale_acts_by_decoder_norm=True),
    "jumprelu, which rescales nothing": lambda folder: made.saelens(
        folder, "jumprelu", rescale_acts_by_decoder_norm=True
    ),
    "jumprelu": lambda folder: made.saelens(folder, "jumprelu"),
    "batchtopk": lambda folder: made.saelens(folder, "batchtopk", rescale_acts_by_decoder_norm=True),
    "batchtopk, as trained": lambda folder: made.saelens(folder, "batchtopk"),
    "batchtopk, not rescaled": lambda folder: made.saelens(folder, "batchtopk", rescale_acts_by_decoder_norm=False),
    "matryoshka": lambda folder: made.saelens(folder, "matryoshka_batchtopk", rescale_acts_by_decoder_norm=True),
    "transcoder": lambda folder: made.saelens(folder, "transcoder"),
    "skip transcoder": lambda folder: made.saelens(folder, "skip_transcoder"),
    "jumprelu transcoder": lambda folder: made.saelens(folder, "jumprelu_transcoder"),
    "jumprelu skip transcoder": lambda folder: made.saelens(folder, "jumprelu_skip_transcoder"),
    "old": lambda folder: made.saelens_old(folder),
    "old, topk": lambda folder: made.saelens_old(folder, topk=True, k=None),
    "oldest": lambda folder: made.saelens_old(folder, number="hook_point_layer", normalize_activations=False),
    "old, with nulls": lambda folder: made.saelens_old(
        folder,
        architecture=None,
        activation_fn_kwargs=None,
        normalize_activations=None,
        apply_b_dec_to_input=None,
        d_sae=None,
    ),
    "Gemma Scope": lambda folder: made.gemma(folder),
    "Gemma Scope, lower case": lambda folder: made.gemma(folder, lower=True),
    "Gemma Scope, float16": lambda folder: made.gemma(folder, dtype=HALF),
    "Gemma Scope 2": lambda folder: made.gemma_2(folder),
    "Gemma Scope 2, skip": lambda folder: made.gemma_2(folder, skip=True),
    "Gemma Scope 2, no config": lambda folder: made.gemma_2(folder, skip=True, config=False),
    "Gemma Scope 2, upper case": lambda folder: made.gemma_2(folder, skip=True, upper=True),
    "Llama Scope": lambda folder: made.llama(folder),
    "Llama Scope, short": lambda folder: made.llama(
        folder, shift=True, drop=("act_fn", "norm_activation", "apply_decoder_bias_to_pre_encoder", "top_k")
    ),
    "Llama Scope, short, of one hook": lambda folder: made.llama(
        folder, norms=(5.0, 5.0), drop=("hook_point_out", "act_fn"), dataset_average_activation_norm={"in": 5.0}
    ),
    "Llama Scope, norms by hooks": lambda folder: made.llama(
        folder, dataset_average_activation_norm={"blocks.3.ln2.hook_normalized": 5.0, "blocks.3.hook_mlp_out": 2.0}
    ),
    "Llama Scope, later": lambda folder: made.llama_later(folder),
    "Llama Scope, later, no unit norm": lambda folder: made.llama_later(folder, unit=False),
    "Llama Scope, later, other names": lambda folder: made.llama_later(folder, names="plain"),
    "Llama Scope, autoencoder": lambda folder: made.llama(folder, norms=(5.0, 5.0), shift=True),
    "Llama Scope, transcoder, shift": lambda folder: made.llama(folder, shift=True),
    "Llama Scope, no unit norm": lambda folder: made.llama(folder, unit=False),
    "Llama Scope, no bias": lambda folder: made.llama(folder, has_bias=False, shift=True),
    "Llama Scope, topk with a threshold": lambda folder: made.llama(folder, act_fn="topk"),
    "Llama Scope, topk": lambda folder: made.llama(folder, act_fn="topk", jump=0.0),
    "Llama Scope, relu": lambda folder: made.llama(folder, act_fn="relu"),
    "Llama Scope, no norms": lambda folder: made.llama(folder, norms=None),
    "circuit-tracer": lambda folder: made.circuit_tracer(folder),
    "circuit-tracer, threshold": lambda folder: made.circuit_tracer(folder, jump=True),
    "circuit-tracer, skip": lambda folder: made.circuit_tracer(folder, skip=True),
    "circuit-tracer, topk": lambda folder: made.circuit_tracer(folder, activation="topk", k=made.K),
    "circuit-tracer, k in a tensor": lambda folder: made.circuit_tracer(folder, k=made.K),
    "circuit-tracer, nulls": lambda folder: made.circuit_tracer(folder, activation=None, transcoders=None),
    "circuit-tracer, no config": lambda folder: made.circuit_tracer(folder, config=False),
    "sparsify transcoder": lambda folder: made.sparsify(folder),
    "sparsify transcoder, skip": lambda folder: made.sparsify(folder, skip=True),
    "sparsify autoencoder": lambda folder: made.sparsify(folder, transcode=False),
    "sparsify, signed": lambda folder: made.sparsify(folder, transcode=False, signed=True),
    "sparsify, GPT-2": lambda folder: made.sparsify(folder, "transformer.h.3.mlp"),
    "sparsify, a seed": lambda folder: made.sparsify(folder, "layers.3.mlp/seed0"),
}


def assert_same(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Up to a millionth of the largest: tensors are float32."""
    torch.testing.assert_close(found, expected, atol=1e-6 * expected.abs().max().item(), rtol=0)


@pytest.mark.parametrize("name", CASES)
def test_a_dictionary_reads_back_to_its_own_coefficients(name, tmp_path):
    case = CASES[name](tmp_path / "made")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    form = form_of(case.folder)
    (layer, place), *others = form.layers(case.folder).items()
    assert layer == case.layer and not others
    found = form.load(place)
    tensors = [found.encoder, found.encoder_bias, found.decoder, found.decoder_bias, found.threshold, found.skip]
    assert all(each is None or (each.dtype is torch.float32 and each.is_contiguous()) for each in tensors)
    assert found.encoder.shape == found.decoder.shape == (UNITS, D)
    assert (found.threshold is None) == (found.largest > 0)
    m, y = made.computed(found)
    assert_same(m, case.coefficients)
    assert_same(y, case.outputs)
    assert 0.05 < (m != 0).double().mean() < 0.8, "the activation chooses"
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_all_forms_stand_behind_the_door():
    forms, broken = load_all("dictionary_forms")
    assert not broken
    assert {*forms.values()} == {*door.READ, door.PICKLES}


def test_no_form_reads_what_another_wrote(tmp_path, subtests):
    for number, name in enumerate(CASES):
        with subtests.test(name=name):
            case = CASES[name](tmp_path / str(number))
            assert sum(form.reads(case.folder) for form in load_all("dictionary_forms")[0].values()) == 1


def test_a_folder_of_several_layers(tmp_path):
    for layer in (10, 2):
        made.sparsify(tmp_path / "sparse", f"layers.{layer}.mlp")
        made.circuit_tracer(tmp_path / "set", layer=layer)
        hook = {"hook_name": f"blocks.{layer}.hook_resid_post", "sae_lens_version": "6.0.0"}
        made.saelens(tmp_path / f"sae/{layer}", metadata=hook)
        made.llama(tmp_path / f"llama/L{layer}", hook_point_out=f"blocks.{layer}.hook_mlp_out")
    for name in ("sparse", "set", "sae", "llama"):
        form = form_of(tmp_path / name)
        places = form.layers(tmp_path / name)
        assert [*places] == [2, 10]
        assert all(form.load(place).encoder.shape == (UNITS, D) for place in places.values())


def test_a_single_file(tmp_path):
    made.circuit_tracer(tmp_path)
    made.gemma(tmp_path / "gemma")
    for path in (tmp_path / "layer_3.safetensors", tmp_path / "gemma/layer_3/width_16/average_l0_5/params.npz"):
        form = form_of(path)
        assert form.layers(path) == {3: path}
        assert form.load(path).encoder.shape == (UNITS, D)


def test_files_that_a_set_names(tmp_path):
    made.gemma(tmp_path)
    made.gemma_2(tmp_path)
    names = ["layer_3/width_16/average_l0_5/params.npz", "layer_3_width_16_l0_small/params.safetensors"]
    made.circuit_tracer(tmp_path / "set", layer=7, transcoders=names)
    for name in names:
        (tmp_path / "set" / name).parent.mkdir(parents=True)
        (tmp_path / name).rename(tmp_path / "set" / name)
    assert form_of(tmp_path / "set") == door.CIRCUIT_TRACER
    places = door.CIRCUIT_TRACER.layers(tmp_path / "set")
    assert places == {layer: tmp_path / "set" / name for layer, name in enumerate(names)}
    for place in places.values():
        torch.testing.assert_close(made.computed(door.CIRCUIT_TRACER.load(place))[0], made.gemma(tmp_path).coefficients)


def test_a_dictionary_that_does_not_tell_its_layer(tmp_path):
    case = made.saelens(tmp_path / "mine", metadata={"sae_lens_version": "6.0.0"})
    assert form_of(case.folder).layers(case.folder) == {None: case.folder}
    assert form_of(case.folder).load(case.folder).told == ""


def test_what_the_files_tell_of_the_place(tmp_path):
    wanted = {
        "skip transcoder": "reads blocks.3.hook_mlp_in, writes blocks.3.hook_mlp_out",
        "standard": "reads and writes blocks.3.hook_resid_post",
        "Gemma Scope": "",
        "Gemma Scope 2": "reads model.layers.3.a.output, writes model.layers.3.b.output",
        "Llama Scope": "reads blocks.3.ln2.hook_normalized, writes blocks.3.hook_mlp_out",
        "circuit-tracer": "reads mlp.hook_in, writes hook_mlp_out",
        "sparsify transcoder": "reads the input of the module layers.3.mlp, writes the output of the module layers.3.mlp",
        "sparsify autoencoder": "reads and writes the output of the module layers.3.mlp",
    }
    for number, name in enumerate(wanted):
        folder = CASES[name](tmp_path / str(number)).folder
        form = form_of(folder)
        assert form.load(*form.layers(folder).values()).told == wanted[name]


@pytest.mark.parametrize("name", ["scaling_factor", "finetuning_scaling_factor"])
def test_a_scaling_of_versions_before_6_is_the_decoders(name, tmp_path):
    case = made.saelens_old(tmp_path)
    factors = torch.rand(UNITS) + 0.5
    t = made.tensors() | {name: factors}
    made.write(tmp_path, "", {}, "sae_weights.safetensors", t)
    m, y = made.computed(door.SAELENS.load(tmp_path))
    assert_same(m, case.coefficients)
    expected = (case.coefficients * factors) @ t["W_dec"].double() + t["b_dec"].double()
    assert_same(y, expected)


def test_a_checkpoint_of_saelens_has_the_logarithm_of_the_threshold(tmp_path):
    made.saelens(tmp_path, "jumprelu")
    t = made.tensors(jump=True)
    t["threshold"] = t["threshold"].abs()
    m, y = made.given(t, made.jumps(t["threshold"].double()), shift=True)
    t["log_threshold"] = t.pop("threshold").log()
    made.write(tmp_path, "", {}, "sae_weights.safetensors", t)
    found = made.computed(door.SAELENS.load(tmp_path))
    assert_same(found[0], m)
    assert_same(found[1], y)


@pytest.mark.parametrize("shape", [(), (1,)])
def test_a_single_threshold_is_that_of_each_unit(shape, tmp_path):
    t = made.tensors() | {"threshold": torch.full(shape, 0.4)}
    m, _ = made.given(t, made.jumps(0.4))
    made.write(tmp_path / "layer_3", "", {}, "params.npz", t)
    t["activation_function.threshold"] = t.pop("threshold")
    made.write(tmp_path, "", {}, "layer_3.safetensors", t | {"W_enc": t["W_enc"].T})
    for form, path in ((door.GEMMA_SCOPE, "layer_3/params.npz"), (door.CIRCUIT_TRACER, "layer_3.safetensors")):
        found = form.load(tmp_path / path)
        assert found.threshold.shape == (UNITS,)
        assert_same(made.computed(found)[0], m)


def test_at_the_threshold_a_unit_is_not_active(tmp_path):
    t = made.tensors(jump=True) | {"W_enc": torch.zeros(D, UNITS)}
    case = made.saelens(tmp_path, "jumprelu", apply_b_dec_to_input=False)
    made.write(case.folder, "", {}, "sae_weights.safetensors", t | {"threshold": t["b_enc"].abs()})
    assert not made.computed(door.SAELENS.load(case.folder))[0].any()


@settings(max_examples=tries(60), deadline=None)
@given(seed=st.integers(0, 2**20), sharp=st.floats(-3, 3), shift=st.booleans())
def test_any_gated_encoder_is_one_with_thresholds(seed, sharp, shift, tmp_path_factory):
    folder = tmp_path_factory.mktemp("gated")
    rng = np.random.default_rng(seed)
    t = {
        name: torch.tensor(rng.normal(size=tensor.shape), dtype=torch.float32)
        for name, tensor in made.tensors(True).items()
    }
    t["r_mag"] = t["r_mag"] * sharp
    made.saelens(folder, "gated", apply_b_dec_to_input=shift)
    made.write(folder, "", {}, "sae_weights.safetensors", t)
    m, _ = made.computed(door.SAELENS.load(folder))
    t = {name: tensor.double() for name, tensor in t.items()}
    x = made.STATES - t["b_dec"] * shift
    gate, size = x @ t["W_enc"] + t["b_gate"], x @ (t["W_enc"] * t["r_mag"].exp()) + t["b_mag"]
    expected = size.relu() * (gate > 0)
    sure = gate.abs() > 1e-4  # elsewhere rounding may decide
    assert sure.double().mean() > 0.99
    scale = 1 + t["r_mag"].exp().max()
    torch.testing.assert_close(m[sure], expected[sure], atol=2e-6 * scale, rtol=1e-6)
