"""What configs of `transformers` say under different names, and how a model is built from one."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ffkv.base.files.stored import unreadable
from ffkv.base.hub.commit import Commit
from ffkv.base.lookup import read_json

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig

CONTEXT_NAMES = ("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx", "seq_length", "max_target_positions")
ORIGINAL = "original_max_position_embeddings"
ACTIVATION_NAMES = ("activation_function", "hidden_act", "hidden_activation", "activation_fn")
DEFAULT_CONTEXT = 2048  # tokens, if neither config nor tokenizer names a number


def read_config(folder: Path) -> dict[str, Any]:
    """Reads `config.json` in the model's folder. Raises UserError if the file is missing or damaged."""
    try:
        return read_json(folder / "config.json", object_pairs_hook=dict)  # as transformers does
    except (OSError, ValueError) as error:
        raise unreadable(folder / "config.json", error) from error


def configured_context(config: Any) -> int | None:
    """Returns the longest input in tokens that a text config names; None if it names none."""
    lengths = (getattr(config, name, None) for name in CONTEXT_NAMES)
    return next((length for length in lengths if isinstance(length, int) and length > 0), None)


def rotary_bounds(config: Any) -> dict[str, int]:
    """Returns up to how many tokens rotary angles are the same in every pass, by each type of rotation of a text config.

    Beyond, angles of "longrope" and "dynamic" follow the longest row of a pass, for all tokens of all its rows.
    """
    bounds: dict[str, int] = {}
    for rotation in rotations(config):
        kind = str(rotation.get("rope_type") or rotation.get("type"))
        if kind in ("longrope", "su") or "dynamic" in kind:
            lengths = (rotation.get(ORIGINAL), getattr(config, ORIGINAL, None), configured_context(config))
            known = [length for length in lengths if isinstance(length, int) and length > 0]
            bounds |= {kind: min(known)} if known else {}
    return bounds


def rotations(config: Any) -> list[dict[str, Any]]:
    """Returns what a text config says about its rotations: about that of all layers, then those of each type of layer."""
    named = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    return [rotation for rotation in (named, *named.values()) if isinstance(rotation, dict)]


def configured_activation(config: Any) -> str:
    """Returns the name of the activation function that a text config names, else "unknown"."""
    return str(next((getattr(config, name) for name in ACTIVATION_NAMES if hasattr(config, name)), "unknown"))


def build_empty(config: "PreTrainedConfig", dtype: "torch.dtype", code_revision: str | None) -> Any:
    """Builds a causal language model on torch's current device.

    `config`: its config, which may name code. `dtype`: type of its parameters. `code_revision`: commit of that code; None to run none.
    """
    from transformers import AutoModelForCausalLM

    named = (getattr(config, "auto_map", None) or {}).get("AutoModelForCausalLM")
    if not named or code_revision is None:
        return AutoModelForCausalLM.from_config(config, dtype=dtype)
    from transformers.dynamic_module_utils import get_class_from_dynamic_module

    # `from_config` would take a class of another commit if this process has loaded one before.
    own: Any = get_class_from_dynamic_module(named, str(config.name_or_path), code_revision=code_revision)
    return own._from_config(config, dtype=dtype)


def reading(commit: Commit, trust_remote_code: bool, gguf: str = "") -> dict[str, Any]:
    """Returns the arguments that tell `transformers` which commit of a checkpoint it reads, and whether to run its code."""
    # Without a word about trust, transformers would ask whoever sits at the terminal.
    arguments = {"revision": commit.read_at, "trust_remote_code": trust_remote_code}
    arguments |= {"code_revision": commit.code_read_at} if trust_remote_code else {}
    return arguments | ({"gguf_file": gguf} if gguf else {})
