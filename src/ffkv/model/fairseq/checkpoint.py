"""A fairseq checkpoint, a folder with `model.pt` and `dict.txt`, as a model and a tokenizer.

Pickled code is never run.
"""

import argparse
import re
import zipfile
from pathlib import Path
from typing import Any, TypeGuard

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ffkv.base.errors import UserError
from ffkv.base.settings import Model
from ffkv.model.fairseq import dictionary
from ffkv.model.fairseq.arguments import read_arguments
from ffkv.model.fairseq.state import fill, upgrade


def load_model(settings: Model, with_weights: bool = True) -> PreTrainedModel:
    """Loads the model of a fairseq checkpoint, on the CPU. Weights that have the wanted type already are not copied.

    `with_weights`: False leaves the model on torch's meta device, without weights.

    Raises:
        UserError: a file is missing, damaged or needs code to be read; the model has another form; weights are missing,
            left over or of another shape; the dictionary is that of another model; model code is to be trusted.
    """
    from ffkv.model.fairseq.modeling import FairseqConfig, FairseqForCausalLM

    folder, dtype = Path(settings.checkpoint), settings.dtype
    if settings.trust_remote_code:
        raise UserError(f"{folder} is a fairseq checkpoint and brings no code: set model.trust_remote_code to false.")
    path, words = folder / dictionary.MODEL_FILE, dictionary.read_dictionary(folder)
    args, state = read_checkpoint(path)
    try:
        _check_dictionary(words, state)
        settings_of_model = read_arguments(args, len(words))
        last = f"decoder.layers.{settings_of_model['num_hidden_layers'] - 1}."
        if not any(name.startswith(last) for name in state):
            raise UserError(f"args.decoder_layers is {args.decoder_layers}, but it holds no tensor of {last}*.")
        config = FairseqConfig(**upgrade(state, settings_of_model))
        with torch.device("meta"):
            model: Any = FairseqForCausalLM(config)
        wanted = None if dtype == "auto" else getattr(torch, dtype)
        if not with_weights:
            return model.to(wanted or next(iter(state.values())).dtype)
        fill(model, state, wanted)
    except (UserError, ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
        # args and tensors may hold anything that a pickle can hold
        raise UserError(
            f"{path} cannot be read as a language model (docs/definitions.md says which ones of fairseq can): {str(error).partition(chr(10))[0]}"
        ) from error
    config.dtype = model.dtype
    return model.eval()


def read_checkpoint(path: Path) -> tuple[argparse.Namespace, dict[str, Tensor]]:
    """Reads the args and the state dict of a checkpoint file with torch's weights-only loader.

    Raises UserError if the file does not exist, is damaged, is not a checkpoint, or needs a class to be read.
    """
    if not path.is_file():
        raise UserError(f"There is no {path}: a fairseq checkpoint is a folder with model.pt and dict.txt.")
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):
            # Since torch 1.6 files are zip archives, which need not be read before their tensors are.
            stored = torch.load(path, "cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except Exception as error:  # a damaged pickle raises nearly anything
        if needed := re.search(r"GLOBAL (\S+) (was not an allowed global|whose module)", str(error)):
            raise UserError(
                f"{path} needs {needed[1]} to be read: ffkv runs no code that a checkpoint names. Save its `args` and `model` alone."
            ) from error
        reason = str(error).rpartition("WeightsUnpickler error: ")[2].strip().partition("\n")[0][:200]
        raise UserError(
            f"{path} cannot be read, it is damaged or no checkpoint: {reason or type(error).__name__}. Fetch it again."
        ) from error
    args, state = (stored.get(key) if isinstance(stored, dict) else None for key in ("args", "model"))
    if not isinstance(args, argparse.Namespace) or not _is_state(state):
        raise UserError(f"{path} is not a checkpoint of fairseq 0.10 or older: it holds no `args` and `model`.")
    return args, state


def _is_state(state: Any) -> TypeGuard[dict[str, Tensor]]:
    return isinstance(state, dict) and all(
        isinstance(name, str) and isinstance(tensor, Tensor) and tensor.layout == torch.strided
        for name, tensor in state.items()
    )


def _check_dictionary(words: list[str], state: dict[str, Tensor]) -> None:
    embeddings = re.compile(r"decoder\.embed_tokens\.embeddings\.\d+\.0\.weight")
    rows = sum(len(tensor) for name, tensor in state.items() if embeddings.fullmatch(name))
    if rows and rows != len(words):
        raise UserError(
            f"it embeds {rows} words, but {dictionary.DICTIONARY_FILE} beside it has {len(words)} (its lines and 4 special words): it belongs to another model."
        )
