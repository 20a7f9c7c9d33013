"""The forms in which weights are published: plain, quantised, as an adapter, as GGUF.

What can be read of them, and how.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ffkv.base.errors import UserError
from ffkv.base.files.bounded import read_json
from ffkv.base.files.steady import files_in
from ffkv.base.settings.messages import shown

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

# Methods whose weights transformers turns back into plain ones by itself, and what tells it to.
UNPACKED = {"mxfp4": "Mxfp4Config", "fp8": "FineGrainedFP8Config", "mxfp8": "FineGrainedFP8Config"}


def quantisation_of(config: dict[str, Any]) -> str:
    """Returns the method by which a config says that its weights are quantised, such as "gptq"; "" if it says none."""
    method = config.get("quantization_config") or {}
    method = method if isinstance(method, dict) else {"quant_method": str(method)}
    return str(method.get("quant_method", "unknown method")) if method else ""


def unpacking(config: dict[str, Any], checkpoint: str) -> dict[str, Any]:
    """Returns the arguments with which `from_pretrained` turns quantised weights into plain ones; {} for plain ones.

    Raises:
        UserError: the weights are quantised by a method that leaves them packed.
    """
    import transformers

    method = quantisation_of(config)
    if not method:
        return {}
    if method not in UNPACKED:
        raise UserError(
            f"The checkpoint {checkpoint} is quantised ({method}). ffkv reads the weights themselves, and unpacks"
            f" {', '.join(UNPACKED)} only: use the unquantised model that it was made from."
        )
    return {"quantization_config": getattr(transformers, UNPACKED[method])(dequantize=True)}


def refuse_other_forms(checkpoint: str, folder: Path, names: list[str] | None = None) -> None:
    """Refuses a folder or repository that holds no model of its own, by the names of its files.

    Args:
        checkpoint: as in the settings.
        folder: where its files are. One that does not exist is left to others.
        names: names of its files if some of them are elsewhere; None for those in the folder.
    Raises:
        UserError: it holds an adapter, a model in the GGUF form, or (a repository) no model; says what to do.
    """
    on_hub = names is not None
    names = [file.name for file in files_in(folder)] if names is None else names
    if "config.json" in names:
        return
    if "adapter_config.json" in names:
        base = _base_of(folder / "adapter_config.json")
        raise UserError(
            f"{checkpoint} is a PEFT adapter{f' of {base}' if base else ''}, not a whole model. Set model.checkpoint to"
            f" {base or 'the model that it adapts'} and model.adapter to {checkpoint}."
        )
    if packed := _gguf_files(names):
        raise UserError(
            f"{checkpoint} holds a model in the GGUF form ({shown(packed)[1:-1]}). Set model.gguf to the file that is to be"
            " read, or use the model that it was made from, as safetensors."
        )
    if on_hub:
        raise UserError(
            f"{checkpoint} is not a checkpoint: its repository has no config.json. It has {', '.join(names[:10]) or 'no files'}"
            f"{f' and {len(names) - 10} more' if len(names) > 10 else ''}."
        )


def check_gguf(checkpoint: str, name: str, names: list[str]) -> None:
    """Refuses a file in the GGUF form that does not exist, or is only a part of a model.

    Args:
        checkpoint: as in the settings.
        name: the setting `model.gguf`.
        names: names of the files that the folder or repository has.
    Raises:
        UserError: see above; names the files that there are.
    """
    if name not in names:
        there = shown(_gguf_files(names))[1:-1] or "none"
        raise UserError(f"{checkpoint} has no file {name}. Its files in the GGUF form: {there}. Set model.gguf.")
    if re.search(r"-\d{5}-of-\d{5}\.gguf$", name.lower()) and "-00001-of-00001." not in name:
        raise UserError(
            f"{checkpoint}: {name} is one of several parts of a model, which transformers does not read. Put them together"
            " with `llama-gguf-split --merge`, or use the model that it was made from."
        )


def forget_packing(model: PreTrainedModel) -> None:
    """Takes from a model the notes that its weights were packed in a file in the GGUF form. They are plain ones now."""
    of_model = ("hf_quantizer", "quantization_method", "_weight_conversions")
    for holder, names in ((model.config, ("quantization_config",)), (model, of_model)):
        for name in names:
            if name in vars(holder):
                delattr(holder, name)


def keep_own_tokens(tokenizer: PreTrainedTokenizerFast) -> None:
    """Takes from a tokenizer of a file in the GGUF form the tokens that the file does not have.

    transformers gives each byte-level one the token `<|endoftext|>` of GPT-2. Where the model has none, as in Llama-3,
    its id is larger than all ids of the model.
    """
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    own = len(state["model"]["vocab"])
    if any(token["id"] >= own for token in state["added_tokens"]):
        state["added_tokens"] = [token for token in state["added_tokens"] if token["id"] < own]
        tokenizer._tokenizer = type(tokenizer.backend_tokenizer).from_str(json.dumps(state))


def _gguf_files(names: list[str]) -> list[str]:
    return sorted(name for name in names if name.lower().endswith(".gguf"))


def _base_of(path: Path) -> str:
    try:
        return str(read_json(path, object_pairs_hook=dict)["base_model_name_or_path"] or "")
    except (OSError, ValueError, KeyError, TypeError):  # the sentence does without it
        return ""
