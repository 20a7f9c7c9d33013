"""The files of a checkpoint of transformers that hold its weights: the names of their tensors, and the tensors."""

import json
import zipfile
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import safe_open
from torch import Tensor

from ffkv.base.errors import UserError
from ffkv.base.hub.fetch import WEIGHTS
from ffkv.base.lookup import find, is_file
from ffkv.model.checkpoint.failures import cannot_be_opened, words_of


class WeightFiles(NamedTuple):
    """Files with weights."""

    read: list[Path]  # those that transformers reads
    others: list[Path]  # files of the same form beside them, which nothing reads


def weight_files(folder: Path) -> WeightFiles:
    """Finds the files of weights in the folder of a checkpoint: one, or the parts that its index names."""
    first = next((folder / name for name in WEIGHTS if is_file(folder / name)), None)
    if first is None:
        return WeightFiles([], [])
    read = [first]
    if first.suffix == ".json":
        read = [folder / name for name in sorted({*json.loads(first.read_text())["weight_map"].values()})]
    stem = first.name.partition(".")[0]
    return WeightFiles(read, sorted({*find(folder, f"{stem}*{read[0].suffix}")} - {*read}))


def tensors_in(file: Path, names: set[str] | None = None) -> dict[str, Tensor]:
    """Reads the named tensors of a file; all of them on torch's meta device, without numbers, if `names` is None.

    Raises UserError if a file of safetensors cannot be opened.
    """
    if file.suffix == ".safetensors":
        try:
            weights = safe_open(file, "pt")
        except FileNotFoundError as error:
            raise UserError(cannot_be_opened(error) or words_of(error)) from error
        with weights as opened:
            if names is None:
                shapes = {name: opened.get_slice(name).get_shape() for name in opened.keys()}  # noqa: SIM118
                return {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
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
    for file in weight_files(folder).read:
        stored = {own: name for own in tensors_in(file) for name in names if _same_end(own, name)}
        found |= {stored[own]: tensor for own, tensor in tensors_in(file, {*stored}).items()}
    return found


def _same_end(own: str, name: str) -> bool:
    return own == name or own.endswith(f".{name}") or name.endswith(f".{own}")
