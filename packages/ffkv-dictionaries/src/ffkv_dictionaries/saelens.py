"""Dictionaries that SAELens saved: a folder with `cfg.json` and `sae_weights.safetensors`. Numbers are those of SAELens 6.54.

    x' = x - b_dec                     if apply_b_dec_to_input; transcoders never
    m  = act(x' W_enc + b_enc)         by the architecture, see `ARCHITECTURES`
    ŷ  = m W_dec + b_dec + W_skip x

Configs before version 6 have other names (`hook_point`, `activation_fn_str`) and say TopK by the activation alone. A gated encoder is
one with thresholds: w x' + b_gate > 0 says that exp(r) w x' + b_mag > b_mag - exp(r) b_gate. BatchTopK and its matryoshka kind are saved
as JumpReLU; a checkpoint of their training has one threshold, which SAELens then saves for each unit. With
`rescale_acts_by_decoder_norm` the m are those of `encode` of SAELens: units are chosen by m ‖v‖, m is that product, and v has the norm 1.
"""

from pathlib import Path
from typing import Any

from ffkv.base.errors import UserError
from ffkv.base.lookup import is_file
from ffkv_dictionaries.files import (
    AGAIN,
    SEVERAL_LAYERS,
    by_layer,
    file_in,
    find_below,
    layer_at,
    layer_in,
    read_config,
    sizes_said,
    told_by,
    value_of,
)
from ffkv_dictionaries.folding import fold, of_jumprelu
from ffkv_dictionaries.forms import Dictionary
from ffkv_dictionaries.scopes import llama_config
from ffkv_dictionaries.tensors import read, stored_in

CONFIG, WEIGHTS = "cfg.json", "sae_weights.safetensors"
OLDER = {"hook_point": "hook_name", "hook_point_layer": "hook_layer", "activation_fn_str": "activation_fn"}
BOTH = {"encoder": "W_enc dn", "decoder": "W_dec nd", "decoder_bias": "b_dec d"}
PLAIN, JUMP, SKIP = BOTH | {"encoder_bias": "b_enc n"}, {"threshold": "threshold n"}, {"skip": "W_skip dd"}
# The tensors of each architecture. That of a transcoder says so in its name.
ARCHITECTURES = {
    "standard": PLAIN,
    "topk": PLAIN,
    "abstopk": PLAIN,
    "jumprelu": PLAIN | JUMP,
    "batchtopk": PLAIN | JUMP,
    "matryoshka_batchtopk": PLAIN | JUMP,
    "gated": BOTH | {"encoder_bias": "b_mag n", "gate": "b_gate n", "growth": "r_mag n"},
    "transcoder": PLAIN,
    "skip_transcoder": PLAIN | SKIP,
    "jumprelu_transcoder": PLAIN | JUMP,
    "jumprelu_skip_transcoder": PLAIN | JUMP | SKIP,
}
OTHERS = {
    "temporal": "its units depend on the tokens before",
    "matching_pursuit": "it chooses one unit after the other, each by what those before left",
    "crosscoder": "its units read and write several layers",
    **dict.fromkeys(("clt", "jumprelu_clt", "cross_layer_transcoder"), f"it {SEVERAL_LAYERS.rstrip('.')}"),
}
NORMS = {
    "layer_norm": "it divides each state by its own spread, so that a unit has no fixed key",
    "constant_norm_rescale": "it divides each state by its own norm, so that a unit has no fixed key",
    "expected_average_only_in": "it scales the states by a number that is not in the files. Fold it by"
    " sae.fold_activation_norm_scaling_factor(NUMBER) of SAELens, and save the dictionary again",
    "covariance_whitening": "it multiplies the states by matrices that are not in the files. Fold them by"
    " sae.fold_activation_whitening of SAELens, and save the dictionary again",
}


def is_saelens(path: Path) -> bool:
    """Whether a folder holds dictionaries of SAELens, or folders with them."""
    return bool(_folders(path))


def layers(path: Path) -> dict[int | None, Path]:
    """Returns the folder of each layer's dictionary. Raises: see `read_config`, `layer_at`, `by_layer`."""

    def layer_of(folder: Path) -> int | None:
        said = _read_config(folder)
        told = layer_in(said.get("hook_name_out"), said.get("hook_name"), folder.name)
        number = told if told is not None or type(said.get("hook_layer")) is not int else said["hook_layer"]
        return layer_at(folder, number, said.get("hook_name_out") or said.get("hook_name"))

    return by_layer(_folders(path), layer_of)


def _folders(path: Path) -> list[Path]:
    """Folders with the weights, or with a config alone that tells a hook, a size or an architecture, as that of sparsify does not.

    OpenMOSS's code calls the weights so, too, beside a config of its own.
    """
    found = dict.fromkeys(file.parent for file in find_below(path, CONFIG, WEIGHTS))
    return [each for each in found if _is_own(each)]


def _is_own(folder: Path) -> bool:
    if not is_file(folder / CONFIG):
        return llama_config(folder) is None
    return is_file(folder / WEIGHTS) or _has_sizes(folder)


def _has_sizes(folder: Path) -> bool:
    if is_file(folder / "sae.safetensors"):  # of sparsify
        return False
    try:
        return not {"d_sae", "architecture", "hook_name", "hook_point"}.isdisjoint(read_config(folder / CONFIG))
    except UserError:  # whoever loads it says what is wrong
        return True


