"""What the files of a model hold and the model does not use: refused if it changes what is computed, else named.

A library leaves out every tensor that has no place in the class that the config names, and only warns of it. A tensor is
harmless if it is one of `KINDS`, if the class itself lists it as unused, or if it is a bias of zeros.
"""

import re
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ffkv.base.errors import UserError
from ffkv.base.process.remarks import remark
from ffkv.model.discover.find import SECOND_MATRIX_NAMES

NAMED = 3  # tensors that a sentence names
Read = Callable[[Collection[str]], Mapping[str, Tensor]]  # names to those tensors that the files have


def _are_masks(model: PreTrainedModel, tensor: Tensor) -> bool:
    return tensor.ndim != 1 or tensor.numel() == 1


def _are_the_models(model: PreTrainedModel, tensor: Tensor) -> bool:
    """Tells whether frequencies are those of the model, up to half precision, in which older files store them."""
    own = [buffer for name, buffer in model.named_buffers() if name.endswith("inv_freq") and not buffer.is_meta]
    return not own or any(
        each.shape == tensor.shape and torch.allclose(each.float().cpu(), tensor.float(), rtol=1e-2) for each in own
    )


def _are_zero(model: PreTrainedModel, tensor: Tensor) -> bool:
    return not tensor.any()


def _are_one(model: PreTrainedModel, tensor: Tensor) -> bool:
    return bool((tensor == 1).all())


def _is_one_number(model: PreTrainedModel, tensor: Tensor) -> bool:
    return tensor.numel() == 1


class Kind(NamedTuple):
    """Tensors that a model can do without."""

    names: str  # regular expression of their whole names
    what: str  # in words, and why nothing is lost
    holds: Callable[[PreTrainedModel, Tensor], bool] | None = None  # what must be true of each tensor
    in_blocks: bool = False  # whether they may lie in a block that is read


PART, OTHER = r"(.+\.)?[^.]*", r"[^.]*(\..+)?"
TOWERS = r"(visi(on|ual)|image|audio|speech|video|modal|projector|connector|qformer|resampler|vqmodel|talker|2wav)"
KINDS = (
    Kind(r"(.+\.)?inv_freq", "frequencies of rotary positions, which follow from the config", _are_the_models, True),
    Kind(r"(.+\.)?(cos|sin)_cached", "tables of rotary positions, which follow from the config", in_blocks=True),
    Kind(
        r"(.+\.)?(position_ids|token_type_ids|relative_position_index|embed_positions\.weights)",
        "numbers and tables of positions, which are formulas",
        in_blocks=True,
    ),
    Kind(
        r"(.+\.)?(cross)?att(n|ention)\.(bias|masked_bias|causal_mask)",
        "masks of attention, which the model makes itself",
        _are_masks,
        True,
    ),
    Kind(r"(.+\.)?(k|v|kv)_(cache_)?scale", "scales of a packed cache", _is_one_number, True),
    Kind(r"(.+\.)?bias|final_logits_bias", "biases that are zero", _are_zero, True),
    Kind(r"rope_freqs\.weight", "factors of rotary positions that are one", _are_one),
    Kind(r"(.+\.)?version", "a number of a version"),
    Kind(rf"{PART}{TOWERS}{OTHER}", "a part for images, sound or video: text alone is read"),
    Kind(r"((model|transformer)\.)?(encoder\..+|shared\.weight)", "an encoder: the decoder alone is read"),
    Kind(r"(.+\.)?(mtp|nextn|medusa)[^.]*\..+", "a head that predicts several tokens ahead"),
    Kind(
        r"(.+\.)?(v_head|value_head|reward_head|score|classifier|qa_outputs|multiple_choice_head|pooler|seq_relationship)\..+",
        "a head for another task",
    ),
)


