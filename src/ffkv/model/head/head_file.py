"""`model/head.safetensors`: the head of a proven model, in a file of its own.

The file holds the tensors of an emptied model. Its metadata names, for each tensor name of the model, the tensor in the
file: tensors that share memory are stored once.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ffkv.base.errors import UserError
from ffkv.base.files.stored import unreadable, verify_sum
from ffkv.base.hub.fetch import local_model
from ffkv.base.lookup import exists, looks_told, save_pretrained
from ffkv.base.process.runtime import choose_device
from ffkv.model.anatomy import Anatomy, read_anatomy_to_run
from ffkv.model.checkpoint.config import build_empty, read_config, reading
from ffkv.model.checkpoint.readers import known_class
from ffkv.model.head.head import EmptiedModel, Head, ModuleChain
from ffkv.model.placement import stored_tensor

HEAD_FILE = "head.safetensors"
NAMES = "names"  # the only entry of the metadata, because safetensors writes several in any order
# What a file that ffkv did not write makes torch, transformers and safetensors raise.
UNREADABLE = (OSError, ValueError, TypeError, LookupError, AttributeError, StopIteration, SafetensorError)
EMBEDDING = "output embedding"  # an entry of the names that is not a tensor of the model


def write_head(folder: Path, model: nn.Module, anatomy: Anatomy) -> EmptiedModel:
    """Empties the model and writes its tensors and its config into a folder."""
    emptied_model = EmptiedModel(model, anatomy)
    emptied = emptied_model.model
    stored_names: dict[int, str] = {}
    names: dict[str, str] = {}
    tensors: dict[str, Tensor] = {}
    parameters = emptied.named_parameters(remove_duplicate=False)
    for name, tensor in [*parameters, *emptied.named_buffers(remove_duplicate=False)]:
        stored_name = names[name] = stored_names.setdefault(id(tensor), name)
        if stored_name not in tensors:
            tensors[stored_name] = stored_tensor(emptied, name).detach().cpu().contiguous()
    embedding = emptied.get_output_embeddings()
    names[EMBEDDING] = stored_names.get(id(embedding.weight), "") if embedding is not None else ""
    save_file(tensors, folder / HEAD_FILE, metadata={NAMES: json.dumps(names, sort_keys=True)})
    save_pretrained(folder, emptied.config)
    return emptied_model


def load_head(
    model_folder: Path | str, device: str = "auto", projection: str = "head", trust_remote_code: bool = False
) -> Head:
    """Loads the head of a proven model, without its blocks.

    Args:
        model_folder: `results/<run>/model`.
        device: as the setting `model.device`.
        projection: as the setting `values.projection`: "head", or "unembedding" for the output embedding alone.
        trust_remote_code: whether you allow the Python code that the checkpoint brings. No file of a run allows it.
    Raises:
        UserError: the model step has not been run, its files are damaged, or the head needs code that you do not allow.
    Examples:
        >>> head = ffkv.load_head("results/tiny/model", device="cpu")
        >>> values = torch.from_numpy(ffkv.read_values("results/tiny/values.h5").value)
        >>> head.logits(values).shape  # [memory, vocabulary]
        torch.Size([256, 400])
    """
    anatomy, folder = read_anatomy_to_run(model_folder, trust_remote_code), Path(model_folder)
    reader: EmptiedModel | ModuleChain
    if anatomy.head_chain:
        tensors, names = _read(folder)
        reader = ModuleChain(anatomy.head_chain, {name: tensors[stored] for name, stored in names.items()})
    else:
        reader = read_head(folder, anatomy)
    return Head(reader, anatomy, choose_device(device), projection)


def read_head(folder: Path, anatomy: Anatomy) -> EmptiedModel:
    """Reads the emptied model that `write_head` wrote into the folder of the model step.

    Raises UserError if the folder holds no readable head.
    """
    with looks_told(folder):
        tensors, names = _read(folder)
        try:
            dtype = next(tensor.dtype for tensor in tensors.values() if tensor.is_floating_point())
            with torch.device("meta"):
                model = _build(folder, anatomy, dtype)
            emptied = EmptiedModel(model, anatomy)
            # Parameters that share memory become one.
            parameters = {n: nn.Parameter(tensor, False) for n, tensor in tensors.items() if tensor.is_floating_point()}
            for name, stored_name in names.items():
                owner, _, attribute = name.rpartition(".")
                module = model.get_submodule(owner)
                if attribute in module._buffers:
                    module._buffers[attribute] = tensors[stored_name]
                else:
                    module._parameters[attribute] = parameters[stored_name]
        except UNREADABLE as error:
            raise unreadable(folder, error) from error
        model.eval()
        return emptied


def _read(folder: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Returns the tensors of a head, and for each tensor name of the model the tensor's name in the file."""
    verify_sum(folder)
    path = folder / HEAD_FILE
    if not exists(path):
        raise UserError(f"{path} does not exist: run `ffkv model` again.")
    try:
        with safe_open(path, "pt") as file:
            names = json.loads(file.metadata()[NAMES])
        return load_file(path), {name: stored for name, stored in names.items() if name != EMBEDDING}
    except UNREADABLE as error:
        raise unreadable(folder, error) from error


def _build(folder: Path, anatomy: Anatomy, dtype: torch.dtype) -> Any:
    """Returns a model of the stored config on torch's current device, with the code of this one class if possible."""
    import transformers

    transformers.logging.set_verbosity_error()  # the job that made the file has told what it warns of
    known = known_class(anatomy.architecture) or getattr(transformers, anatomy.architecture, None)
    code = anatomy.source if anatomy.trust_remote_code else None  # the checkpoint that brings the model's code
    config_class = getattr(known, "config_class", None)
    if not code and config_class and config_class.model_type == read_config(folder).get("model_type"):
        config = config_class.from_pretrained(folder)
    else:
        # Without a word about trust, transformers would ask whoever sits at the terminal.
        where = reading(code, True) if code else {"trust_remote_code": False}
        config = transformers.AutoConfig.from_pretrained(local_model(code) if code else folder, **where)
    config._attn_implementation = None  # it could name code of the hub
    # The class itself if it is the library's: a text model inside a larger one has no entry in the automatic choice.
    if known is not None:
        return known._from_config(config, dtype=dtype)
    return build_empty(config, dtype, code.code_read_at if code else None)


def stored_output_embedding(model_folder: Path | str) -> np.ndarray | None:
    """Returns the output embedding [vocabulary, d] in float32; None if the model has no single one."""
    path = Path(model_folder) / HEAD_FILE
    verify_sum(path)
    try:
        with safe_open(path, "pt") as file:
            name = json.loads(file.metadata()[NAMES])[EMBEDDING]
            return file.get_tensor(name).float().numpy() if name else None
    except UNREADABLE as error:
        raise unreadable(path, error) from error
