"""What configs of `transformers` say under different names."""

import json
from pathlib import Path
from typing import Any

from ffkv.base.files.fault import unreadable

CONTEXT_NAMES = ("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx", "seq_length")
ACTIVATION_NAMES = ("activation_function", "hidden_act", "hidden_activation", "activation_fn")
DEFAULT_CONTEXT = 2048  # tokens, if neither config nor tokenizer names a number


def read_config(folder: Path) -> dict[str, Any]:
    """Reads `config.json` in the model's folder.

    Raises:
        UserError: the file is missing or damaged.
    """
    try:
        return json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise unreadable(folder / "config.json", error) from error


def configured_context(config: Any) -> int | None:
    """Returns the longest input in tokens that a text config names; None if it names none."""
    lengths = (getattr(config, name, None) for name in CONTEXT_NAMES)
    return next((length for length in lengths if isinstance(length, int) and length > 0), None)


def configured_activation(config: Any) -> str:
    """Returns the name of the activation function that a text config names, else "unknown"."""
    return str(next((getattr(config, name) for name in ACTIVATION_NAMES if hasattr(config, name)), "unknown"))
