"""Models without weights, built from a config: by the code of transformers, or by the code that a checkpoint brings."""

from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig


def build_empty(config: PreTrainedConfig, dtype: torch.dtype, code_revision: str | None) -> Any:
    """Builds a causal language model on torch's current device.

    Args:
        config: its config, which may name code.
        dtype: type of its parameters.
        code_revision: commit of the code that the config names; None to run no such code.
    """
    named = (getattr(config, "auto_map", None) or {}).get("AutoModelForCausalLM")
    if not named or code_revision is None:
        return AutoModelForCausalLM.from_config(config, dtype=dtype)
    from transformers.dynamic_module_utils import get_class_from_dynamic_module

    # `from_config` would take a class of another commit if this process has loaded one before.
    own: Any = get_class_from_dynamic_module(named, str(config.name_or_path), code_revision=code_revision)
    return own._from_config(config, dtype=dtype)
