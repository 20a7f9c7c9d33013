"""Dictionaries of Gemma Scope, Gemma Scope 2 and Llama Scope. Each of the three has files of its own.

Gemma Scope, `params.npz`, and Gemma Scope 2, `params.safetensors`: m = relu(h) where h = x W_enc + b_enc is above the threshold, else 0;
ŷ = m W_dec + b_dec, and + x A with the `affine_skip_connection` A [from, to] of Gemma Scope 2.

Llama Scope, `hyperparams.json` and `checkpoints/final.safetensors`, as OpenMOSS's code of its time reads them: states had the mean norm √d in
training. With f = √d / (mean norm of what it reads) and g = √d / (that of what it writes), it divides the encoder's bias by f and the
decoder's by g, multiplies the decoder by f / g, and then gives the values the norm 1 (`sparsity_include_decoder_norm`). The one
threshold is that of the products. So its m are those of the states as they are, √d / norm times smaller than those of SAELens. Later
versions save `config.json` and `sae_weights.safetensors`, with the norms, and the logarithms of thresholds that were trained on scaled states.
"""

import math
from pathlib import Path
from typing import Any

import torch

from ffkv.base.errors import UserError
from ffkv.base.lookup import is_dir, is_file
from ffkv_dictionaries.files import (
    SEVERAL_LAYERS,
    by_layer,
    file_in,
    find_below,
    layer_at,
    layer_in,
    names_files,
    read_config,
    sizes_said,
    told_by,
    value_of,
)
from ffkv_dictionaries.folding import fold, of_jumprelu
from ffkv_dictionaries.forms import Dictionary
from ffkv_dictionaries.tensors import read, stored_in

NPZ, PARAMETERS, GEMMA_CONFIG = "params.npz", "params.safetensors", "config.json"
CROSS_LAYER = "params_layer_*.safetensors"
LLAMA_CONFIG = "hyperparams.json"
LLAMA_KEYS = {"hook_point_in", "hook_points_in", "sae_type"}  # one of them is in each config
LLAMA = {"encoder": "encoder.weight nd", "encoder_bias": "encoder.bias n", "decoder": "decoder.weight dn"}
LLAMA |= {"decoder_bias": "decoder.bias d"}
LLAMA_LATER = {"encoder": "W_E dn", "encoder_bias": "b_E n", "decoder": "W_D nd", "decoder_bias": "b_D d"}
LLAMA_JUMPS = "log_jumprelu_threshold", "activation_function.log_jumprelu_threshold"
LLAMA_NORMS = "dataset_average_activation_norm"  # of the config, or tensors with the name of a hook behind it
LLAMA_WEIGHTS = ("sae_weights.safetensors", "checkpoints/pruned.safetensors", "checkpoints/final.safetensors")
GEMMA = {"encoder_bias": "b_enc n", "decoder_bias": "b_dec d", "threshold": "threshold n"}
UPPER, LOWER = ({"encoder": f"{w}_enc dn", "decoder": f"{w}_dec nd"} | GEMMA for w in "Ww")


def is_gemma_scope(path: Path) -> bool:
    """Whether a path is a `params.npz`, or a folder with such files."""
    return path.name == NPZ or (bool(find_below(path, NPZ)) and not names_files(path))


def gemma_layers(path: Path) -> dict[int | None, Path]:
    """Returns the file of each layer's dictionary; its folders tell the layer. Raises: see `by_layer`."""
    return by_layer(find_below(path, NPZ) if is_dir(path) else [path], lambda file: layer_in(*_folders_of(file)))


def _folders_of(file: Path) -> tuple[str, ...]:
    """The names of the folders that such a release has around a file, the nearest first."""
    return file.absolute().parts[-2:-5:-1]


def load_gemma(path: Path) -> Dictionary:
    """Reads a `params.npz`. Raises UserError if it cannot be read, see `ffkv_dictionaries.tensors.read`."""
    tensors: dict[str, Any] = read(path, LOWER if "w_enc" in stored_in(path) else UPPER)
    return fold(path, Dictionary(**tensors | {"threshold": of_jumprelu(tensors["threshold"])}))


def is_gemma_scope_2(path: Path) -> bool:
    """Whether a folder holds dictionaries of Gemma Scope 2."""
    return bool(find_below(path, PARAMETERS, CROSS_LAYER)) and not names_files(path)


