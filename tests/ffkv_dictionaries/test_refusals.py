"""What no dictionary of keys and values can be made of is refused by name: the file, the tensor or the setting, what was found, what to do."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from support import refused

from ffkv.base import doors
from ffkv.model.dictionaries import dictionaries
from ffkv_dictionaries.forms import Dictionary, form_of
from tests.ffkv_dictionaries import made
from tests.ffkv_dictionaries.made import UNITS, D

Make = Callable[[Path], Any]
HUGE = 2**40
SAELENS, GEMMA_2 = "sae_weights.safetensors", "layer_3_width_16_l0_small/params.safetensors"
NPZ, SET, SPARSE = "layer_3/width_16/average_l0_5/params.npz", "layer_3.safetensors", "layers.3.mlp/sae.safetensors"
LLAMA = "checkpoints/final.safetensors"


def read(folder: Path) -> list[Dictionary]:
    form = form_of(folder)
    return [form.load(place) for place in form.layers(folder).values()]


def sae(architecture: str = "standard", **said) -> Make:
    return lambda folder: made.saelens(folder, architecture, **said)


def old(**said) -> Make:
    return lambda folder: made.saelens_old(folder, **said)


def of(form: str, **said) -> Make:
    return lambda folder: getattr(made, form)(folder, **said)


SETTINGS = {
    "a unit over tokens": (
        sae("temporal"),
        r"cfg\.json: .*'temporal' is not read: its units depend on the tokens before",
    ),
    "one unit after the other": (sae("matching_pursuit"), "'matching_pursuit' is not read: it chooses"),
    "unknown architecture": (sae("crossed"), "'crossed' is not read: standard, topk"),
    "cross-layer": (
        sae("jumprelu_clt"),
        "'jumprelu_clt' is not read: it is of a cross-layer transcoder: a unit of it writes",
    ),
    "crosscoder": (sae("crosscoder"), "'crosscoder' is not read: its units read and write several layers"),
    "the embeddings": (old(hook_name="hook_embed", hook_layer=0), "reads hook_embed, the embeddings: no feed-forward"),
    "architecture of another type": (old(architecture=3), "architecture is 3, and must be a word"),
    "norm by token": (sae(normalize_activations="layer_norm"), "layer_norm.* its own spread"),
    "length by token": (sae(normalize_activations="constant_norm_rescale"), "constant_norm_rescale.* its own norm"),
    "norm outside the files": (
        sae(normalize_activations="expected_average_only_in"),
        "fold_activation_norm_scaling_factor",
    ),
    "old norm outside the files": (old(normalize_activations=True), "expected_average_only_in"),
    "whitened": (sae(normalize_activations="covariance_whitening"), "fold_activation_whitening"),
    "unknown norm": (sae(normalize_activations="squared"), "'squared', and nobody knows"),
    "norm of another type": (sae(normalize_activations=[1]), r"\[1\], and nobody knows"),
    "heads of attention": (sae(reshape_activations="hook_z"), "'hook_z': the outputs of heads of attention"),
    "old heads of attention": (old(hook_name="blocks.3.attn.hook_z"), r"blocks\.3\.attn\.hook_z .*heads of attention"),
    "unknown activation": (old(activation_fn_str="tanh-relu"), "the activation 'tanh-relu' is not read"),
    "two activations": (old(activation_fn_str="topk", architecture="gated"), "'topk' is not read in .* gated"),
    "topk without k": (
        old(activation_fn_str="topk"),
        r"cfg\.json: k is None, and must be a whole number of at least 1",
    ),
    "k of 0": (sae("topk", k=0), "k is 0, and must be a whole number of at least 1"),
    "k below 0": (sae("topk", k=-3), "k is -3, and must be"),
    "k of a half": (sae("topk", k=2.5), "k is 2.5, and must be"),
    "k true": (sae("topk", k=True), "k is True, and must be"),
    "k above the units": (sae("topk", k=UNITS + 1), "has 16 units, and its config says that the 17 largest"),
    "huge units": (
        sae(d_sae=HUGE),
        r"b_enc has the shape 16\. Expected is units \(1,099,511,627,776, says d_sae of cfg",
    ),
    "other dimensions": (
        sae(d_in=D + 1),
        r"b_dec has the shape 6\. Expected is dimensions \(7, says d_in of cfg\.json\)",
    ),
    "no number of units": (sae(d_sae="many"), "d_sae is 'many', and must be a whole number"),
    "another output": (sae("transcoder", d_out=9), "reads 6 dimensions and writes 9"),
    "a transcoder's shift": (
        sae("transcoder", apply_b_dec_to_input=True),
        "apply_b_dec_to_input is true, and a transcoder",
    ),
    "no shift to tell": (sae(apply_b_dec_to_input="yes"), "apply_b_dec_to_input is 'yes', and must be true or false"),
    "rescaled maybe": (
        sae("topk", rescale_acts_by_decoder_norm=1),
        "rescale_acts_by_decoder_norm is 1, and must be true",
    ),
    "groupmax": (of("sparsify", activation="groupmax"), "'groupmax' is not read: it takes the largest of each group"),
    "unknown in sparsify": (of("sparsify", activation="binary"), "'binary' is not read: only topk is"),
    "k above sparsify's units": (of("sparsify", k=99), "has 16 units, and its config says that the 99 largest"),
    "units of sparsify": (of("sparsify", num_latents=0), r"encoder\.bias has the shape 16\. Expected is units \(192"),
    "sparsify, several layers": (
        of("sparsify", n_targets=3),
        r"cfg\.json is of a cross-layer transcoder: a unit of it",
    ),
    "sparsify, the embeddings beside": (
        of("sparsify", embed_skip=True),
        "embed_skip is true: .* more than what it reads",
    ),
    "sparsify, the tokens before": (
        of("sparsify", gram_lookup=True),
        "gram_lookup is true: .* more than what it reads",
    ),
    "several layers": (of("circuit_tracer", model_kind="cross_layer_transcoder"), "config.yaml is of a cross-layer"),
    "another kind": (of("circuit_tracer", model_kind="steering"), "model_kind is 'steering', and only transcoder_set"),
    "an activation of a set": (of("circuit_tracer", activation="gelu"), "'gelu' is not read: relu, jump_relu and topk"),
    "a set's topk without k": (of("circuit_tracer", activation="topk"), "k is None, and must be"),
    "files of the hub": (
        of("circuit_tracer", transcoders=["hf://a/b/c.npz"]),
        "names 'hf://a/b/c.npz', which is no file in",
    ),
    "files outside": (
        of("circuit_tracer", transcoders=["../../x.npz"]),
        r"names '\.\./\.\./x\.npz', which is no file in",
    ),
    "no list of files": (of("circuit_tracer", transcoders="all"), "transcoders must be a list"),
    "a threshold not wanted": (
        of("circuit_tracer", jump=True, activation="relu"),
        "activation_function.threshold. What they",
    ),
    "another Gemma Scope": (of("gemma_2", architecture="topk"), "'topk' is not read, only jump_relu is"),
    "a skip that lacks": (of("gemma_2", affine_connection=True), "lacks the tensor affine_skip_connection"),
    "a skip not wanted": (of("gemma_2", skip=True, affine_connection=False), "does not have: affine_skip_connection"),
    "Llama Scope by token": (
        of("llama", norm_activation="token-wise"),
        "'token-wise': states are scaled each by its own norm",
    ),
    "Llama Scope of two keys": (of("llama", use_glu_encoder=True), "use_glu_encoder is true: a unit has two keys"),
    "OpenMOSS, several layers": (
        of("llama_later", sae_type="clt"),
        r"config\.json: sae_type is 'clt', and only sae is read\. It is of a cross-layer transcoder: a unit of it",
    ),
    "OpenMOSS, attention": (of("llama_later", sae_type="lorsa"), r"sae_type is 'lorsa', and only sae is read\.$"),
    "Llama Scope of many units": (
        of("llama", d_sae=HUGE),
        r"Expected is units \(1,099,511,627,776, says d_sae of hyper",
    ),
    "Llama Scope without a threshold": (
        of("llama", drop=("jump_relu_threshold",)),
        "jump_relu_threshold is None, and must be a number",
    ),
    "Llama Scope of a batch": (of("llama", act_fn="batchtopk"), "'batchtopk' is not read"),
    "Llama Scope without norms": (
        of("llama", dataset_average_activation_norm={}),
        "norm.in is None, and must be a number",
    ),
    "Llama Scope of norm 0": (
        of("llama", dataset_average_activation_norm={"in": 0.0}),
        "in is 0.0, and must be a number of at least 1e-06",
    ),
    "Llama Scope of other states": (
        of("llama", has_bias=False, d_model=HUGE),
        r"encoder\.weight has the shape 16 × 6\. Expected is units .* × dimensions \(1,099,511,627,776, says d_model of",
    ),
    "Llama Scope of endless states": (of("llama", d_model=10**400), "d_model is 1000.*, and must be a whole number"),
    "Llama Scope beyond": (of("llama", jump_relu_threshold=float("inf")), "jump_relu_threshold is inf, and must be"),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_config_that_cannot_be_read_as_keys_and_values(name, tmp_path):
    make, message = SETTINGS[name]
    make(tmp_path / "made")
    with refused(message) as told:
        read(tmp_path / "made")
    assert str(tmp_path / "made") in str(told.value)


def edited(path: Path, change: Callable[[dict], Any]) -> None:
    """Changes the tensors of a file."""
    tensors = dict(np.load(path)) if path.suffix == ".npz" else load_file(path)
    change(tensors)
    if path.suffix == ".npz":
        np.savez(path, **tensors)
    else:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)


FORMS: dict[str, tuple[Make, str, dict[str, str]]] = {  # and a matrix, the threshold and a bias of each
    "saelens": (sae("jumprelu"), SAELENS, {"matrix": "W_enc", "threshold": "threshold", "bias": "b_enc"}),
    "gemma": (of("gemma"), NPZ, {"matrix": "W_dec", "threshold": "threshold", "bias": "b_dec"}),
    "gemma 2": (of("gemma_2", skip=True), GEMMA_2, {"matrix": "w_enc", "threshold": "threshold", "bias": "b_enc"}),
    "set": (
        of("circuit_tracer", jump=True, activation="jump_relu"),
        SET,
        {"matrix": "W_enc", "threshold": "activation_function.threshold", "bias": "b_enc"},
    ),
    "sparsify": (of("sparsify"), SPARSE, {"matrix": "encoder.weight", "bias": "b_dec"}),
    "llama": (of("llama"), LLAMA, {"matrix": "decoder.weight", "bias": "encoder.bias"}),
    "llama later": (of("llama_later"), SAELENS, {"matrix": "encoder.weight", "bias": "decoder.bias"}),
}
TENSORS: dict[str, tuple[str, Callable[[Any], Any], str]] = {
    "transposed": ("matrix", lambda each: each.T, r"{name} has the shape .*It is transposed: (units|dimensions) × "),
    "three dimensions": (
        "matrix",
        lambda each: each[:, None],
        "{name} has the shape .*: it is of a cross-layer transcoder",
    ),
    "a vector": ("matrix", lambda each: each[0], r"{name} has the shape \d+\. Expected is"),
    "a row more": ("matrix", lambda each: np.concatenate([each, each[:1]]), "{name} has the shape .* Expected is"),
    "a unit less": ("bias", lambda each: each[:-1], r"has the shape .* Expected is"),
    "a number": ("bias", lambda each: each[0], r"has the shape no dimension\. Expected is (units|dimensions)"),
    "no numbers": ("bias", lambda each: each[:0], "has the shape"),
    "not a number": ("matrix", lambda each: each * np.nan, "{name} has numbers that are not finite"),
    "infinite": ("threshold", lambda each: each + np.inf, "{name} has numbers that are not finite"),
    "beyond float32": ("bias", lambda each: each.astype(np.float64) * 1e300, "{name} has numbers that are not finite"),
    "integers": (
        "matrix",
        lambda each: each.astype(np.int32),
        "{name} is of type (I32|int32). F64, F32, F16, BF16 are read",
    ),
    "complex": ("bias", lambda each: each.astype(np.complex64), "{name} is of type (C64|complex64)"),
    "no threshold": ("threshold", lambda each: None, "lacks the tensor {name}; it has "),
    "no matrix": ("matrix", lambda each: None, "lacks the tensor {name}; it has "),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_tensor_that_does_not_fit(form, tmp_path, subtests):
    make, path, names = FORMS[form]
    for number, (what, (kind, change, message)) in enumerate(TENSORS.items()):
        if kind not in names:
            continue
        with subtests.test(what=what):
            folder, name = tmp_path / str(number), names[kind]
            make(folder)
            numbers = dict(np.load(folder / path)) if path == NPZ else load_file(folder / path)
            changed = change(np.asarray(numbers[name]))

            def put(tensors, name=name, changed=changed):
                if changed is None:
                    del tensors[name]
                else:
                    tensors[name] = changed if path == NPZ else torch.tensor(changed)

            edited(folder / path, put)
            with refused(message.format(name=name.replace(".", r"\."))) as told:
                read(folder)
            assert path in str(told.value)


@pytest.mark.parametrize("form", FORMS)
def test_a_tensor_that_nobody_knows(form, tmp_path):
    make, path, _ = FORMS[form]
    make(tmp_path)
    more = np.ones(3, np.float32)
    edited(tmp_path / path, lambda tensors: tensors.update(in_norm=more if path == NPZ else torch.from_numpy(more)))
    with refused("does not have: in_norm. What they change is unknown"):
        read(tmp_path)


def test_a_growth_beyond_float32(tmp_path):
    made.saelens(tmp_path, "gated")
    edited(tmp_path / SAELENS, lambda tensors: tensors["r_mag"].fill_(100))
    with refused("encoder is not finite, after all that scales it"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("make", "gone", "message"),
    [
        (sae(), SAELENS, "There is no sae_weights.safetensors in"),
        (sae(), "cfg.json", "There is no cfg.json in"),
        (of("sparsify"), SPARSE, "There is no sae.safetensors in"),
        (of("sparsify"), "layers.3.mlp/cfg.json", "There is no cfg.json in"),
        (
            of("llama"),
            LLAMA,
            "There is no sae_weights.safetensors or checkpoints/pruned.safetensors or checkpoints/final",
        ),
        (of("circuit_tracer"), SET, "There is no layer_0.safetensors in"),
    ],
)
def test_a_file_that_is_missing(make, gone, message, tmp_path):
    make(tmp_path)
    (tmp_path / gone).unlink()
    with refused(message):
        read(tmp_path)


def test_cross_layer_transcoders_are_refused_whatever_their_files(tmp_path):
    made.circuit_tracer(tmp_path / "lazy", config=False)
    (tmp_path / "lazy/layer_3.safetensors").rename(tmp_path / "lazy/W_enc_0.safetensors")
    made.gemma_2(tmp_path / "gemma")
    (tmp_path / "gemma" / GEMMA_2).rename(tmp_path / "gemma/params_layer_0.safetensors")
    for folder, name in (("lazy", "W_enc_0"), ("gemma", "params_layer_0")):
        with refused(rf"{name}.safetensors is of a cross-layer transcoder: a unit of it writes into several layers"):
            form_of(tmp_path / folder).layers(tmp_path / folder)


def test_a_set_names_no_file_outside_its_folder(tmp_path):
    outside = made.circuit_tracer(tmp_path / "other").folder / "layer_3.safetensors"
    made.circuit_tracer(tmp_path / "set", transcoders=[str(outside)])
    with refused(f"names '{outside}', which is no file in"):
        read(tmp_path / "set")
    made.circuit_tracer(tmp_path / "set", transcoders=["../other/layer_3.safetensors"])
    with refused(r"names '\.\./other/layer_3\.safetensors', which is no file in"):
        read(tmp_path / "set")
    made.circuit_tracer(tmp_path / "set", transcoders=["link.safetensors"])
    (tmp_path / "set/link.safetensors").symlink_to(outside)
    assert len(read(tmp_path / "set")) == 1


def test_two_dictionaries_of_a_layer(tmp_path):
    made.sparsify(tmp_path)
    made.sparsify(tmp_path, "layers.3.self_attn")
    with refused(r"layers\.3\.mlp and .*layers\.3\.self_attn are both of layer 3\. Name the folder of one"):
        read(tmp_path)


def test_one_of_several_does_not_tell_its_layer(tmp_path):
    made.sparsify(tmp_path)
    made.sparsify(tmp_path, "embed_tokens")
    with refused("embed_tokens does not tell its layer, and others lie beside it"):
        read(tmp_path)


def test_two_forms_in_one_folder(tmp_path):
    """Which of them is meant is not known, in one folder or in folders beside each other."""
    made.saelens(tmp_path / "one")
    made.gemma(tmp_path / "one")
    made.sparsify(tmp_path / "beside")
    made.llama(tmp_path / "beside/L2")
    for name, forms in (("one", r"Gemma Scope.*SAELens"), ("beside", r"Llama Scope.*sparsify")):
        with refused(rf"{name} holds dictionaries of several forms: .*{forms}\)\. Name the folder of one"):
            form_of(tmp_path / name)


def test_one_file_of_a_dictionary(tmp_path):
    made.saelens(tmp_path)
    with refused(r"of no form that ffkv reads\. .* It is one file: name the folder that holds it and its config"):
        form_of(tmp_path / SAELENS)


def test_nothing_that_is_read(tmp_path):
    (tmp_path / "note.txt").touch()
    with refused(
        r"is of no form that ffkv reads\. It reads: config\.yaml and layer_<i>\.safetensors \(circuit-tracer\); .*SAELens"
    ):
        form_of(tmp_path)


def test_without_the_package_it_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(doors, "entries", lambda door: {})
    with refused(
        r"is in the package ffkv-dictionaries\. In a clone of ffkv: pip install \./packages/ffkv-dictionaries"
    ):
        dictionaries()


def test_a_path_that_is_not_there_is_refused(tmp_path):
    with refused(r"there is no .*nowhere"):
        form_of(tmp_path / "nowhere")
