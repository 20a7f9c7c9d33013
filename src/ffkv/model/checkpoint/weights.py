"""What the files of a checkpoint's weights hold: the tensors, whether the model is what they are, and their hash.

A library leaves out every tensor that has no place in the class that the config names, and only warns of it. A tensor is
harmless if `leftovers.toml` has its kind, if the class itself lists it as unused, or if it is a bias of zeros. Any other
one is refused, because it changes what is computed.

Hashing reads every weight: minutes for a large model. Several jobs of a run load the same checkpoint. So the hash is noted in the
user's cache folder, under the sizes, times and inodes of the checkpoint's files. The time of the last change of a file's content
or state (ctime) is among them, which no program can set: whoever writes into a file changes it.
"""

import contextlib
import hashlib
import json
import os
import re
import time
import tomllib
import zipfile
from collections.abc import Callable, Collection, Mapping
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from transformers import PreTrainedModel

from ffkv.base.errors import UserError
from ffkv.base.files.atomic import atomic
from ffkv.base.files.stored import versions
from ffkv.base.hub.commit import Commit
from ffkv.base.hub.fetch import WEIGHTS, choose_files_of, local_model
from ffkv.base.lookup import files_in, find, is_file, make_folder
from ffkv.base.process.libraries import remark
from ffkv.base.settings import Model
from ffkv.model.checkpoint.checks import cannot_be_opened, words_of
from ffkv.model.discover.find import SECOND_MATRIX_NAMES, block_of
from ffkv.model.placement import stored_tensor

WHOLE = {"I": torch.int8, "U": torch.int8}  # the first letters of types of whole numbers, in files of safetensors
# Fields of a config that do not change what the model computes.
UNHASHED = ("_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version")
SETTLED = 2.0  # seconds: a file that changed more recently may change again within one tick of the clock
STATE = ("st_size", "st_mtime_ns", "st_ctime_ns", "st_ino", "st_dev")  # what of a file's state changes with its content
NAMED = 3  # tensors that a sentence names
TABLES = tomllib.loads((files(__package__) / "leftovers.toml").read_text(encoding="utf-8"))
Read = Callable[[Collection[str]], Mapping[str, Tensor]]  # names to those tensors that the files have


def _are_the_models(model: PreTrainedModel, tensor: Tensor) -> bool:
    """Tells whether frequencies are those of the model, up to half precision, in which older files store them."""
    own = [buffer for name, buffer in model.named_buffers() if name.endswith("inv_freq") and not buffer.is_meta]
    return not own or any(
        each.shape == tensor.shape and torch.allclose(each.float().cpu(), tensor.float(), rtol=1e-2) for each in own
    )


HOLDS: dict[str, Callable[[PreTrainedModel, Tensor], bool]] = {
    "are_the_models": _are_the_models,
    "are_masks": lambda model, tensor: tensor.ndim != 1 or tensor.numel() == 1,
    "are_zero": lambda model, tensor: not tensor.any(),
    "are_one": lambda model, tensor: bool((tensor == 1).all()),
    "is_one_number": lambda model, tensor: tensor.numel() == 1,
}


def check_weights(settings: Model, model: PreTrainedModel, info: dict[str, Any], folder: Path) -> None:
    """Compares a model with the files that it was made from.

    `info`: the names of tensors that `from_pretrained` returns, those that its class lists as harmless among them. `folder`: the
    checkpoint's. Raises UserError if tensors have another shape, are packed or missing, or needed ones are left over.
    """
    checkpoint = f"The checkpoint {settings.checkpoint}"
    if info["mismatched_keys"]:
        name, stored, expected = sorted(info["mismatched_keys"])[0]
        raise UserError(
            f"{checkpoint} has the tensor {name} of shape {tuple(stored)}, where a {type(model).__name__} of its config has {tuple(expected)}."
        )
    if not settings.gguf:  # else files beside it are none of the model's
        _check_files(checkpoint, folder)
    read: Read = partial(stored_tensors, folder) if not settings.gguf else lambda names: {}
    sort_out(checkpoint, info["unexpected_keys"], model, read)
    packed = [name for name, parameter in model.named_parameters() if not parameter.is_floating_point()]
    if packed:
        raise UserError(
            f"{checkpoint} hides its weights, {packed[0]} for one. Use an unquantised checkpoint of the model."
        )
    # A class may fill a buffer by itself; its parameters come from the file.
    parameters, listed = dict(model.named_parameters()), model._keys_to_ignore_on_load_missing or ()
    if missing := [
        name
        for name in sorted(info["missing_keys"])
        if name in parameters or not any(re.search(pattern, name) for pattern in listed)
    ]:
        raise UserError(
            f"{checkpoint} lacks the weights {', '.join(missing[:5])}: it is not a whole {type(model).__name__}."
        )
    # Tensors of their own in the file, such as an output embedding, which the config says are one.
    wanted = model.get_expanded_tied_weights_keys(all_submodels=True)
    if apart := sorted({*wanted} - {*model.all_tied_weights_keys}):
        remark(
            f"{checkpoint} has another {apart[0]} than {wanted[apart[0]]}, though its config says that the two are one"
            " (tie_word_embeddings). Each is read as it is in the file."
        )


