"""A file in the GGUF form: read once, and compared with the model that transformers makes from it.

transformers reads the file for the config, for the weights and for the tokenizer, number by number. `read_once` reads it once.

transformers leaves out tensors and entries for which it has no name, and takes the rest of a config from the defaults of a
class. So each entry about the architecture is read, or the model computes with its number, or it says nothing about the
computation, or it is refused. An entry that a file leaves out has the number that llama.cpp, for which the form is made,
then takes: see `load_hparams` and `load_arch_hparams` there.

transformers also takes the class of a tokenizer by its kind, and leaves out some of what the file says of it. So what it
makes is made to follow the file. A file names the way in which it splits a text before it merges: `gguf.toml` has the ways
that transformers does not know. They are those of `llama-vocab.cpp` of llama.cpp.
"""

import contextlib
import functools
import hashlib
import json
import re
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import save
from tokenizers import Regex, decoders, pre_tokenizers
from transformers import PreTrainedModel, PreTrainedTokenizerFast, modeling_gguf_pytorch_utils
from transformers.integrations.ggml import GGUF_CONFIG_MAPPING
from transformers.integrations.gguf.gguf_config_mapping import GGUF_CONFIG_ARCHS
from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS
from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, TensorProcessor, get_gguf_hf_weights_map

from ffkv.base.errors import UserError
from ffkv.base.process.libraries import remark, replaced
from ffkv.model.checkpoint.config import rotations
from ffkv.model.checkpoint.weights import sort_out

STRING, ARRAY = gguf.GGUFValueType.STRING, gguf.GGUFValueType.ARRAY
TABLES = tomllib.loads((files(__package__) / "gguf.toml").read_text(encoding="utf-8"))
OF_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
UNNAMED = ("", "default")
BLANK = "▁"  # as vocabularies of SentencePiece write it
REMEDY = "Use the model that the file was made from, as safetensors."
TRIED = 8, 256  # tensors, and rows of each, that tell how long a file takes to unpack


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
    with replaced(
        (gguf, "GGUFReader", lambda path: shared(str(path))),  # a function in the place of a class
        # transformers makes the same table again for each module of a model, which took most of the time of loading.
        (gguf, "get_tensor_name_map", functools.lru_cache(maxsize=1)(gguf.get_tensor_name_map)),
        (modeling_gguf_pytorch_utils, "tqdm", lambda tensors, desc: tensors),  # a bar that no setting switches off
    ):
        yield


