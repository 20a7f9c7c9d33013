"""Loads a proven model again."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ffkv.errors import UserError
from ffkv.model.anatomy import Anatomy, read_anatomy
from ffkv.model.checkpoint.fingerprint import weights_hash
from ffkv.model.checkpoint.read import load_checkpoint
from ffkv.model.experts.record import record_experts
from ffkv.process.runtime import choose_device
from ffkv.settings import Model


@dataclass(frozen=True)
class LoadedModel:
    """A proven model.

    Attributes:
        model: in evaluation mode, on its device.
        anatomy: what was proven.
        device: the torch device.
    """

    model: torch.nn.Module
    anatomy: Anatomy
    device: str


def load(model_folder: Path | str, device: str = "auto") -> LoadedModel:
    """Loads the model of a model folder from its checkpoint. Its banks of experts keep records.

    Args:
        model_folder: `results/<run>/model`.
        device: as the setting `model.device`.
    Raises:
        UserError: the checkpoint is gone, or its weights or its config have changed since the proof.
    """
    anatomy = read_anatomy(model_folder)
    names = ("checkpoint", "revision", "adapter", "adapter_revision", "dtype", "trust_remote_code")
    settings = Model.model_validate({name: getattr(anatomy, name) for name in names})
    model: Any = load_checkpoint(settings, anatomy.source)
    if weights_hash(model) != anatomy.model_hash:
        raise UserError(
            f"The weights of {anatomy.checkpoint} have changed since {model_folder} was made. Run the model step again."
        )
    record_experts(model)
    device = choose_device(device)
    return LoadedModel(model.to(device), anatomy, device)