def _check_files(checkpoint: str, folder: Path) -> None:
    """Refuses weights that are whole numbers and two tensors of one name, and names files of weights that are not read."""
    read, others = weight_files(folder)
    seen: dict[str, str] = {}
    for file in read:
        for name, tensor in tensors_in(file).items():
            if name.endswith(".weight") and not tensor.is_floating_point():
                raise UserError(
                    f"{checkpoint} stores {name} in whole numbers, and its config does not say how they were packed"
                    " (quantization_config). Use an unquantised checkpoint of the model."
                )
            if name in seen:
                raise UserError(
                    f"{checkpoint} has the tensor {name} twice, in {seen[name]} and {file.name}: fetch it again."
                )
            seen[name] = file.name
    if others:
        names = ", ".join(file.name for file in others)
        remark(f"{checkpoint} has files of weights that are not read, {names}: {read[0].name} is.")


def weight_files(folder: Path) -> tuple[list[Path], list[Path]]:
    """Finds the files of weights in the folder of a checkpoint: one, or the parts that its index names.

    Returns those that transformers reads, and files of the same form beside them, which nothing reads.
    """
    first = next((folder / name for name in WEIGHTS if is_file(folder / name)), None)
    if first is None:
        return [], []
    read = [first]
    if first.suffix == ".json":
        read = [folder / name for name in sorted({*json.loads(first.read_text())["weight_map"].values()})]
    stem = first.name.partition(".")[0]
    return read, sorted({*find(folder, f"{stem}*{read[0].suffix}")} - {*read})


def tensors_in(file: Path, names: set[str] | None = None) -> dict[str, Tensor]:
    """Reads the named tensors of a file; all of them on torch's meta device, without numbers, if `names` is None.

    Those of whole numbers are then of type int8, and those of others of float32.

    Raises UserError if a file of safetensors cannot be opened.
    """
    if file.suffix == ".safetensors":
        try:
            weights = safe_open(file, "pt")
        except FileNotFoundError as error:
            raise UserError(cannot_be_opened(error) or words_of(error)) from error
        with weights as opened:
            if names is None:
                slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118
                kinds = {name: WHOLE.get(part.get_dtype()[0]) for name, part in slices.items()}
                shapes = {name: part.get_shape() for name, part in slices.items()}
                return {name: torch.empty(shapes[name], dtype=kinds[name], device="meta") for name in slices}
            return {name: opened.get_tensor(name) for name in names & {*opened.keys()}}
    stored = torch.load(file, "cpu", weights_only=True, mmap=zipfile.is_zipfile(file))
    return {
        name: tensor.to("meta") if names is None else tensor
        for name, tensor in stored.items()
        if isinstance(tensor, Tensor) and (names is None or name in names)
    }


def stored_tensors(folder: Path, names: Collection[str]) -> dict[str, Tensor]:
    """Reads tensors of a checkpoint, each by the name that transformers has for it, which may begin otherwise in the file."""
    found: dict[str, Tensor] = {}
    for file in weight_files(folder)[0]:
        stored = {
            own: name
            for own in tensors_in(file)
            for name in names
            if f".{own}".endswith(f".{name}") or f".{name}".endswith(f".{own}")
        }
        found |= {stored[own]: tensor for own, tensor in tensors_in(file, {*stored}).items()}
    return found


def check_finite(settings: Model, model: PreTrainedModel) -> None:
    """Refuses a model with a weight that is not finite, by raising a `UserError`."""
    for name, _ in model.named_parameters():
        if not torch.isfinite(stored_tensor(model, name)).all():
            raise UserError(
                f"The checkpoint {settings.checkpoint} has values that are not finite in {name}, as {model.dtype}: the"
                " file is damaged, the training diverged, or the type is too small for them."
            )


def sort_out(files: str, names: Collection[str], model: PreTrainedModel, read: Read) -> None:
    """Names what is left over and harmless in remarks, one for each kind.

    `files`: what holds the tensors, in words, such as "The checkpoint gpt2". `names`: of the tensors that no one uses. `model`: the
    model that was made from the files. `read`: reads tensors by name. Raises UserError if leaving out one of them changes what
    the model computes; names it and the likely cause.
    """
    given = read(names) if names else {}
    kinds = {name: _kind(model, name, given.get(name)) for name in sorted(names)}
    if lost := [name for name, kind in kinds.items() if not kind]:
        raise UserError(
            f"{files} holds {listed(lost)}, for which a {type(model).__name__} of its config has no place. {_cause(model, lost)}"
        )
    for what in dict.fromkeys(kinds.values()):
        remark(f"{files} holds {listed([name for name in kinds if kinds[name] == what])}, which is not read: {what}.")


