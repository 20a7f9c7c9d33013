"""An adapter of peft, such as a LoRA, merged into the weights of its model.

peft only warns if tensors of an adapter fit nowhere, or if places for them stay empty. Both are refused here: what is
read would be the model without them.
"""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from transformers import PreTrainedModel

from ffkv.base.errors import UserError
from ffkv.base.hub.commit import Commit
from ffkv.base.hub.fetch import local_model
from ffkv.base.lookup import is_file
from ffkv.base.process.remarks import listening, remark
from ffkv.model.checkpoint.failures import cannot_be_opened, words_of
from ffkv.model.checkpoint.leftovers import listed

NAME = "default"  # peft's name of an adapter, a part of the names of its tensors
# Tensors that have a place for each layer and are stored once, or are computed.
SHARED = re.compile(r"vblora_vector_bank|prompt_encoder|\.tinylora_v\.|\.unilora_theta_d\.|vera_[AB]\.")
# Entries of adapter_config.json that say who made it.
ABOUT = ("peft_version", "auto_mapping", "revision", "base_model_name_or_path", "task_type", "inference_mode")


class _Names(NamedTuple):
    """Names of tensors that do not fit."""

    missing: list[str]
    unexpected: list[str]


def merge_adapter(model: PreTrainedModel, commit: Commit) -> PreTrainedModel:
    """Merges a PEFT adapter into the weights of a model, in the model's type.

    Args:
        model: the model, whose weights change.
        commit: the adapter: a local folder, or a commit on the hub.
    Raises:
        UserError: the adapter cannot be read, is of another model, or cannot be merged.
    """
    from peft import PeftModel

    source = Path(local_model(commit))
    _check_config(commit.repository, source)
    refused = f"The adapter {commit.repository} cannot be merged into this {type(model).__name__}"
    try:
        with listening("transformers", "peft"), _names_noted() as names:
            adapted: Any = PeftModel.from_pretrained(model, str(source), revision=commit.read_at)
        if not hasattr(adapted, "merge_and_unload"):
            raise UserError(f"{refused}: it changes the text or the layers that the model reads, not its weights.")
        if problem := _misfit(model, names):
            raise UserError(f"{refused}: {problem}")
        with listening("transformers", "peft"):
            merged = adapted.merge_and_unload(safe_merge=True)
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
def _names_noted() -> Iterator[_Names]:
    """Notes the names that peft finds missing and unexpected, all of them: it returns none of them."""
    from peft import peft_model

    found, original = _Names([], []), peft_model.set_peft_model_state_dict

    def note(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        found.missing.extend(n for n in result.missing_keys if f".{NAME}." in f"{n}." and not SHARED.search(n))
        found.unexpected.extend(result.unexpected_keys)
        return result

    peft_model.set_peft_model_state_dict = note
    try:
        yield found
    finally:
        peft_model.set_peft_model_state_dict = original


def _misfit(model: PreTrainedModel, names: _Names) -> str:
    """Says what of an adapter does not fit the model; "" if everything does."""
    if names.unexpected:
        layers = model.config.get_text_config(decoder=True).num_hidden_layers
        numbers = [int(number) for name in names.unexpected for number in re.findall(r"\.(\d+)\.", name)]
        deeper = max(numbers, default=0) >= layers
        cause = (
            f"It is of a model with more than {layers} layers."
            if deeper and not names.missing
            else "It may be of another model, or of a release of transformers that has other names for the layers."
        )
        return f"its file holds {_plain(names.unexpected)}, for which the model has no place. {cause}"
    if names.missing:
        return f"its file lacks {_plain(names.missing)}, which adapter_config.json asks for. Fetch it again, or save it again."
    return ""


def _plain(names: list[str]) -> str:
    return listed(sorted({name.replace(f".{NAME}", "") for name in names}))


def _check_config(adapter: str, source: Path) -> None:
    """Refuses entries of adapter_config.json that this release of peft does not know and would drop."""
    from dataclasses import fields

    from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING

    try:
        given = json.loads((source / "adapter_config.json").read_text(encoding="utf-8"))
        known = {field.name for field in fields(PEFT_TYPE_TO_CONFIG_MAPPING[given["peft_type"]])}
    except (OSError, ValueError, KeyError, TypeError):  # peft says what is wrong
        return
    unknown = [name for name, value in given.items() if name not in known and name not in ABOUT and value]
    if unknown:
        raise UserError(
            f"The adapter {adapter} sets {', '.join(sorted(unknown))} in adapter_config.json, which this release of"
            " peft does not know: it would be left out. Update peft (`pip install -U peft`), or merge the adapter with the"
            " release that made it."
        )


def _reason(error: Exception) -> str:
    """Says in words why an adapter does not fit, from what peft or torch raised."""
    text = " ".join(str(error).split())
    if isinstance(error, KeyError):  # a module that was trained as a whole
        return (
            f"its file lacks {error.args[0]!s}, which adapter_config.json asks for. Fetch it again, or save it again."
        )
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