def gemma_2_layers(path: Path) -> dict[int | None, Path]:
    """Returns the folder of each layer's dictionary. Raises UserError for a cross-layer transcoder, and as `by_layer`."""
    if found := find_below(path, CROSS_LAYER):
        raise UserError(f"{found[0]} {SEVERAL_LAYERS}")

    def layer_of(folder: Path) -> int | None:
        said = read_config(folder / GEMMA_CONFIG, optional=True)  # some releases have none
        hooks = (said.get(f"hf_hook_point_{side}") for side in ("out", "in"))
        return layer_in(*hooks, *_folders_of(folder / PARAMETERS))

    return by_layer((file.parent for file in find_below(path, PARAMETERS)), layer_of)


def load_gemma_2(path: Path) -> Dictionary:
    """Reads a dictionary of Gemma Scope 2 from its folder, or from its file of tensors.

    Raises UserError if a file cannot be read, or the config tells another architecture, or a skip that the tensors lack.
    """
    weights = file_in(path, PARAMETERS) if is_dir(path) else path
    config = weights.with_name(GEMMA_CONFIG)
    said = read_config(config, optional=True)
    if (architecture := value_of(config, said, "architecture", str, "jump_relu")) not in ("jump_relu", "jumprelu"):
        raise UserError(f"{config}: the architecture {architecture[:80]!r} is not read, only jump_relu is.")
    stored = stored_in(weights)
    skips = value_of(config, said, "affine_connection", bool, "affine_skip_connection" in stored)
    roles = (UPPER if "W_enc" in stored else LOWER) | ({"skip": "affine_skip_connection dd"} if skips else {})
    tensors: dict[str, Any] = read(weights, roles)
    tensors["threshold"] = of_jumprelu(tensors["threshold"])
    if skips:
        tensors["skip"] = tensors["skip"].T.contiguous()
    told = told_by(said.get("hf_hook_point_in"), said.get("hf_hook_point_out"))
    return fold(weights, Dictionary(**tensors, told=told))


def llama_config(folder: Path) -> Path | None:
    """The config of OpenMOSS's code in a folder, whose later versions name it as Gemma Scope 2 does; None if there is none."""
    if is_file(folder / LLAMA_CONFIG):
        return folder / LLAMA_CONFIG
    try:
        said = read_config(folder / GEMMA_CONFIG, optional=True)
    except UserError:  # of others; whoever reads it says what is wrong
        return None
    return folder / GEMMA_CONFIG if "d_model" in said and not LLAMA_KEYS.isdisjoint(said) else None


def _llama_configs(path: Path) -> dict[Path, Path]:
    folders = dict.fromkeys(file.parent for file in find_below(path, LLAMA_CONFIG, GEMMA_CONFIG))
    return {folder: config for folder in folders if (config := llama_config(folder)) is not None}


def is_llama_scope(path: Path) -> bool:
    """Whether a folder holds dictionaries of Llama Scope."""
    return bool(_llama_configs(path))


def llama_layers(path: Path) -> dict[int | None, Path]:
    """Returns the folder of each layer's dictionary. Raises: see `by_layer`."""
    configs = _llama_configs(path)

    def layer_of(folder: Path) -> int | None:
        said = read_config(configs[folder])
        reads, writes = said.get("hook_point_in"), said.get("hook_point_out")
        return layer_at(folder, layer_in(writes, reads), writes or reads)

    return by_layer(configs, layer_of)


