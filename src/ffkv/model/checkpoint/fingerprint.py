"""Hashes that identify a model and a tokenizer."""

import hashlib
import json

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from ffkv.model.placement.resident import stored_tensor

# Fields of a config that do not change what the model computes.
UNHASHED = ("_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version")


def weights_hash(model: PreTrainedModel) -> str:
    """Hashes all that a model computes with: config, parameters, stored buffers, with names, types, shapes."""
    digest = hashlib.sha256()
    config = {key: value for key, value in model.config.to_diff_dict().items() if key not in UNHASHED}
    digest.update(json.dumps(config, sort_keys=True, default=str).encode())
    for name in _tensor_names(model):
        tensor = stored_tensor(model, name)
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]


def not_finite(model: PreTrainedModel) -> str:
    """Returns the name of the first parameter with a value that is not finite; "" if there is none."""
    names = (name for name, _ in model.named_parameters())
    return next((name for name in names if not torch.isfinite(stored_tensor(model, name)).all()), "")


def _tensor_names(model: PreTrainedModel) -> list[str]:
    """Returns the names of the parameters, each once, and of the stored buffers, sorted."""
    buffers = dict(model.named_buffers())
    stored = [name for name in model.state_dict() if name in buffers]
    parameters = dict(model.named_parameters())
    # Tensors that a checkpoint shares are no longer one object while they are elsewhere.
    tied = getattr(model, "all_tied_weights_keys", None) or {}
    again = {name for name, tensor in parameters.items() if tensor.is_meta and tied.get(name) in parameters}
    return sorted([*(name for name in parameters if name not in again), *stored])


def tokenizer_hash(tokenizer: PreTrainedTokenizerFast) -> str:
    """Returns a hash of the tokenizer's complete definition."""
    return hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode()).hexdigest()[:16]