def _read_config(folder: Path) -> dict[str, Any]:
    """The config with the names of version 6, and what is known of the model beside the rest."""
    said = read_config(file_in(folder, CONFIG))
    inner = said.get("metadata")
    return {OLDER.get(key, key): value for key, value in {**(inner if isinstance(inner, dict) else {}), **said}.items()}


def load(folder: Path) -> Dictionary:
    """Reads a dictionary from its folder.

    Raises UserError if a file is missing, damaged, or does not fit the other; the architecture, activation or normalization is
    one that no keys and values have.
    """
    path, said = folder / CONFIG, _read_config(folder)
    architecture, largest = _architecture(path, said)
    weights = file_in(folder, WEIGHTS)
    roles, stored = dict(ARCHITECTURES[architecture]), stored_in(weights)
    if "threshold" in roles and "threshold" not in stored:  # of a training's checkpoint
        if "topk_threshold" in stored:
            roles["threshold"] = "topk_threshold n"
        elif "log_threshold" in stored:
            roles["log_threshold"] = roles.pop("threshold").replace("threshold", "log_threshold")
    for name in {"scaling_factor", "finetuning_scaling_factor"} & stored.keys():  # of versions before 6
        roles["scaling"] = f"{name} n"
    known = sizes_said(path, said, n="d_sae", d="d_in")
    if None not in (said.get("d_in"), said.get("d_out")) and said["d_in"] != said["d_out"]:
        raise UserError(
            f"{path}: it reads {said.get('d_in')!r:.40} dimensions and writes {said['d_out']!r:.40}. The feed-forward layers that"
            " ffkv reads have one number of dimensions."
        )
    return _fold(weights, said, architecture, largest, read(weights, roles, known))


def _architecture(path: Path, said: dict[str, Any]) -> tuple[str, int]:
    """The architecture, and k of a TopK or 0. Raises UserError if what the config says cannot be read as keys and values."""
    architecture = value_of(path, said, "architecture", str, "standard")
    activation, arguments = said.get("activation_fn") or "relu", said.get("activation_fn_kwargs")
    if activation == "topk" and architecture == "standard":
        architecture = "topk"
    if architecture not in ARCHITECTURES:
        reason = OTHERS.get(architecture, f"{', '.join(ARCHITECTURES)} are")
        raise UserError(f"{path}: a dictionary of the architecture {architecture[:80]!r} is not read: {reason}.")
    if activation not in ("relu", "topk") or (activation == "topk" and architecture not in ("topk", "abstopk")):
        raise UserError(
            f"{path}: the activation {activation!r:.80} is not read in a dictionary of the architecture {architecture}."
        )
    norm = said.get("normalize_activations") or "none"
    norm = "expected_average_only_in" if norm is True else norm  # of versions before 6
    if norm != "none":
        reason = NORMS.get(norm if isinstance(norm, str) else "", "nobody knows here what it does")
        raise UserError(f"{path}: normalize_activations is {norm!r:.80}, and {reason}.")
    hook, shape = str(said.get("hook_name")), said.get("reshape_activations") or "none"
    if shape != "none" or "hook_z" in hook:
        raise UserError(
            f"{path}: it reads {hook[:80]} with reshape_activations {shape!r:.80}: the outputs of heads of attention. Only a"
            " dictionary of states of the model can stand in the place of a feed-forward layer."
        )
    if "transcoder" in architecture and value_of(path, said, "apply_b_dec_to_input", bool, False):
        raise UserError(f"{path}: apply_b_dec_to_input is true, and a transcoder has none. {AGAIN}")
    if architecture not in ("topk", "abstopk"):
        return architecture, 0
    inner = arguments if isinstance(arguments, dict) else {}
    return architecture, value_of(path, said, "k", int, inner.get("k"), lowest=1)


def _fold(path: Path, said: dict[str, Any], architecture: str, largest: int, tensors: dict[str, Any]) -> Dictionary:
    """Makes a dictionary of its tensors. `path`: their file. `largest`: k of a TopK, or 0."""
    config = path.with_name(CONFIG)
    if architecture == "gated":
        growth = tensors.pop("growth").exp()
        tensors["encoder"] *= growth[:, None]
        tensors["threshold"] = tensors["encoder_bias"] - growth * tensors.pop("gate")
    if "log_threshold" in tensors:
        tensors["threshold"] = tensors.pop("log_threshold").exp()
    if "threshold" in tensors:
        tensors["threshold"] = of_jumprelu(tensors["threshold"])
    if "scaling" in tensors:  # the decoder multiplied m by it
        tensors["decoder"] *= tensors.pop("scaling")[:, None]
    unit_norm = value_of(config, said, "rescale_acts_by_decoder_norm", bool, "batchtopk" in architecture)
    shifts = "transcoder" not in architecture and value_of(config, said, "apply_b_dec_to_input", bool, True)
    told = told_by(said.get("hook_name"), said.get("hook_name_out"))
    made = Dictionary(**tensors, largest=largest, either_sign=architecture == "abstopk", told=told)
    return fold(path, made, made.decoder_bias if shifts else None, unit_norm and "topk" in architecture)
