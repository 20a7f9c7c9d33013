"""What is wrong with a checkpoint, in words for a person: checks before and after its weights are read."""

import re
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from ffkv.base.errors import UserError
from ffkv.base.files.steady import files_in
from ffkv.base.hub.commit import Commit, may_be_on_hub
from ffkv.base.hub.fetch import cached_names, choose_config_files, local_model
from ffkv.base.lookup import exists, is_dir, is_file
from ffkv.base.process.remarks import remark
from ffkv.base.settings import EMBEDDED, Model
from ffkv.model.checkpoint.forms import check_gguf, refuse_other_forms, unpacking
from ffkv.model.checkpoint.leftovers import sort_out
from ffkv.model.checkpoint.weight_files import stored_tensors, tensors_in, weight_files
from ffkv.model.fairseq.dictionary import is_fairseq
from ffkv.model.placement.resident import stored_tensor

MOST_LAYERS = 1000
# Names of classes that predict the next token, beside those that transformers lists: of their own code, of models with a
# part for images, of a decoder with an encoder.
CAUSAL = re.compile(r"ForCausalLM|LMHead|ForConditionalGeneration|DoubleHeads")


def check_checkpoint(checkpoint: str, gguf: str = "") -> None:
    """Refuses a name that is neither a local folder nor a possible hub id, before the hub is asked.

    Args:
        checkpoint: the name.
        gguf: the setting `model.gguf`.
    Raises:
        UserError: it is neither; says which of the two the name looks like.
    """
    path = Path(checkpoint)
    try:
        path.stat()
        files_in(path)
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:  # a folder above that may not be entered, a name that no file can have
        raise UserError(
            f"The checkpoint {checkpoint[:200]} cannot be read: {getattr(error, 'strerror', error)}."
        ) from error
    if checkpoint == EMBEDDED and not exists(path):
        raise UserError(
            "The embedded model is not trained yet. Run snakemake or `ffkv train`, then name the checkpoint folder that it wrote."
        )
    if is_dir(path) and gguf:
        check_gguf(checkpoint, gguf, [file.name for file in files_in(path)])
    elif is_dir(path):
        refuse_other_forms(checkpoint, path)
        if not is_file(path / "config.json") and not is_fairseq(path):
            raise UserError(
                f"The folder {checkpoint} is not a checkpoint: it has neither config.json (transformers) nor model.pt and dict.txt (fairseq)."
            )
    elif not may_be_on_hub(checkpoint):
        raise UserError(
            f"There is no checkpoint folder {checkpoint}. Check model.checkpoint. A relative path starts in the working"
            " directory; that of a finished run may also start in the folder that holds its `results`."
        )


def refuse_unreadable(settings: Model, commit: Commit) -> dict[str, Any]:
    """Refuses what ffkv cannot read before any weight is fetched. Returns how quantised weights are unpacked."""
    from transformers import GgufConfig

    folder = Path(local_model(commit, choose_config_files))
    names = cached_names(commit)
    if settings.gguf:
        there = [file.name for file in files_in(folder)] if names is None else names
        check_gguf(settings.checkpoint, settings.gguf, there)
        return {"quantization_config": GgufConfig(dequantize=True)}
    refuse_other_forms(settings.checkpoint, folder, names)
    config = _config_of(settings, commit)
    _refuse_absurd(settings.checkpoint, config)
    _refuse_other_classes(settings, config)
    return unpacking(config, settings.checkpoint)


def _refuse_absurd(checkpoint: str, config: dict[str, Any]) -> None:
    """Refuses a config with so many layers that only making its modules would take minutes."""
    parts = [config, *(part for part in config.values() if isinstance(part, dict))]
    for name in ("num_hidden_layers", "n_layer", "num_layers", "n_layers"):
        for part in parts:
            if isinstance(count := part.get(name), int) and count > MOST_LAYERS:
                raise UserError(
                    f"The config of {checkpoint} names {count:,} layers ({name}). ffkv reads models of up to"
                    f" {MOST_LAYERS:,} layers."
                )


