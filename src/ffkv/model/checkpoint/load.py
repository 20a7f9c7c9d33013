"""Loads a proven model again."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from ffkv.base.errors import UserError
from ffkv.base.hub.commit import is_local
from ffkv.base.process.remarks import collected
from ffkv.base.process.runtime import choose_device
from ffkv.base.settings import Model
from ffkv.base.terminal import say
from ffkv.model.anatomy import OF_SETTINGS, Anatomy, read_anatomy
from ffkv.model.checkpoint.fingerprint import hash_once, state_of
from ffkv.model.checkpoint.gguf_file import read_once
from ffkv.model.checkpoint.read import load_checkpoint, load_form
from ffkv.model.checkpoint.unpack import in_place
from ffkv.model.experts.record import record_experts
from ffkv.model.placement.resident import device_of
from ffkv.model.placement.spread import place
from ffkv.model.tap.hooks import enough_memory

NO_LIMITS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class LoadedModel:
    """A proven model.

    Attributes:
        model: in evaluation mode, where it was placed.
        anatomy: what was proven.
        device: the torch device that reads the ids.
    """

    model: torch.nn.Module
    anatomy: Anatomy
    device: str

    @property
    def devices(self) -> list[torch.device]:
        """The device that each feed-forward layer runs on [layer]."""
        return [device_of(self.model.get_submodule(layer.block)) for layer in self.anatomy.layers]


def load(model_folder: Path | str, device: str = "auto", max_memory: Mapping[str, str] = NO_LIMITS) -> LoadedModel:
    """Loads the model of a model folder from its checkpoint. Its banks of experts keep records.

    Args:
        model_folder: `results/<run>/model`.
        device: as the setting `model.device`.
        max_memory: as the setting `model.max_memory`.
    Raises:
        UserError: the checkpoint is gone, or its weights or its config have changed since the proof; there is no such
            device.
    Examples:
        >>> loaded = ffkv.load_model("results/tiny/model", device="cpu")
        >>> type(loaded.model).__name__
        'GPT2LMHeadModel'
    """
    anatomy = read_anatomy(model_folder)
    located = _located(anatomy, Path(model_folder))
    given = {name: getattr(located, name) for name in (*OF_SETTINGS, "adapter", "adapter_revision", "dtype")}
    settings, commit = Model.model_validate(given), located.source
    if located.unpacked and is_local(located.unpacked):
        settings, commit = in_place(settings, located.unpacked)
    elif located.unpacked:
        say(f"{anatomy.unpacked} is gone: {anatomy.gguf} is unpacked again.", error=True)
    state, itemsize = state_of(settings, commit), getattr(torch, anatomy.dtype).itemsize
    with (
        collected(),
        read_once(),
        enough_memory(lambda: float(anatomy.parameters * itemsize)),
    ):  # the anatomy has the remarks
        placement = place(partial(load_form, settings, commit), choose_device(device), device == "auto", max_memory)
        model: Any = load_checkpoint(settings, commit, placement)
    if hash_once(settings, commit, model, state) != anatomy.model_hash:
        raise UserError(
            f"The weights of {anatomy.checkpoint} have changed since {model_folder} was made. Run the model step again."
        )
    record_experts(model)
    return LoadedModel(model, anatomy, placement.device)


def _located(anatomy: Anatomy, model_folder: Path) -> Anatomy:
    """Returns the anatomy with paths: into Python packages, from the working directory or, if nothing is there, beside
    `results`.
    """
    above = model_folder.resolve().parents

    def locate(name: str, commit: str) -> str:
        beside = str(above[2] / name) if len(above) > 2 else name
        return beside if name and not commit and not is_local(name) and is_local(beside) else name

    inside = Model(checkpoint=anatomy.checkpoint, adapter=anatomy.adapter).located()
    return replace(
        anatomy,
        checkpoint=locate(inside.checkpoint, anatomy.commit),
        adapter=locate(inside.adapter, anatomy.adapter_commit),
        unpacked=locate(anatomy.unpacked, ""),
    )