def unpacking_seconds(path: Path, parameters: int) -> float:
    """Estimates the seconds of the processor that `ffkv unpack` takes for the weights: some are unpacked and hashed here."""
    tensors, (count, rows), numbers = QuickReader(path).tensors, TRIED, 0
    start = time.process_time()
    for tensor in tensors[:: len(tensors) // count + 1]:
        values = _numbers(tensor, rows)
        hashlib.sha256(save({tensor.name: values}))
        numbers += values.numel()
    return (time.process_time() - start) * parameters / numbers


def finish_model(path: Path, model: PreTrainedModel) -> None:
    """Names what a file in the GGUF form holds and the `model` that transformers made from it does not use.

    Takes from the model the notes that its weights were packed: they are plain ones now. Raises UserError if a tensor or an
    entry that changes what is computed was left out; names it.
    """
    of_model = ("hf_quantizer", "quantization_method", "_weight_conversions")
    for holder, names in ((model.config, ("quantization_config",)), (model, of_model)):
        for name in {*names} & {*vars(holder)}:
            delattr(holder, name)
    reader = gguf.GGUFReader(path)
    architecture = str(reader.fields["general.architecture"].contents())
    # Of the other architectures, transformers names what it leaves out, and `check_weights` has met it.
    if architecture not in GGUF_CONFIG_ARCHS:
        places = get_gguf_hf_weights_map(model, TENSOR_PROCESSORS.get(architecture, TensorProcessor)(config={}))
        tensors = {tensor.name: tensor for tensor in reader.tensors}
        # Tensors of all experts have places without an ending.
        left = [name for name in tensors if name not in places and name.removesuffix(".weight") not in places]
        sort_out(f"The file {path.name}", left, model, lambda names: {name: _numbers(tensors[name]) for name in names})
    entries = {
        name: field.contents()
        for name, field in reader.fields.items()
        if not name.startswith("tokenizer.") or len(field.data) == 1
    }
    compare_entries(path.name, architecture, entries, model)


def _numbers(tensor: gguf.ReaderTensor, rows: int | None = None) -> torch.Tensor:
    """Unpacks a tensor of a file, or its first rows."""
    part = tensor.data.reshape(-1, tensor.data.shape[-1])[:rows] if rows else tensor.data
    return torch.from_numpy(np.array(gguf.dequantize(part, tensor.tensor_type)))


def compare_entries(file: str, architecture: str, entries: Mapping[str, Any], model: PreTrainedModel) -> None:
    """Refuses a file with an entry about its architecture that the model does not compute with.

    `file`: its name. `architecture`: what it says that it is. `entries`: by name; long lists about something else may be missing.
    `model`: what transformers made from it. The `UserError` names the entry, its number and that of the model.
    """
    given = {
        name.removeprefix(f"{architecture}."): value
        for name, value in entries.items()
        if name.startswith(f"{architecture}.")
    }
    own_name = re.sub(r"\W|_", "", architecture)  # transformers writes "qwen2_moe" for "qwen2moe"
    mappings = {re.sub("_", "", name): mapping for name, mapping in dict[str, Any](GGUF_CONFIG_MAPPING).items()}
    read = {name for name, own in mappings.get(own_name, {}).items() if own is not None}
    measured, unread = _measured(model), []
    for name, stored in {**given, **_left_out(architecture, given)}.items():
        value = _in_words_of_configs(name, stored, model)
        found = [(own, each) for own in TABLES["computed"].get(name, ()) for each in _own(own, name, measured, model)]
        if name in (*TABLES["shapes"], *TABLES["about"]) or any(_same(each, value) for _, each in found):
            continue
        if _is_idle(name, value, given) and all(_is_idle(name, each, given) for _, each in found):
            continue
        if (name in read and (not found or isinstance(value, list))) or (name not in given and not found):
            continue
        if name not in TABLES["computed"]:
            unread.append(f"{architecture}.{name} ({_shown(stored)})")
            continue
        says = (
            f"says that {architecture}.{name} is"
            if name in given
            else f"leaves out {architecture}.{name}, for which llama.cpp takes"
        )
        shown = ", ".join(dict.fromkeys(f"{own} {_shown(each)}" for own, each in found)) or "no such entry"
        raise UserError(
            f"The file {file} {says} {_shown(stored)}, and transformers makes a {type(model).__name__} with {shown}: it would"
            f" compute something else. {REMEDY}"
        )
    if unread:
        raise UserError(
            f"The file {file} has entries that transformers does not read, and nobody knows what they change:"
            f" {', '.join(unread)}. {REMEDY}"
        )


def _left_out(architecture: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the numbers that llama.cpp takes for entries that a file may leave out."""
    sizes = ("embedding_length", "attention.head_count", "attention.key_length")
    width, heads, head = (given.get(name, 0) for name in sizes)
    numbers = all(isinstance(each, int) for each in (width, heads, head))
    if architecture in TABLES["whole_architectures"] or not numbers or not 0 < heads <= width:
        return {}
    of_width = width // heads
    head = head or of_width
    scaled = of_width if given.get("block_count") == TABLES["largest"].get(architecture) else head
    taken = {"rope.freq_base": 10_000.0, "rope.dimension_count": head, "attention.scale": scaled**-0.5}
    return {name: value for name, value in taken.items() if name not in given}


def _measured(model: PreTrainedModel) -> dict[str, list[Any]]:
    """Returns what a model computes with and no config says by one name."""
    config = model.config.get_text_config(decoder=True)
    kinds, width, heads = getattr(config, "layer_types", None), config.hidden_size, config.num_attention_heads
    scales = {each.scaling for each in model.modules() if isinstance(getattr(each, "scaling", None), float)}
    turned = [buffer for name, buffer in model.named_buffers() if name.endswith("inv_freq") and "original" not in name]
    return {
        "rotated dimensions": [*{2 * len(buffer) for buffer in turned}],
        "scale of attention": [*scales],
        "layers with a window": [[kind == "sliding_attention" for kind in kinds]] if kinds else [],
        "width of a head": [] if _attributes(config, "head_dim") else [width // heads],
        "heads of keys": [] if _attributes(config, "num_key_value_heads") else [heads],
    }


def _own(own: str, name: str, measured: Mapping[str, list[Any]], model: PreTrainedModel) -> list[Any]:
    """Returns the numbers and words that a model has under a name; of an entry about layers with a window, those of such."""
    config = model.config.get_text_config(decoder=True)
    whole = next(iter(rotations(config)), {})
    kind = "sliding_attention" if name.endswith("_swa") else "full_attention"
    turned = {"factor": 1.0, **whole.get(kind, whole)} if name.startswith("rope.") else {}
    values = (*measured.get(own, []), turned.get(own), *_attributes(config, own))
    return [each for each in values if isinstance(each, int | float | str | list)]


def _attributes(config: Any, name: str) -> list[Any]:
    """Returns what a config has under a name, of each layer if they differ; [] if nothing."""
    try:
        value = getattr(config, name, None)
    except RuntimeError:  # transformers refuses to name one for all layers
        return [getattr(each, name, None) for each in config.per_layer_config]
    return [] if value is None else [value]


def _in_words_of_configs(name: str, value: Any, model: PreTrainedModel) -> Any:
    """Returns the number of an entry as configs have it."""
    if name == "attention.sliding_window_pattern":
        layers = range(model.config.get_text_config(decoder=True).num_hidden_layers)
        return [number % value < value - 1 for number in layers if value] if isinstance(value, int) else value
    if name == "expert_gating_func":
        return TABLES["gatings"].get(str(value), value)
    same = isinstance(value, list) and len({*map(repr, value)}) == 1
    return value[0] if same else value


def _is_idle(name: str, value: Any, given: Mapping[str, Any]) -> bool:
    """Tells whether nothing is computed with a number."""
    if name == "attention.sliding_window" and isinstance(value, int) and value >= given.get("context_length", np.inf):
        return True
    of_yarn = re.match(r"rope\.scaling\.(yarn_|original)", name)
    if of_yarn and given.get("rope.scaling.type") not in ("yarn", "longrope"):
        return True
    none = not any(value) if isinstance(value, list) else not value
    return value in TABLES["idle"].get(name, ()) or (none and name != "attention.causal")


def _same(own: Any, value: Any) -> bool:
    if isinstance(own, list | str) or isinstance(value, list | str):
        return own == value
    return bool(np.isclose(own, value, rtol=1e-3, atol=0))


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, int | float) else str(value)[:100]


def read_entries(path: Path) -> dict[str, Any]:
    """Reads what a file says of its tokenizer, without its lists.

    Raises UserError if it splits texts in a way that nobody here knows, has a token twice, or an entry that nobody reads.
    """
    fields = gguf.GGUFReader(path).fields
    said = {
        name.removeprefix("tokenizer."): field.contents() if len(field.data) == 1 else True
        for name, field in fields.items()
        if name.startswith("tokenizer.")
    }
    if unread := [name for name, value in said.items() if value and not re.fullmatch(TABLES["of_tokenizer"], name)]:
        raise UserError(
            f"The file {path.name} has entries of its tokenizer that nobody here reads: tokenizer.{', tokenizer.'.join(unread)}."
            f" Texts may get other ids without them. {REMEDY}"
        )
    way = str(said.get("ggml.pre", ""))
    if said.get("ggml.model") == "gpt2" and way not in (
        *UNNAMED,
        *TABLES["splits"],
        *TABLES["same"],
        *GGUF_PRE_TOKENIZER_SPLITS,
    ):
        raise UserError(
            f"The file {path.name} splits texts in a way that neither transformers nor ffkv knows: tokenizer.ggml.pre is"
            f" {way}. {REMEDY}"
        )
    tokens = Counter(fields["tokenizer.ggml.tokens"].contents() if "tokenizer.ggml.tokens" in fields else ())
    if twice := [token for token, count in tokens.items() if count > 1]:
        raise UserError(f"The file {path.name} has the token {twice[0]!r} twice in its vocabulary. {REMEDY}")
    return said


def finish_tokenizer(name: str, said: Mapping[str, Any], tokenizer: PreTrainedTokenizerFast) -> None:
    """Makes a tokenizer split, merge and begin texts as its file says.

    `name`: the file's. `said`: what the file says of it, see `read_entries`. `tokenizer`: what transformers made from the file.
    Raises UserError if the file puts a blank in front of a text, and the tokenizer does not.
    """
    _keep_own_tokens(tokenizer)
    backend, way = tokenizer.backend_tokenizer, str(said.get("ggml.pre", ""))
    if said.get("ggml.model") == "gpt2":
        if way in UNNAMED:
            remark(
                f"The file {name} does not say how its tokenizer splits texts (tokenizer.ggml.pre): as GPT-2's does."
            )
        known = GGUF_PRE_TOKENIZER_SPLITS.get(TABLES["same"].get(way, ""))
        if splits := TABLES["splits"].get(way, [known] if known else []):
            own = (OF_GPT2 if split == "GPT-2" else split for split in splits)
            parts = [pre_tokenizers.Split(Regex(split), "isolated") for split in own]
            whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
            backend.pre_tokenizer = pre_tokenizers.Sequence([*parts, whole])
        if way in TABLES["whole"]:
            backend.model.ignore_merges = True
        begins = said.get("ggml.add_bos_token", way in TABLES["whole"])
        if begins and tokenizer.bos_token and not tokenizer.add_bos_token:
            tokenizer.add_bos_token = True
    elif said.get("ggml.model") == "llama" and (prefix := said.get("ggml.add_space_prefix")) is not None:
        has = "".join(backend.encode("a", add_special_tokens=False).tokens).startswith(BLANK)
        if prefix and not has:
            raise UserError(
                f"The file {name} puts a blank in front of a text (tokenizer.ggml.add_space_prefix), and the"
                f" {type(tokenizer).__name__} that transformers makes does not. {REMEDY}"
            )
        if has and not prefix:
            backend.normalizer = None
            backend.pre_tokenizer = pre_tokenizers.Metaspace(BLANK, prepend_scheme="never", split=False)
            backend.decoder = decoders.Sequence(
                [decoders.Replace(BLANK, " "), decoders.ByteFallback(), decoders.Fuse()]
            )


def _keep_own_tokens(tokenizer: PreTrainedTokenizerFast) -> None:
    """Takes from a tokenizer the tokens that its file does not have, and the roles that they play.

    transformers gives each byte-level one the token `<|endoftext|>` of GPT-2, and Gemma's `<mask>`. Where the model has
    none, its id is larger than all ids of the model.
    """
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    own = len(state["model"]["vocab"])
    if any(token["id"] >= own for token in state["added_tokens"]):
        state["added_tokens"] = [token for token in state["added_tokens"] if token["id"] < own]
        tokenizer._tokenizer = type(tokenizer.backend_tokenizer).from_str(json.dumps(state))
    for role in tokenizer.SPECIAL_TOKENS_ATTRIBUTES:
        token = getattr(tokenizer, role)
        if token is not None and tokenizer.backend_tokenizer.token_to_id(str(token)) is None:
            setattr(tokenizer, role, None)