def _refuse_other_classes(settings: Model, config: dict[str, Any]) -> None:
    """Refuses a checkpoint that was saved by a class without a language model's head, such as a classifier."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    names = config.get("architectures") or []
    own_code = settings.trust_remote_code and "AutoModelForCausalLM" in (config.get("auto_map") or {})
    known = {*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()}
    if names and not own_code and not any(name in known or CAUSAL.search(str(name)) for name in names):
        raise UserError(
            f"The checkpoint {settings.checkpoint} is a {names[0]} (`architectures` in its config.json), which is not a causal"
            " language model: it predicts no next token. Use the checkpoint of the language model that it was made from."
        )


def _config_of(settings: Model, commit: Commit) -> dict[str, Any]:
    """Returns the config as it is written; empty if it cannot be read, which the caller meets and tells."""
    from transformers import PreTrainedConfig

    try:
        config, _ = PreTrainedConfig.get_config_dict(settings.checkpoint, revision=commit.read_at)
    except Exception:  # whatever is wrong with it, the caller has an error to tell
        return {}
    return config if isinstance(config, dict) else {}


def check_weights(settings: Model, model: PreTrainedModel, info: dict[str, Any], folder: Path) -> None:
    """Compares a model with the files that it was made from.

    Args:
        settings: name the checkpoint.
        model: the model.
        info: the names of tensors that `from_pretrained` returns, those that its class lists as harmless among them.
        folder: the checkpoint's.
    Raises:
        UserError: tensors have another shape, are packed, missing, or left over though the computation needs them.
    """
    checkpoint = f"The checkpoint {settings.checkpoint}"
    if info["mismatched_keys"]:
        name, stored, expected = sorted(info["mismatched_keys"])[0]
        raise UserError(
            f"{checkpoint} has the tensor {name} of shape {tuple(stored)}, where a {type(model).__name__} of its config has {tuple(expected)}."
        )
    _check_files(checkpoint, folder)
    sort_out(checkpoint, info["unexpected_keys"], model, lambda names: stored_tensors(folder, names))
    packed = [name for name, parameter in model.named_parameters() if not parameter.is_floating_point()]
    if packed:
        raise UserError(
            f"{checkpoint} hides its weights, {packed[0]} for one. Use an unquantised checkpoint of the model."
        )
    # A class may fill a buffer by itself; its parameters come from the file.
    parameters, listed = dict(model.named_parameters()), model._keys_to_ignore_on_load_missing or ()
    if missing := [
        name
        for name in sorted(info["missing_keys"])
        if name in parameters or not any(re.search(pattern, name) for pattern in listed)
    ]:
        raise UserError(
            f"{checkpoint} lacks the weights {', '.join(missing[:5])}: it is not a whole {type(model).__name__}."
        )
    _compare_head(checkpoint, model)


def _check_files(checkpoint: str, folder: Path) -> None:
    """Refuses two tensors of one name in the parts of a model, and names files of weights that are not read."""
    files = weight_files(folder)
    seen: dict[str, str] = {}
    for file in files.read if len(files.read) > 1 else ():
        for name in tensors_in(file):
            if name in seen:
                raise UserError(
                    f"{checkpoint} has the tensor {name} twice, in {seen[name]} and {file.name}: fetch it again."
                )
            seen[name] = file.name
    if files.others:
        names = ", ".join(file.name for file in files.others)
        remark(f"{checkpoint} has files of weights that are not read, {names}: {files.read[0].name} is.")


def _compare_head(checkpoint: str, model: PreTrainedModel) -> None:
    """Says that a file has tensors of its own, such as an output embedding, which the config says are one."""
    wanted = model.get_expanded_tied_weights_keys(all_submodels=True)
    if apart := sorted({*wanted} - {*model.all_tied_weights_keys}):
        remark(
            f"{checkpoint} has another {apart[0]} than {wanted[apart[0]]}, though its config says that the two are one"
            " (tie_word_embeddings). Each is read as it is in the file."
        )


def check_finite(settings: Model, model: PreTrainedModel) -> None:
    """Refuses a model with a weight that is not finite, by raising a `UserError`."""
    for name, _ in model.named_parameters():
        if not torch.isfinite(stored_tensor(model, name)).all():
            raise UserError(
                f"The checkpoint {settings.checkpoint} has values that are not finite in {name}, as {model.dtype}: the"
                " file is damaged, the training diverged, or the type is too small for them."
            )