def sort_out(files: str, names: Collection[str], model: PreTrainedModel, read: Read) -> None:
    """Names what is left over and harmless in remarks, one for each kind.

    Args:
        files: what holds the tensors, in words, such as "The checkpoint gpt2".
        names: of the tensors that no one uses.
        model: the model that was made from the files.
        read: reads tensors by name.
    Raises:
        UserError: leaving out one of them changes what the model computes; names it and the likely cause.
    """
    given = read(names) if names else {}
    kinds = {name: _kind(model, name, given.get(name)) for name in sorted(names)}
    if lost := [name for name, kind in kinds.items() if not kind]:
        raise UserError(
            f"{files} holds {listed(lost)}, for which a {type(model).__name__} of its config has no place. {_cause(model, lost)}"
        )
    for what in dict.fromkeys(kinds.values()):
        remark(f"{files} holds {listed([name for name in kinds if kinds[name] == what])}, which is not read: {what}.")


def listed(names: list[str]) -> str:
    """Names the first tensors of a list, and counts the others."""
    shown = ", ".join(names[:NAMED])
    return shown if len(names) <= NAMED else f"{shown} and {len(names) - NAMED:,} more tensors"


def _kind(model: PreTrainedModel, name: str, tensor: Tensor | None) -> str:
    """Returns why a model can do without a tensor; "" if it cannot, or if nobody knows."""
    inside = _is_in_a_block(model, name)
    for kind in KINDS:
        fits = re.fullmatch(kind.names, name) and (kind.in_blocks or not inside)
        if fits and (not kind.holds or (tensor is not None and kind.holds(model, tensor))):
            return kind.what
    # A part of a name at most: "attn.bias" is no "c_attn.bias".
    listed = (rf"(^|\.)({pattern})" for pattern in model._keys_to_ignore_on_load_unexpected or ())
    if any(re.search(pattern, name) for pattern in listed):
        return f"transformers lists it as unused by a {type(model).__name__}"
    return ""


def _is_in_a_block(model: PreTrainedModel, name: str) -> bool:
    """Tells whether a tensor would belong to a block of the model, as its name says."""
    # Files of a model without its head leave the first part of names out, those of a larger model have one more.
    for full in (name, f"{model.base_model_prefix}.{name}", name.partition(".")[2]):
        module: nn.Module = model
        for part in full.split("."):
            if isinstance(module, nn.ModuleList) and part.isdigit():
                return True
            child = dict(module.named_children()).get(part)
            if child is None:
                break
            module = child
    return False


def _cause(model: PreTrainedModel, names: list[str]) -> str:
    """Says why tensors are likely to be there."""
    if further := [name for name in names if _is_a_further_layer(model, name)]:
        return f"These are feed-forward layers that its config does not have, {further[0]} for one: check its number of layers."
    rules = {
        r"bias$": "Its config does not say that the model has these biases: set attention_bias, mlp_bias or what its class"
        " calls them in config.json, or use the class that the file was saved with.",
        r"lora_|\.adapter": "An adapter was saved beside the weights: merge it and save the model again.",
        r"inv_freq|rope_": "Its positions are turned by other angles than the config says: check rope_theta and"
        " rope_scaling (rope_parameters) in config.json, or use the model that the file was made from.",
        r"scale|qweight|qzeros|absmax|g_idx": "Its weights are packed, and the config does not say how: use the model that"
        " it was made from.",
    }
    known = (text for pattern, text in rules.items() if re.search(pattern, names[0]))
    return next(known, "What is computed with them would be lost: the config may be that of another model or class.")


def _is_a_further_layer(model: PreTrainedModel, name: str) -> bool:
    """Tells whether a tensor without a place is a second matrix of one of the model's own lists of blocks."""
    blocks = re.match(r"(.+?)\.\d+\.", name)
    if not blocks or not re.search(SECOND_MATRIX_NAMES, name.removesuffix(".weight")):
        return False
    try:
        return isinstance(model.get_submodule(blocks[1]), nn.ModuleList)
    except AttributeError:
        return False
