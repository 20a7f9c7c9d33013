"""Sets of transcoders of circuit-tracer, and folders of sparsify.

circuit-tracer: `config.yaml` and `layer_<i>.safetensors`, with W_enc [unit, d]. m = relu(x W_encᵀ + b_enc), or what is above
`activation_function.threshold`, or of a config with `activation: topk` the k largest; ŷ = m W_dec + b_dec + W_skip x. A config may name
the files instead, also those of Gemma Scope.

sparsify: `<module>/cfg.json` and `<module>/sae.safetensors`. m are the k largest of relu(encoder x + bias), or with `signed` (of older
versions) those of the largest size, with their sign; an autoencoder takes b_dec from x first, a transcoder does not.
"""

import re
from pathlib import Path
from typing import Any

from ffkv.base.errors import UserError
from ffkv.base.lookup import find, is_dir, is_file
from ffkv_dictionaries import scopes
from ffkv_dictionaries.files import (
    SET_CONFIG,
    SEVERAL_LAYERS,
    by_layer,
    file_in,
    find_below,
    layer_in,
    read_config,
    told_by,
    value_of,
)
from ffkv_dictionaries.folding import fold
from ffkv_dictionaries.forms import Dictionary
from ffkv_dictionaries.tensors import read, stored_in

LAYER_FILE = re.compile(r"layer_(\d{1,6})\.safetensors")
CROSS_LAYER = ("W_enc_*.safetensors", "W_dec_*.safetensors")
ROLES = {"encoder": "W_enc nd", "encoder_bias": "b_enc n", "decoder": "W_dec nd", "decoder_bias": "b_dec d"}
JUMP = "activation_function.threshold"
SPARSE_CONFIG, SPARSE_WEIGHTS = "cfg.json", "sae.safetensors"


def is_set(path: Path) -> bool:
    """Whether a path is a set of circuit-tracer, or one file of it."""
    if not is_dir(path):
        return LAYER_FILE.fullmatch(path.name) is not None
    if _layer_files(path) or _cross_layer_files(path):
        return True
    try:
        return "model_kind" in read_config(path / SET_CONFIG, optional=True)
    except UserError:  # of others, who may have aliases
        return False


def _layer_files(folder: Path) -> dict[int | None, Path]:
    found = ((LAYER_FILE.fullmatch(file.name), file) for file in find(folder, "layer_*.safetensors"))
    return {int(match[1]): file for match, file in found if match}


def _cross_layer_files(folder: Path) -> list[Path]:
    return [file for pattern in CROSS_LAYER for file in find(folder, pattern)]


def set_layers(path: Path) -> dict[int | None, Path]:
    """Returns the file of each layer's transcoder.

    Raises UserError if they are of a cross-layer transcoder, or the config names a file that is not in the folder.
    """
    if not is_dir(path):
        return {layer_in(path.name): path}
    config, said = path / SET_CONFIG, read_config(path / SET_CONFIG, optional=True)
    kind = value_of(config, said, "model_kind", str, "transcoder_set")
    if (crossing := _cross_layer_files(path)) or kind == "cross_layer_transcoder":
        raise UserError(f"{crossing[0] if crossing else config} {SEVERAL_LAYERS}")
    if kind != "transcoder_set":
        raise UserError(f"{config}: model_kind is {kind[:80]!r}, and only transcoder_set is read.")
    named = said.get("transcoders")
    if named is None:
        if not (found := _layer_files(path)):
            raise UserError(
                f"There is no layer_0.safetensors in {path}, which {config.name} is about. Fetch the whole set."
            )
        return dict(sorted(found.items(), key=lambda each: each[0] or 0))
    if not isinstance(named, list) or not all(isinstance(each, str) for each in named):
        raise UserError(f"{config}: transcoders must be a list of files, one for each layer from 0 on.")
    for each in named:
        leads_out = Path(each).is_absolute() or ".." in Path(each).parts  # a link may, as in a cache of the hub
        if leads_out or not is_file(path / each):
            raise UserError(
                f"{config} names {each[:200]!r}, which is no file in {path}. ffkv fetches none: put the files into this folder, and write"
                " their names there."
            )
    return {layer: path / each for layer, each in enumerate(named)}


