"""What no dictionary of keys and values can be made of is refused by name: the file, the tensor or the setting, what was found, what to do."""

import io
import json
import struct
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from support import refused, tries

from ffkv.base import doors
from ffkv.base.errors import UserError
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
    "Llama Scope of a batch": (of("llama", act_fn="batchtopk"), "'batchtopk' is not read"),
    "Llama Scope without norms": (of("llama", dataset_average_activation_norm={}), "in is None, and must be a number"),
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


def header(path: Path, change: Callable[[dict], Any], length: int | None = None) -> None:
    """Changes the header of a file of safetensors alone."""
    content = path.read_bytes()
    end = 8 + struct.unpack("<Q", content[:8])[0]
    said = json.loads(content[8:end])
    change(said)
    text = json.dumps(said).encode()
    path.write_bytes(struct.pack("<Q", length or len(text)) + text + content[end:])


HEADERS = {
    "units": (lambda said: said["W_enc"].update(shape=[D, HUGE]), r"W_enc claims 6 × 1,099,511,627,776 numbers of F32"),
    "end": (
        lambda said: said["W_enc"].update(shape=[D, HUGE], data_offsets=[0, 24 * HUGE]),
        r"bytes 0 to 26,388,279,066,624",
    ),
    "overlap": (
        lambda said: said["b_dec"].update(data_offsets=said["b_enc"]["data_offsets"]),
        "b_dec claims 6 numbers",
    ),
    "below 0": (lambda said: said["b_dec"].update(data_offsets=[-24, 0]), "'b_dec' has no shape and place"),
    "no list": (lambda said: said["b_dec"].update(shape="6"), "'b_dec' has no shape and place"),
    "nothing": (lambda said: said["b_dec"].clear(), "damaged or of another form"),
    "no tensor": (lambda said: said.update(b_dec=3), "damaged or of another form"),
    "type": (lambda said: said["b_dec"].update(dtype="F33"), "b_dec is of type F33|damaged"),
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_that_claims_what_the_file_does_not_hold(name, tmp_path):
    made.saelens(tmp_path)
    change, message = HEADERS[name]
    header(tmp_path / SAELENS, change)
    with refused(message):
        read(tmp_path)


@pytest.mark.parametrize("length", [2**60, 10**7, 1])
def test_a_header_of_another_length(length, tmp_path):
    made.saelens(tmp_path)
    header(tmp_path / SAELENS, lambda said: None, length)
    with refused("cannot be read, it is damaged"):
        read(tmp_path)


def test_a_file_with_more_numbers_than_memory(tmp_path):
    """A file with holes is as large as it says, and takes no disk: no memory is taken for it either."""
    units = 2**36
    made.saelens(tmp_path, d_sae=units)
    shapes, said, end = {"b_dec": [D], "b_enc": [units], "W_enc": [D, units], "W_dec": [units, D]}, {}, 0
    for name, shape in shapes.items():
        start, end = end, end + 4 * int(np.prod(shape))
        said[name] = {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(said).encode()
    with (tmp_path / SAELENS).open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        try:
            file.truncate(8 + len(text) + end)
        except OSError:
            pytest.skip("the disk takes no file of this size")
    with refused(r"sae_weights\.safetensors holds 3,328\.0 GiB of float32, and .* GiB of memory are free"):
        read(tmp_path)


def npz(path: Path, **members: bytes) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)


def npy(shape: tuple, kind: str = "<f4", numbers: bytes = b"", version: int = 1) -> bytes:
    text = f"{{'descr': {kind!r}, 'fortran_order': False, 'shape': {shape!r}}}".encode() + b"\n"
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H", len(text)) + text + numbers


MEMBERS = {
    "claims": (
        {"W_enc": npy((D, HUGE), numbers=bytes(96))},
        "W_enc.npy claims 6 × 1,099,511,627,776 numbers of float32",
    ),
    "pickle": ({"W_enc": npy((1,), "|O", numbers=b"cos\nsystem\n(S'touch ran'\ntR.")}, "lacks|type object"),
    "version": ({"W_enc": npy((1,), version=9)}, r"version \(9, 0\)"),
    "no numpy": ({"W_enc": b"abc"}, "damaged or of another form"),
    "half": ({"W_enc": npy((1,)).replace(b"(1,)", b"((( ")}, "damaged or of another form"),
    "code": ({"W_enc": npy((1,)).replace(b"(1,)", b"exit")}, "damaged or of another form"),
}


@pytest.mark.parametrize("name", MEMBERS)
def test_an_npz_that_claims_what_it_does_not_hold(name, tmp_path):
    made.gemma(tmp_path)
    members, message = MEMBERS[name]
    npz(tmp_path / NPZ, **members)
    with refused(message):
        read(tmp_path)


def test_an_npz_of_objects_is_named_by_its_tensor(tmp_path):
    made.gemma(tmp_path)
    objects = dict(np.load(tmp_path / NPZ)) | {"b_dec": np.array([{}] * D)}
    np.savez(tmp_path / NPZ, **objects)
    with refused("b_dec is of type object"):
        read(tmp_path)


def test_a_zip_whose_member_claims_to_grow(tmp_path):
    """The sizes in the list of a zip are its own word: one that no packing reaches is refused before numbers are read."""
    made.gemma(tmp_path)
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("W_enc.npy", npy((D, UNITS), numbers=bytes(4 * D * UNITS)))
    changed = bytearray(content.getvalue())
    entry = changed.index(b"PK\x01\x02")
    changed[entry + 24 : entry + 28] = struct.pack("<I", 2**32 - 2)  # the size when unpacked
    (tmp_path / NPZ).write_bytes(changed)
    with refused("W_enc.npy claims 4,294,967,294 bytes, packed in"):
        read(tmp_path)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
def test_a_file_that_was_cut_off(form, share, tmp_path):
    make, path, _ = FORMS[form]
    make(tmp_path)
    content = (tmp_path / path).read_bytes()
    (tmp_path / path).write_bytes(content[: int(share * len(content))])
    with refused(f"{path.rpartition('/')[2]} cannot be read, it is damaged"):
        read(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[1]", "3", '{"k": 1, "k": 2}', "\x00", "[" * 100_000, '{"a": 1e9999'])
@pytest.mark.parametrize(
    ("make", "config"), [(sae(), "cfg.json"), (of("llama"), "hyperparams.json"), (of("circuit_tracer"), "config.yaml")]
)
def test_a_config_that_is_none(make, config, content, tmp_path):
    make(tmp_path)
    (tmp_path / config).write_text(content)
    with refused(f"{config}( cannot be read| holds no mapping)"):
        read(tmp_path)


@settings(max_examples=tries(400), deadline=None)
@given(data=st.data())
def test_a_file_with_any_bytes_changed_is_read_or_told(data, tmp_path_factory):
    """Damage never ends in an error from deep inside, or in numbers that are not finite."""
    make, *_ = FORMS[data.draw(st.sampled_from(sorted(FORMS)))]
    folder = tmp_path_factory.mktemp("made")
    make(folder)
    file = data.draw(st.sampled_from(sorted(each for each in folder.rglob("*") if each.is_file())))
    content = bytearray(file.read_bytes())
    early = data.draw(st.booleans())  # where headers are
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, min(len(content), 200 if early else 10**6) - 1))
        content[place] = data.draw(st.integers(0, 255))
    file.write_bytes(content)
    with warnings.catch_warnings(action="ignore"):
        try:
            found = read(folder)
        except UserError:
            return
    assert all(torch.isfinite(each.encoder).all() and each.encoder.shape[1] == D for each in found)


def test_yaml_that_grows(tmp_path):
    made.circuit_tracer(tmp_path)
    (tmp_path / "config.yaml").write_text("a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n")
    with refused("config.yaml cannot be read: it has aliases"):
        read(tmp_path)


def test_yaml_that_names_code(tmp_path):
    made.circuit_tracer(tmp_path)
    (tmp_path / "config.yaml").write_text(f"model_kind: !!python/object/apply:os.mkdir ['{tmp_path}/ran']\n")
    with refused("config.yaml cannot be read: could not determine a constructor"):
        read(tmp_path)
    assert not (tmp_path / "ran").exists()


class Touches:
    """Its pickle makes a folder when it is opened."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return Path.mkdir, (self.path,)


@pytest.mark.parametrize("name", ["ae.pt", "sae.pth", "pytorch_model.bin", "trainer_0/ae.ckpt", "checkpoints/final.pt"])
def test_a_pickle_is_named_and_not_opened(name, tmp_path):
    path = tmp_path / "made" / name
    path.parent.mkdir(parents=True)
    torch.save(Touches(tmp_path / "ran"), path)
    for place in (tmp_path / "made" if path.parent.name != "trainer_0" else path.parent, path):
        with refused(f"{name.rpartition('/')[2]} is a pickle, which can run code, and ffkv opens none. .* safetensors"):
            read(place)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("form", FORMS)
def test_a_pickle_in_the_place_of_tensors(form, tmp_path):
    make, path, _ = FORMS[form]
    make(tmp_path)
    pickle = (tmp_path / path).with_suffix(".pt")
    (tmp_path / path).unlink()
    torch.save(Touches(tmp_path / "ran"), pickle)
    asked = pickle.parent if path in (NPZ, GEMMA_2) else tmp_path
    with refused("|".join([f"{pickle.name} is a pickle, which can run code", "There is no layer_0.safetensors"])):
        read(asked)
    assert not (tmp_path / "ran").exists()


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
