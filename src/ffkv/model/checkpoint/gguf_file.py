"""A file in the GGUF form: read once, and compared with the model that transformers makes from it.

transformers reads the file for the config, for the weights and for the tokenizer, each time number by number, and leaves
out tensors and entries for which it has no name. `read_once` reads it once and quickly.
"""

import contextlib
import functools
import hashlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import save
from transformers import PreTrainedModel, modeling_gguf_pytorch_utils
from transformers.integrations.gguf.gguf_config_mapping import GGUF_CONFIG_ARCHS
from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, TensorProcessor, get_gguf_hf_weights_map

from ffkv.base.errors import UserError
from ffkv.base.process.remarks import remark
from ffkv.model.checkpoint.config import rotations
from ffkv.model.checkpoint.leftovers import sort_out

STRING, ARRAY = gguf.GGUFValueType.STRING, gguf.GGUFValueType.ARRAY
# Entries about an architecture that change what is computed, and their names in configs of transformers.
COMPUTED = {
    "rope.freq_base": ("rope_theta",),
    "rope.freq_base_swa": ("rope_theta",),
    "rope.scaling.factor": ("factor",),
    "rope.scale_linear": ("factor",),
    "attn_logit_softcapping": ("attn_logit_softcapping",),
    "final_logit_softcapping": ("final_logit_softcapping",),
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps", "norm_eps", "layer_norm_epsilon"),
    "attention.layer_norm_epsilon": ("layer_norm_epsilon", "layer_norm_eps", "norm_epsilon", "norm_eps"),
    "attention.sliding_window": ("sliding_window",),
    "attention.key_length": ("head_dim", "global_head_dim"),
    "expert_used_count": ("num_experts_per_tok",),
    "expert_weights_scale": ("routed_scaling_factor",),
    "logit_scale": ("logit_scale", "logits_scaling"),
    "embedding_scale": ("embedding_multiplier",),
    "residual_scale": ("residual_multiplier",),
    "attention.scale": ("attention_multiplier",),
}
TRIED = 8, 256  # tensors, and rows of each, that tell how long a file takes to unpack
# Entries that shapes of tensors repeat, or that say nothing about the computation.
SAID_ELSEWHERE = ("vocab_size", "attention.value_length", "rope.dimension_count", "expert_feed_forward_length")


class QuickReader(gguf.GGUFReader):
    """A reader of the library that reads each list at once, not item by item."""

    def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> np.ndarray:
        # A plain array: each piece of a memory map costs ten times as much.
        size = np.dtype(dtype).itemsize * int(count)
        found = np.asarray(self.data)[offset : offset + size].view(dtype)
        return found.view(found.dtype.newbyteorder(override_order or self.byte_order))

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> tuple[int, list[Any], list[int], list[Any]]:
        kind = self._get(orig_offs, np.uint32)
        if raw_type != ARRAY or not (int(kind[0]) == STRING or int(kind[0]) in self.gguf_scalar_to_np):
            return super()._get_field_parts(orig_offs, raw_type)
        length, item = self._get(orig_offs + 4, np.uint64), gguf.GGUFValueType(int(kind[0]))
        begin, count = orig_offs + 12, int(length[0])
        if count > len(self.data):
            raise ValueError("the file ends inside a list")
        if item == STRING:
            items, size = self._strings(begin, count)
        else:
            numbers = self._get(begin, self.gguf_scalar_to_np[item], count)
            items, size = [*numbers.reshape(-1, 1)], numbers.nbytes
        if len(items) < count:
            raise ValueError("the file ends inside a list")
        return 12 + size, [kind, length, *items], [*range(2, 2 + count)], [ARRAY, item] if count else [ARRAY]

    def _strings(self, begin: int, count: int) -> tuple[list[Any], int]:
        """Returns the bytes of so many strings, fewer if the file ends, and the bytes that they take in the file."""
        order: Any = "big" if self.endianess == gguf.GGUFEndian.BIG else "little"
        strings: list[Any] = []
        data, end = np.asarray(self.data), begin
        while len(strings) < count and end + 8 <= len(data):
            start = end + 8
            end = start + int.from_bytes(data[end:start].tobytes(), order)
            strings.append(data[start:end])
        return strings, end - begin


