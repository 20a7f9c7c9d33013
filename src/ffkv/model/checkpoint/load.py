"""The model that was proven, in memory again."""

from dataclasses import dataclass
from pathlib import Path

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
    """A model in evaluation mode on its device, with its proven anatomy."""

    model: torch.nn.Module
    anatomy: Anatomy
    device: str


def load(model_folder: Path, device: str = "auto") -> LoadedModel:
    """The model that the model stage has proven, loaded from its checkpoint again.

    Args:
        model_folder: `results/<run>/model`.
        device: as the setting `model.device`.
    Raises:
        UserError: the checkpoint is gone, or its weights are no longer those that were proven.
    """
    anatomy = read_anatomy(model_folder)
    settings = Model(
        checkpoint=anatomy.checkpoint,
        revision=anatomy.revision,
        dtype=anatomy.dtype,
        trust_remote_code=anatomy.trust_remote_code,
    )
    model = load_checkpoint(settings)
    if weights_hash(model) != anatomy.model_hash:
        raise UserError(
            f"The weights of {anatomy.checkpoint} have changed since {model_folder} was made. Run the model stage again."
        )
    record_experts(model)
    device = choose_device(device)
    return LoadedModel(model.to(device), anatomy, device)
