"""Hashes that identify a model and a tokenizer."""

import hashlib
import json

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

# Fields of a config that do not change what the model computes.
UNHASHED = ("_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version")


def weights_hash(model: PreTrainedModel) -> str:
    """A hash of everything that a model computes with: config, parameters and stored buffers with names, types and shapes."""
    digest = hashlib.sha256()
    buffers = dict(model.named_buffers())
    stored = {name: buffers[name] for name in model.state_dict() if name in buffers}
    config = {key: value for key, value in model.config.to_diff_dict().items() if key not in UNHASHED}
    digest.update(json.dumps(config, sort_keys=True, default=str).encode())
    for name, parameter in sorted({**dict(model.named_parameters()), **stored}.items()):
        digest.update(f"{name} {parameter.dtype} {tuple(parameter.shape)}".encode())
        digest.update(parameter.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]


def tokenizer_hash(tokenizer: PreTrainedTokenizerFast) -> str:
    """A hash of the tokenizer's complete definition."""
    return hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode()).hexdigest()[:16]