@contextlib.contextmanager
def read_once() -> Iterator[None]:
    """Lets all that opens a file in the GGUF form within share one reader, and one table of the names of its tensors."""
    shared = functools.lru_cache(maxsize=1)(QuickReader)
    own = {
        (gguf, "GGUFReader"): lambda path: shared(str(path)),  # a function in the place of a class
        # transformers makes the same table again for each module of a model, which took most of the time of loading.
        (gguf, "get_tensor_name_map"): functools.lru_cache(maxsize=1)(gguf.get_tensor_name_map),
        (modeling_gguf_pytorch_utils, "tqdm"): lambda tensors, desc: tensors,  # a bar that no setting switches off
    }
    before = {place: getattr(*place) for place in own}
    try:
        for place, value in own.items():
            setattr(*place, value)
        yield
    finally:
        for place, value in before.items():
            setattr(*place, value)


def unpacking_seconds(path: Path, parameters: int) -> float:
    """Estimates the seconds of the processor that `ffkv unpack` takes for the weights: some are unpacked and hashed here."""
    tensors, (count, rows), numbers = QuickReader(path).tensors, TRIED, 0
    start = time.process_time()
    for tensor in tensors[:: len(tensors) // count + 1]:
        part = tensor.data.reshape(-1, tensor.data.shape[-1])[:rows]
        values = torch.from_numpy(np.array(gguf.dequantize(part, tensor.tensor_type)))
        hashlib.sha256(save({tensor.name: values}))
        numbers += values.numel()
    return (time.process_time() - start) * parameters / numbers


def compare_with_file(path: Path, model: PreTrainedModel) -> None:
    """Names what a file in the GGUF form holds and the model does not use.

    Args:
        path: the file.
        model: what transformers made from it.
    Raises:
        UserError: a tensor or an entry that changes what is computed was left out; names it.
    """
    reader = gguf.GGUFReader(path)
    architecture = str(reader.fields["general.architecture"].contents())
    # Of the other architectures, transformers names what it leaves out, and `check_weights` has met it.
    if architecture not in GGUF_CONFIG_ARCHS:
        _compare_tensors(path, architecture, reader, model)
    entries = {name: field.contents() for name, field in reader.fields.items() if len(field.data) == 1}
    _compare_entries(path, architecture, entries, model)


def _compare_tensors(path: Path, architecture: str, reader: gguf.GGUFReader, model: PreTrainedModel) -> None:
    processor = TENSOR_PROCESSORS.get(architecture, TensorProcessor)(config={})
    places = get_gguf_hf_weights_map(model, processor)
    # Tensors of all experts have places without an ending.
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    left = [name for name in tensors if name not in places and name.removesuffix(".weight") not in places]
    sort_out(
        f"The file {path.name}",
        left,
        model,
        lambda names: {
            name: torch.from_numpy(np.array(gguf.dequantize(tensors[name].data, tensors[name].tensor_type)))
            for name in names
        },
    )


def _compare_entries(path: Path, architecture: str, entries: dict[str, Any], model: PreTrainedModel) -> None:
    from transformers.integrations.ggml import GGUF_CONFIG_MAPPING

    config = model.config.get_text_config(decoder=True)
    known = {name for mapping in dict[str, Any](GGUF_CONFIG_MAPPING).values() for name in mapping}
    # The file has one entry for all layers, where a config may have one for each type of layer.
    turned = [{"factor": 1.0, **rotation} for rotation in rotations(config)] or [{"factor": 1.0}]
    unread = []
    for full, value in entries.items():
        prefix, _, name = full.partition(".")
        if prefix != architecture or name in SAID_ELSEWHERE:
            continue
        if name not in COMPUTED:
            unread += [full] if name not in known and architecture not in GGUF_CONFIG_ARCHS else []
            continue
        found = [
            (own, each)
            for own in COMPUTED[name]
            for each in (*(rotation.get(own) for rotation in turned), getattr(config, own, None))
            if isinstance(each, int | float)
        ]
        if not any(np.isclose(each, value, rtol=1e-3, atol=0) for _, each in found):
            shown = ", ".join(f"{own} {each}" for own, each in found) or "no such entry"
            raise UserError(
                f"The file {path.name} says that {full} is {value:g}, and transformers makes a {type(model).__name__} with"
                f" {shown}: it would compute something else. Use the model that the file was made from, as safetensors."
            )
    if unread:
        remark(f"The file {path.name} has entries that are not read: {', '.join(unread)}.")