def load_set(path: Path) -> Dictionary:
    """Reads the transcoder of a layer from its file; the config beside it tells its activation.

    Raises UserError if a file cannot be read, or the activation is another.
    """
    if path.suffix == ".npz":
        return scopes.load_gemma(path)
    stored = stored_in(path)
    if "w_enc" in stored:
        return scopes.load_gemma_2(path)
    config, said = path.parent / SET_CONFIG, read_config(path.parent / SET_CONFIG, optional=True)
    usual = "topk" if "k" in stored else "jump_relu" if JUMP in stored else "relu"
    activation = value_of(config, said, "activation", str, usual).lower()
    if activation not in ("relu", "topk", "jump_relu", "jumprelu"):
        raise UserError(f"{config}: the activation {activation[:80]!r} is not read: relu, jump_relu and topk are.")
    roles = ROLES | ({"skip": "W_skip dd"} if "W_skip" in stored else {})
    roles |= {"threshold": f"{JUMP} n"} if "jump" in activation else {}
    roles |= {"k": "k"} if activation == "topk" and "k" in stored else {}
    tensors: dict[str, Any] = read(path, roles)
    saved = int(tensors.pop("k")) if "k" in roles else None
    largest = value_of(config, said, "k", int, saved, lowest=1) if activation == "topk" else 0
    told = told_by(said.get("feature_input_hook"), said.get("feature_output_hook"))
    return fold(path, Dictionary(**tensors, largest=largest, told=told))


def is_sparsify(path: Path) -> bool:
    """Whether a folder is of sparsify, or holds such folders."""
    return bool(_sparse_folders(path))


def _sparse_folders(path: Path) -> list[Path]:
    """Folders with the tensors, or with a config alone that tells the units as sparsify does."""
    found = dict.fromkeys(file.parent for file in find_below(path, SPARSE_WEIGHTS, SPARSE_CONFIG))
    return [each for each in found if is_file(each / SPARSE_WEIGHTS) or _has_latents(each)]


def _has_latents(folder: Path) -> bool:
    try:
        said = read_config(folder / SPARSE_CONFIG)
    except UserError:  # the reader of SAELens says what is wrong
        return False
    return "d_sae" not in said and not {"num_latents", "expansion_factor"}.isdisjoint(said)


def sparse_layers(path: Path) -> dict[int | None, Path]:
    """Returns the folder of each layer's dictionary; its name is that of the module. Raises: see `by_layer`."""
    return by_layer(_sparse_folders(path), lambda folder: layer_in(_module_of(folder)))


def _module_of(folder: Path) -> str:
    """The name of a dictionary's folder, or of the one around it if it was trained with several seeds: "layers.5.mlp/seed0"."""
    folder = folder.absolute()
    return folder.parent.name if re.fullmatch(r"seed_?\d+", folder.name) else folder.name


def load_sparse(folder: Path) -> Dictionary:
    """Reads a dictionary of sparsify from its folder. Raises UserError if a file cannot be read, or the activation is not TopK."""
    config, weights = file_in(folder, SPARSE_CONFIG), file_in(folder, SPARSE_WEIGHTS)
    said = read_config(config)
    activation = value_of(config, said, "activation", str, "topk")
    if activation != "topk":
        why = "it takes the largest of each group of units" if activation == "groupmax" else "only topk is"
        raise UserError(f"{config}: the activation {activation[:80]!r} is not read: {why}.")
    transcodes, skips, signed = (
        value_of(config, said, key, bool, False) for key in ("transcode", "skip_connection", "signed")
    )
    if value_of(config, said, "n_targets", int, 0) > 1:
        raise UserError(f"{config} {SEVERAL_LAYERS}")
    for key in ("embed_skip", "gram_lookup"):
        if value_of(config, said, key, bool, False):
            raise UserError(f"{config}: {key} is true: what it makes depends on more than what it reads.")
    d = value_of(config, said, "d_in", int, lowest=1)
    times = value_of(config, said, "expansion_factor", int, 32, lowest=1)
    units = value_of(config, said, "num_latents", int, 0, lowest=0) or d * times
    known = {"d": (d, f"d_in of {SPARSE_CONFIG}"), "n": (units, f"num_latents or expansion_factor of {SPARSE_CONFIG}")}
    roles = ROLES | {"encoder": "encoder.weight nd", "encoder_bias": "encoder.bias n"}
    tensors: dict[str, Any] = read(weights, roles | ({"skip": "W_skip dd"} if skips else {}), known)
    largest = value_of(config, said, "k", int, 32, lowest=1)
    module = f"of the module {_module_of(folder)}"
    told = told_by(f"the {'input' if transcodes else 'output'} {module}", f"the output {module}")
    made = Dictionary(**tensors, largest=largest, either_sign=signed, told=told)
    return fold(weights, made, None if transcodes else made.decoder_bias)
