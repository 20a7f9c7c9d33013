"""Tiny, randomly initialised models of every causal language model type that transformers knows.

A type of a new release needs an entry in a table only if its config asks for something unusual.
"""

import dataclasses
import re
import tomllib
from copy import deepcopy
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from torch import nn
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedConfig, PreTrainedTokenizerFast
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from ffkv.model.discover.probe_texts import PASSAGES

DATA = files(__package__)
SIZES = {
    field: size["value"]
    for size in tomllib.loads((DATA / "sizes.toml").read_text(encoding="utf-8"))["size"]
    for field in size["fields"]
}
EXCEPTIONS = tomllib.loads((DATA / "exceptions.toml").read_text(encoding="utf-8"))
VARIANTS = tomllib.loads((DATA / "variants.toml").read_text(encoding="utf-8"))

VOCABULARY = SIZES["vocab_size"]
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SPECIAL_WORDS = ("<pad>", "<s>", "</s>", "<unk>")
# Fields that are unset by default because the class computes them from other sizes.
UNSET = {"num_key_value_heads", "head_dim", "intermediate_size"}
VISIBLE = 0.15  # standard deviation of matrices that would start smaller than `FAINT`
FAINT = 0.03


def types() -> list[str]:
    """Returns every model type that `AutoModelForCausalLM` knows, in alphabetical order."""
    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def tiny_model(model_type: str, seed: int = 0, settings: dict[str, Any] | None = None) -> nn.Module:
    """Returns a tiny model in float32, ready to run, with weights of visible size everywhere.

    The same arguments give the same weights. Torch's own random state does not change. `settings` are config fields
    that differ from the tiny config of the type.
    """
    config = tiny_config(model_type, settings)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32)
        model = model.float().eval()
        # Zero biases, norms and gates of 1 and faint matrices would hide a wrong decomposition.
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim < 2:
                    parameter.add_(0.1 * torch.randn_like(parameter))
                elif parameter.std() < FAINT:
                    parameter.normal_(std=VISIBLE)
    return model


def save_tiny(folder: Path, model_type: str, settings: dict[str, Any] | None = None) -> None:
    """Saves a tiny model as a checkpoint of its type, with a tokenizer of the words of the proof's passages."""
    model: Any = tiny_model(model_type, settings=settings)
    model.save_pretrained(folder)
    tiny_config(model_type, settings).save_pretrained(folder)  # a model may have the config of its text part alone
    words = [*SPECIAL_WORDS, *dict.fromkeys(re.findall(r"\w+|[^\w\s]+", " ".join(PASSAGES)))]
    tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(words)}, SPECIAL_WORDS[-1]))
    tokenizer.pre_tokenizer = Whitespace()
    named = dict(zip(("pad_token", "bos_token", "eos_token", "unk_token"), SPECIAL_WORDS, strict=True))
    context = SIZES["max_position_embeddings"]  # of types whose config names none
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=context, **named).save_pretrained(folder)


def tiny_config(model_type: str, settings: dict[str, Any] | None = None) -> PreTrainedConfig:
    """Returns the tiny config of a model type; `settings` overrides its fields."""
    return CONFIG_MAPPING[model_type](**_shrunk(CONFIG_MAPPING[model_type], settings or {}))


def _shrunk(config: type[PreTrainedConfig], settings: dict[str, Any]) -> dict[str, Any]:
    default = vars(config())  # not by attribute: some fields then insist on being asked of a single layer
    fields = dict.fromkeys(field.name for field in dataclasses.fields(config))
    sizes = [name for name in fields if name in SIZES and _is_size(name, default.get(name, SIZES[name]))]
    tokens = [name for name in fields if _is_beyond(name, default.get(name))]
    small = {name: SIZES[name] for name in sizes} | {name: SPECIAL.get(name, VOCABULARY - 1) for name in tokens}
    small |= _nested(config, default)
    heads = default.get("num_key_value_heads")
    if isinstance(heads, int) and heads == default.get("num_attention_heads"):  # every head has its own
        small["num_key_value_heads"] = SIZES["num_attention_heads"]
    return _merged(_merged(small, EXCEPTIONS.get(config.model_type, {})), settings)


def _nested(config: type[PreTrainedConfig], default: dict[str, Any]) -> dict[str, dict]:
    """Returns the tiny configs within one: of the text part, of towers for images and sounds."""
    small = {}
    for name, part in config.sub_configs.items():
        value = default.get(name)
        if isinstance(value, PreTrainedConfig):
            small[name] = {"model_type": value.model_type} if part.__name__ == "AutoConfig" else {}
            small[name] |= _shrunk(type(value), {})
        elif part.__name__ != "AutoConfig":
            small[name] = _shrunk(part, {})
    return small


def _merged(small: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """`settings` over `small`, table by table."""
    merged = dict(small)
    for name, value in settings.items():
        if isinstance(value, dict) and isinstance(small.get(name), dict):
            merged[name] = _merged(small[name], value)
        else:
            merged[name] = deepcopy(value)  # configs complete the tables that they are given
    return merged


def _is_size(name: str, default: Any) -> bool:
    """Tells whether a field is a size to be made small: not if its default is unset, a switch or a list."""
    return name in UNSET if default is None else not isinstance(default, bool | list | tuple)


def _is_beyond(name: str, default: Any) -> bool:
    """Tells whether a field is the id of a token outside the tiny vocabulary."""
    is_token = name.endswith(("token_id", "token_index"))
    return is_token and (isinstance(default, list) or (isinstance(default, int) and default >= VOCABULARY))