def listed(names: list[str]) -> str:
    """Names the first tensors of a list, and counts the others."""
    shown = ", ".join(names[:NAMED])
    return shown if len(names) <= NAMED else f"{shown} and {len(names) - NAMED:,} more tensors"


def _kind(model: PreTrainedModel, name: str, tensor: Tensor | None) -> str:
    """Returns why a model can do without a tensor; "" if it cannot, or if nobody knows."""
    # Files of a model without its head leave the first part of names out, those of a larger model have one more.
    inside = any(block_of(model, each) for each in (name, f"{model.base_model_prefix}.{name}", name.partition(".")[2]))
    for kind in TABLES["kind"]:
        fits = re.fullmatch(kind["names"], name) and (kind.get("in_blocks") or not inside)
        if fits and ("if" not in kind or (tensor is not None and HOLDS[kind["if"]](model, tensor))):
            return kind["what"]
    # A part of a name at most: "attn.bias" is no "c_attn.bias".
    listed = (rf"(^|\.)({pattern})" for pattern in model._keys_to_ignore_on_load_unexpected or ())
    if any(re.search(pattern, name) for pattern in listed):
        return f"transformers lists it as unused by a {type(model).__name__}"
    return ""


def _cause(model: PreTrainedModel, names: list[str]) -> str:
    seconds = [name for name in names if re.search(SECOND_MATRIX_NAMES, name.removesuffix(".weight"))]
    if further := [name for name in seconds if block_of(model, name)]:
        return f"These are feed-forward layers that its config does not have, {further[0]} for one: check its number of layers."
    known = (text for pattern, text in TABLES["causes"].items() if re.search(pattern, names[0]))
    return next(known, "What is computed with them would be lost: the config may be that of another model or class.")


def weights_hash(model: PreTrainedModel) -> str:
    """Hashes all that a model computes with: config, parameters, stored buffers, with names, types, shapes."""
    digest = hashlib.sha256()
    config = {key: value for key, value in model.config.to_diff_dict().items() if key not in UNHASHED}
    digest.update(json.dumps(config, sort_keys=True, default=str).encode())
    buffers, parameters = dict(model.named_buffers()), dict(model.named_parameters())
    # Tensors that a checkpoint shares are no longer one object while they are elsewhere.
    tied = getattr(model, "all_tied_weights_keys", None) or {}
    again = {name for name, tensor in parameters.items() if tensor.is_meta and tied.get(name) in parameters}
    # The parameters, each once, and the stored buffers.
    for name in sorted([*({*parameters} - again), *(name for name in model.state_dict() if name in buffers)]):
        tensor = stored_tensor(model, name)
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]


def state_of(settings: Model, commit: Commit) -> str:
    """Returns a key that a checkpoint's weights follow from; "" if none is known.

    It is made from the state of all its files, of the settings that its weights depend on, and of the versions of the
    libraries. A checkpoint of the hub is its folder in the hub's cache; its files are fetched if they are not there.
    """
    folders = [Path(local_model(commit, choose_files_of(settings.gguf, settings.weights != "random")))]
    folders += [Path(local_model(commit.of_adapter))] if commit.adapter else []
    try:
        entries = {str(path): path.stat() for folder in folders for path in files_in(folder)}
    except OSError:  # loading says why
        return ""
    if not entries or max(entry.st_ctime for entry in entries.values()) > time.time() - SETTLED:
        return ""
    states = {name: [getattr(entry, part) for part in STATE] for name, entry in entries.items()}
    chosen = settings.model_dump(include={"dtype", "gguf", "trust_remote_code", "weights", "weights_seed"})
    what = [[str(folder.resolve()) for folder in folders], states, chosen, versions(commit=False)]
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()


def hash_once(settings: Model, commit: Commit, model: PreTrainedModel, state: str) -> str:
    """Returns the hash of a model's weights: the noted one for the state of its files, else computed and noted.

    A note only saves time: nothing is said if it cannot be read or written. `state`: `state_of` before the model was loaded.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    note = cache / "ffkv" / "weights" / state
    known = ""
    with contextlib.suppress(OSError):
        known = note.read_text() if state else ""
    if known and state_of(settings, commit) == state:
        return known
    computed = weights_hash(model)
    if state and state_of(settings, commit) == state:
        with contextlib.suppress(Exception):
            make_folder(note.parent)
            with atomic(note, summed=False) as temporary:
                temporary.write_text(computed)
    return computed
