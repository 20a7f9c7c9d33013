"""An adapter of peft, such as a LoRA, merged into the weights of its model.

peft only warns if tensors of an adapter fit nowhere, or if places for them stay empty. Both are refused here: what is
read would be the model without them. peft also merges an adapter of one of two places that share a matrix into both. So
the merged model must give the logits that the model gave with the adapter beside its weights.
"""

import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ffkv.base.errors import UserError
from ffkv.base.hub.commit import Commit
from ffkv.base.hub.fetch import local_model
from ffkv.base.lookup import is_file
from ffkv.base.process.libraries import listening, remark, replaced
from ffkv.model.checkpoint.checks import cannot_be_opened, words_of
from ffkv.model.checkpoint.config import configured_context
from ffkv.model.checkpoint.weights import listed
from ffkv.model.discover.probe_texts import MAX_TOKENS, embedded_tokens
from ffkv.model.placement import HALF, device_of
from ffkv.model.tap.hooks import forward

NAME = "default"  # peft's name of an adapter, a part of the names of its tensors
# Tensors that have a place for each layer and are stored once, or are computed.
SHARED = re.compile(r"vblora_vector_bank|prompt_encoder|\.tinylora_v\.|\.unilora_theta_d\.|vera_[AB]\.|\.ranknum\.")
# Entries of adapter_config.json that say who made it.
ABOUT = ("peft_version", "auto_mapping", "revision", "base_model_name_or_path", "task_type", "inference_mode")
LACKS = "its file lacks {}, which adapter_config.json asks for. Fetch it again, or save it again."
# How far logits may be off by rounding, as a share of the largest one. In half precision, merged weights are rounded anew.
ROUNDING, ROUNDING_OF_HALF = 1e-3, 0.05


def merge_adapter(model: PreTrainedModel, commit: Commit, checkpoint: str) -> PreTrainedModel:
    """Merges a PEFT adapter into the weights of a model, in the model's type.

    `model`: the model, whose weights change. `commit`: the adapter: a local folder, or a commit on the hub. `checkpoint`: the
    model's, as in the settings. Raises UserError if the adapter cannot be read, is of another model, or cannot be merged; or if
    the merged model computes something else than the model with the adapter beside its weights.
    """
    from peft import PeftModel

    source = Path(local_model(commit))
    _check_config(commit.repository, source, checkpoint)
    refused = f"The adapter {commit.repository} cannot be merged into this {type(model).__name__}"
    try:
        with listening("transformers", "peft"), _names_noted() as (missing, unexpected):
            adapted: Any = PeftModel.from_pretrained(model, str(source), revision=commit.read_at)
        if not hasattr(adapted, "merge_and_unload"):
            raise UserError(f"{refused}: it changes the text or the layers that the model reads, not its weights.")
        if problem := _misfit(model, missing, unexpected):
            raise UserError(f"{refused}: {problem}")
        ids, shared = _probe(model, adapted.eval()), _shared(adapted)
        unmerged = _logits(adapted, ids)
        limit = (ROUNDING_OF_HALF if model.dtype in HALF else ROUNDING) * float(unmerged.abs().max())
        if shared:  # in half precision, rounding would hide a small adapter
            with adapted.disable_adapter():
                limit = min(limit, float((unmerged - _logits(adapted, ids)).abs().max()) / 2)
        with listening("transformers", "peft"):
            merged = adapted.merge_and_unload(safe_merge=True)
        if problem := _difference(unmerged, _logits(merged, ids), limit, shared):
            raise UserError(f"{refused}: {problem}")
    except UserError:
        raise
    except Exception as error:  # the library raises many classes for a wrong folder, shape or kind of adapter
        raise UserError(f"{refused}: {cannot_be_opened(error) or _reason(error)}") from error
    if is_file(source / "tokenizer.json"):
        remark(
            f"The adapter {commit.repository} brings a tokenizer, which is not read: the text is encoded by that of the checkpoint."
        )
    return merged


