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
from ffkv.base.settings import EMBEDDED, Model
from ffkv.model.checkpoint.forms import check_gguf, refuse_other_forms, unpacking
from ffkv.model.discover.find import SECOND_MATRIX_NAMES
from ffkv.model.fairseq.dictionary import is_fairseq
from ffkv.model.placement.resident import stored_tensor

MOST_LAYERS = 1000


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
    if checkpoint == EMBEDDED and not path.exists():
        raise UserError(
            "The embedded model is not trained yet. Run snakemake or `ffkv train`, then name the checkpoint folder that it wrote."
        )
    if path.is_dir() and gguf:
        check_gguf(checkpoint, gguf, [file.name for file in files_in(path)])
    elif path.is_dir():
        refuse_other_forms(checkpoint, path)
        if not (path / "config.json").is_file() and not is_fairseq(path):
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


def _config_of(settings: Model, commit: Commit) -> dict[str, Any]:
    """Returns the config as it is written; empty if it cannot be read, which the caller meets and tells."""
    from transformers import PreTrainedConfig

    try:
        config, _ = PreTrainedConfig.get_config_dict(settings.checkpoint, revision=commit.read_at)
    except Exception:  # whatever is wrong with it, the caller has an error to tell
        return {}
    return config if isinstance(config, dict) else {}


def check_weights(settings: Model, model: PreTrainedModel, info: dict[str, Any]) -> None:
    """Refuses tensors of another shape, feed-forward layers left over, packed and missing weights."""
    checkpoint = f"The checkpoint {settings.checkpoint}"
    if info["mismatched_keys"]:
        name, stored, expected = sorted(info["mismatched_keys"])[0]
        raise UserError(
            f"{checkpoint} has the tensor {name} of shape {tuple(stored)}, where a {type(model).__name__} of its config has {tuple(expected)}."
        )
    if surplus := [name for name in sorted(info["unexpected_keys"]) if _is_a_further_layer(model, name)]:
        raise UserError(
            f"{checkpoint} holds feed-forward layers that its config does not have, {surplus[0]} for one: check its number of layers."
        )
    packed = [name for name, parameter in model.named_parameters() if not parameter.is_floating_point()]
    if packed:
        raise UserError(
            f"{checkpoint} hides its weights, {packed[0]} for one. Use an unquantised checkpoint of the model."
        )
    if info["missing_keys"]:
        raise UserError(
            f"{checkpoint} lacks the weights {', '.join(sorted(info['missing_keys'])[:5])}: it is not a whole {type(model).__name__}."
        )


def _is_a_further_layer(model: PreTrainedModel, name: str) -> bool:
    """Tells whether a tensor without a place is a second matrix of one of the model's own lists of blocks."""
    # Others are left out rightly: the encoder of a model whose decoder is read, a vision tower.
    blocks = re.match(r"(.+?)\.\d+\.", name)
    if not blocks or not re.search(SECOND_MATRIX_NAMES, name.removesuffix(".weight")):
        return False
    try:
        return isinstance(model.get_submodule(blocks[1]), torch.nn.ModuleList)
    except AttributeError:
        return False


def check_finite(settings: Model, model: PreTrainedModel) -> None:
    """Refuses a model with a weight that is not finite, by raising a `UserError`."""
    for name, _ in model.named_parameters():
        if not torch.isfinite(stored_tensor(model, name)).all():
            raise UserError(
                f"The checkpoint {settings.checkpoint} has values that are not finite in {name}, as {model.dtype}: the"
                " file is damaged, the training diverged, or the type is too small for them."
            )
