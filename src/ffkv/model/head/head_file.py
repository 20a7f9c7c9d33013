"""A model without its blocks: what stands after the last one, kept in a file of its own.

The blocks are emptied and the last one returns the vectors that are to be read. What remains is the model's own final norm,
projections, output embedding, scale and soft cap, so nothing needs to be known of them.
"""

import json
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from ffkv.errors import UserError
from ffkv.files.checksums import verify_sum
from ffkv.model.anatomy import Shell, read_anatomy
from ffkv.model.head.head import Head
from ffkv.model.tap.hooks import given
from ffkv.process.runtime import choose_device

FILE = "head.safetensors"
NAMES = "names"  # the file's one piece of metadata: safetensors writes several in any order
EMBEDDING = "output embedding"  # among the names; the others are names of tensors


def empty(model: nn.Module, shell: Shell) -> nn.Module:
    """Empties the blocks of a model in place: they pass their input on, the last returns what is injected.

    The blocks themselves stay, with the attributes that the model's own code asks them for, and where a block adds the
    feed-forward output before a last norm, that norm stays too.
    """
    sites = {layer.site for layer in shell.layers if layer.post_norm}
    for siblings in dict.fromkeys(layer.block.rpartition(".")[0] for layer in shell.layers):
        for name, block in model.get_submodule(siblings).named_children():
            path = f"{siblings}.{name}"
            kept = {site[len(path) + 1 :].split(".")[0] for site in sites if site.startswith(path + ".")}
            for part in [part for part in block._modules if part not in kept]:
                del block._modules[part]
            block._parameters.clear()
            block._buffers.clear()
            block.forward = _pass_on(block, path == shell.last_block, shell.returns)
    return model


def _pass_on(block: nn.Module, is_last: bool, returns: int):
    def forward(*args, **kwargs):
        output = block.injected if is_last else given(args, kwargs)
        return (output, *[None] * (returns - 1)) if returns else output

    return forward


def write_head(folder: Path, model: nn.Module, shell: Shell) -> None:
    """Empties the model and writes what is left, config included. Tensors that share memory are written once."""
    emptied = empty(model, shell)
    names: dict[int, str] = {}
    aliases, tensors = {}, {}
    for name, tensor in [
        *emptied.named_parameters(remove_duplicate=False),
        *emptied.named_buffers(remove_duplicate=False),
    ]:
        first = names.setdefault(id(tensor), name)
        aliases[name] = first
        tensors[first] = tensor.detach().cpu().contiguous()
    embedding = emptied.get_output_embeddings()
    aliases[EMBEDDING] = names.get(id(embedding.weight), "") if embedding is not None else ""
    save_file(tensors, folder / FILE, metadata={NAMES: json.dumps(aliases, sort_keys=True)})
    emptied.config.save_pretrained(folder)


def load_head(model_folder: Path, device: str = "auto", projection: str = "head") -> Head:
    """The head of a proven model, without its blocks.

    Args:
        model_folder: `results/<run>/model`.
        projection: "head", or "unembedding" for the output embedding alone.
    Raises:
        UserError: the model stage has not been run.
    """
    anatomy = read_anatomy(model_folder)
    source = anatomy.checkpoint if anatomy.trust_remote_code else ""
    emptied = read_head(Path(model_folder), anatomy.shell, source, anatomy.revision)
    return Head(emptied, anatomy.shell, anatomy.vocabulary, choose_device(device), projection)


def read_head(folder: Path, shell: Shell, source: str = "", revision: str = "main") -> nn.Module:
    """The emptied model that `write_head` wrote.

    Args:
        source, revision: the checkpoint that brings the model's code; "" for models of `transformers`.
    Raises:
        UserError: there is none.
    """
    import transformers
    from transformers import AutoConfig, AutoModelForCausalLM, logging

    import ffkv.fairseq.modeling  # noqa: F401 (transformers is to know fairseq's class)

    logging.set_verbosity_error()
    verify_sum(folder)
    if not (folder / FILE).exists():
        raise UserError(f"{folder / FILE} does not exist: run `ffkv model` again.")
    try:
        config = AutoConfig.from_pretrained(
            source or folder, revision=revision, code_revision=revision, trust_remote_code=bool(source)
        )
        tensors = load_file(folder / FILE)
        with safe_open(folder / FILE, "pt") as file:
            aliases = {name: first for name, first in _names(file).items() if name != EMBEDDING}
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise UserError(f"The model stage's {folder} cannot be read ({error}). Run `ffkv model` again.") from error
    dtype = next(tensor.dtype for tensor in tensors.values() if tensor.is_floating_point())
    known = getattr(transformers, shell.architecture, None)
    with torch.device("meta"):
        # The class itself where it is the library's: a text model inside a larger one has no entry in the automatic choice.
        model = (
            known._from_config(config, dtype=dtype)
            if known
            else AutoModelForCausalLM.from_config(config, dtype=dtype, trust_remote_code=bool(source))
        )
    empty(model, shell)
    shared = {
        name: nn.Parameter(tensor, requires_grad=False)
        for name, tensor in tensors.items()
        if tensor.is_floating_point()
    }
    for name, first in aliases.items():
        owner, _, attribute = name.rpartition(".")
        module = model.get_submodule(owner)
        if attribute in module._buffers:
            module._buffers[attribute] = tensors[first]
        else:
            module._parameters[attribute] = shared[first]
    return model.eval()


def stored_output_embedding(model_folder: Path) -> np.ndarray | None:
    """The output embedding [vocabulary, d] in float32; None where the model has no single one."""
    verify_sum(Path(model_folder) / FILE)
    with safe_open(Path(model_folder) / FILE, "pt") as file:
        name = _names(file)[EMBEDDING]
        return file.get_tensor(name).float().numpy() if name else None


def _names(file: safe_open) -> dict[str, str]:
    """Of every tensor, the name under which the file holds it."""
    return json.loads(file.metadata()[NAMES])