@contextmanager
def _names_noted() -> Iterator[tuple[list[str], list[str]]]:
    """Notes the names that peft finds missing and unexpected, all of them: it returns none of them."""
    from peft import peft_model

    missing, unexpected, original = list[str](), list[str](), peft_model.set_peft_model_state_dict

    def note(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        tensors = dict(args[0].named_parameters(remove_duplicate=False))
        read = {id(tensor) for name, tensor in tensors.items() if name not in result.missing_keys}
        unread = (name for name in result.missing_keys if id(tensors.get(name)) not in read)
        missing.extend(n for n in unread if f".{NAME}." in f"{n}." and not SHARED.search(n))
        unexpected.extend(result.unexpected_keys)
        return result

    with replaced((peft_model, "set_peft_model_state_dict", note)):
        yield missing, unexpected


def _misfit(model: PreTrainedModel, missing: list[str], unexpected: list[str]) -> str:
    """Says what of an adapter does not fit the model, by the names of its tensors; "" if everything does."""
    if unexpected:
        layers = model.config.get_text_config(decoder=True).num_hidden_layers
        numbers = [int(number) for name in unexpected for number in re.findall(r"\.(\d+)\.", name)]
        deeper = max(numbers, default=0) >= layers
        cause = (
            f"It is of a model with more than {layers} layers."
            if deeper and not missing
            else "It may be of another model, or of a release of transformers that has other names for the layers."
        )
        return f"its file holds {_plain(unexpected)}, for which the model has no place. {cause}"
    return LACKS.format(_plain(missing)) if missing else ""


def _plain(names: list[str]) -> str:
    return listed(sorted({name.replace(f".{NAME}", "") for name in names}))


def _probe(model: PreTrainedModel, adapted: Any) -> Tensor:
    """Returns tokens from the whole vocabulary, among them those that the adapter names [row, token]."""
    named = getattr(adapted.peft_config[NAME], "trainable_token_indices", None) or []
    named = [*itertools.chain(*named.values())] if isinstance(named, dict) else named
    tokens = min(MAX_TOKENS, configured_context(model.config.get_text_config(decoder=True)) or MAX_TOKENS)
    ids = torch.linspace(0, embedded_tokens(model) - 1, 2 * tokens).long()
    own = torch.tensor(named[:tokens], dtype=torch.long)
    return torch.cat([own, ids[len(own) :]]).reshape(2, tokens)


def _logits(model: Any, ids: Tensor) -> Tensor:
    return forward(model, ids.to(device_of(model.get_input_embeddings()))).logits.float().cpu()


def _shared(adapted: Any) -> list[str]:
    """Names the matrices that an adapter changes and that two places of the model share."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    layers = {name: module for name, module in adapted.named_modules() if isinstance(module, BaseTunerLayer)}
    weights = {name: getattr(module.get_base_layer(), "weight", None) for name, module in layers.items()}
    uses = Counter(id(weight) for _, weight in adapted.named_parameters(remove_duplicate=False))
    return [name.removeprefix("base_model.model.") for name, weight in weights.items() if uses[id(weight)] > 1]


def _difference(unmerged: Tensor, merged: Tensor, limit: float, shared: list[str]) -> str:
    """Says that a merged model gives other logits than the model with the adapter beside its weights; "" if it does not."""
    error, largest = (float(each.abs().max()) for each in (merged - unmerged, unmerged))
    if not error > limit:
        return ""
    cause = (
        f"It changes {listed(shared)}, a matrix that is both input and output embedding, and peft merges into both what"
        " is meant for one. Give the model a matrix for each (tie_word_embeddings false, lm_head.weight a copy), save it,"
        " and set model.checkpoint to that folder."
        if shared
        else "Merge it with the release of peft that made it, and set model.checkpoint to the merged model."
    )
    return (
        f"merged, it gives logits that are off by {error / largest:.2g} of the largest one from those of the model with"
        f" the adapter beside its weights. {cause}"
    )


def _check_config(adapter: str, source: Path, checkpoint: str) -> None:
    """Refuses entries of adapter_config.json that this release of peft does not know, and names another model."""
    from dataclasses import fields

    from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING

    try:
        given = json.loads((source / "adapter_config.json").read_text(encoding="utf-8"))
        known = {field.name for field in fields(PEFT_TYPE_TO_CONFIG_MAPPING[given["peft_type"]])}
    except (OSError, ValueError, KeyError, TypeError):  # peft says what is wrong
        return
    base = str(given.get("base_model_name_or_path") or "")
    if base and Path(base).name.lower() != Path(checkpoint).name.lower():
        remark(
            f"The adapter {adapter} names {base} as the model that it was trained on, and is merged into {checkpoint}. Only"
            " the shapes tell whether that is the same model."
        )
    unknown = [name for name, value in given.items() if name not in known and name not in ABOUT and value]
    if unknown:
        raise UserError(
            f"The adapter {adapter} sets {', '.join(sorted(unknown))} in adapter_config.json, which this release of"
            " peft does not know: it would be left out. Update peft (`pip install -U peft`), or merge the adapter with the"
            " release that made it."
        )


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, KeyError):  # a module that was trained as a whole
        return LACKS.format(error.args[0])
    sizes = re.search(
        r"size mismatch for (\S+): .*?torch\.Size\(\[([\d, ]*)\]\) from checkpoint.*?torch\.Size\(\[([\d, ]*)\]\)", text
    )
    if not sizes:
        return words_of(error)
    name, stored, expected = sizes.groups()
    remedy = (
        " Tokens were added to the model before it was trained. Add them to the model (`resize_token_embeddings`), merge the"
        " adapter (`merge_and_unload`), save the model with its tokenizer, and set model.checkpoint to that folder."
        if re.search(r"embed|lm_head|wte", name)
        else " It is of a model of another size, or adapter_config.json is that of another adapter (r, rank_pattern)."
    )
    return (
        f"its tensor {name.replace(f'.{NAME}', '')} has the size ({stored}), where the model has ({expected}).{remedy}"
    )