def load_llama(folder: Path) -> Dictionary:
    """Reads a dictionary of Llama Scope from its folder.

    Raises UserError if a file cannot be read; the states are scaled token by token; the activation or the encoder is another.
    """
    config = llama_config(folder) or file_in(folder, LLAMA_CONFIG)
    said, weights = read_config(config), file_in(folder, *LLAMA_WEIGHTS)
    activation, norm = _llama_settings(config, said)
    d = value_of(config, said, "d_model", int, lowest=1)
    known = {"d": (d, f"d_model of {config.name}"), **sizes_said(config, said, n="d_sae")}
    has_bias, stored = value_of(config, said, "use_decoder_bias", bool, True), stored_in(weights)
    roles = LLAMA_LATER if "W_E" in stored else LLAMA
    roles = {key: role for key, role in roles.items() if has_bias or key != "decoder_bias"}
    if jumps := [name for name in LLAMA_JUMPS if name in stored]:
        roles["log_threshold"] = f"{jumps[0]} n"
    hooks = {"in": said.get("hook_point_in"), "out": said.get("hook_point_out") or said.get("hook_point_in")}
    roles |= {side: name for side, hook in hooks.items() if (name := f"{LLAMA_NORMS}.{hook}") in stored}
    tensors: dict[str, Any] = read(weights, roles, known)
    tensors.setdefault("decoder_bias", tensors["encoder"].new_zeros(tensors["encoder"].shape[1]))
    means: dict[str, Any] = {side: float(tensors.pop(side)) for side in hooks if side in tensors}
    reads = writes = 1.0
    if norm == "dataset-wise":
        reads, writes = (math.sqrt(d) / norm for norm in _mean_norms(config, said, hooks, means))
        for name, scale in ("encoder_bias", 1 / reads), ("decoder_bias", 1 / writes), ("decoder", reads / writes):
            tensors[name] = tensors[name] * scale
    unit_norm = value_of(config, said, "sparsity_include_decoder_norm", bool, True)
    largest, saved = 0, tensors.pop("log_threshold", None)
    if activation == "jumprelu" and saved is not None:  # of training, where m was scaled, and a value as in the file
        tensors["threshold"] = saved.exp() / (writes if unit_norm else reads)
    elif activation != "relu":
        jump = value_of(config, said, "jump_relu_threshold", float, None if activation == "jumprelu" else 0.0)
        if activation == "topk" and jump <= 0:
            largest = value_of(config, said, "top_k", int, 50, lowest=1)
        else:  # their code reads a TopK with a threshold as a JumpReLU
            tensors["threshold"] = torch.full((len(tensors["encoder"]),), float(jump))
    made = Dictionary(**tensors, largest=largest, told=told_by(hooks["in"], hooks["out"]))
    usual = config.name == LLAMA_CONFIG  # what the code of its time takes where a config does not say it
    shifts = has_bias and value_of(config, said, "apply_decoder_bias_to_pre_encoder", bool, usual)
    return fold(weights, made, made.decoder_bias if shifts else None, unit_norm)


def _mean_norms(config: Path, said: dict[str, Any], hooks: dict[str, Any], means: dict[str, Any]) -> list[float]:
    """The mean norms of what is read and of what is written. Raises UserError if one is not told.

    `hooks`: the two places, "in" and "out". `means`: what tensors tell of them; the config, which goes first, names a hook or a side.
    """
    by_hook = said.get(LLAMA_NORMS)
    by_hook = by_hook if isinstance(by_hook, dict) else {}
    means = means | {side: by_hook[key] for side, hook in hooks.items() for key in (str(hook), side) if key in by_hook}
    if hooks["in"] == hooks["out"]:
        means.setdefault("out", means.get("in"))
    named = {f"{LLAMA_NORMS}.{side}": mean for side, mean in means.items()}  # as a message calls them
    return [value_of(config, named, f"{LLAMA_NORMS}.{side}", float, lowest=1e-6) for side in hooks]


def _llama_settings(config: Path, said: dict[str, Any]) -> tuple[str, str]:
    """The activation and the norm; a config that tells neither has what belongs to them. Raises UserError if they are not read."""
    if (kind := value_of(config, said, "sae_type", str, "sae")) != "sae":
        crosses = f" It {SEVERAL_LAYERS}" if kind == "clt" else ""
        raise UserError(f"{config}: sae_type is {kind[:80]!r}, and only sae is read.{crosses}")
    usual = "relu" if said.get("jump_relu_threshold") is None else "jumprelu"
    activation = value_of(config, said, "act_fn", str, usual).lower()
    if activation not in ("relu", "jumprelu", "topk"):
        raise UserError(f"{config}: the activation {activation[:80]!r} is not read: relu, jumprelu and topk are.")
    if value_of(config, said, "use_glu_encoder", bool, False):
        raise UserError(
            f"{config}: use_glu_encoder is true: a unit has two keys, whose product is no coefficient of a memory."
        )
    usual = "token-wise" if said.get(LLAMA_NORMS) is None else "dataset-wise"
    norm = value_of(config, said, "norm_activation", str, usual)
    if norm not in ("dataset-wise", "inference", "none"):
        raise UserError(
            f"{config}: norm_activation is {norm[:80]!r}: states are scaled each by its own norm, and no unit has a fixed key."
        )
    return activation, norm
