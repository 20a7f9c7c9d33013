"""The code that builds a model from its config: that of transformers, or that which a checkpoint brings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ffkv.base.hub.commit import Commit

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig


def build_empty(config: PreTrainedConfig, dtype: torch.dtype, code_revision: str | None) -> Any:
    """Builds a causal language model on torch's current device.

    Args:
        config: its config, which may name code.
        dtype: type of its parameters.
        code_revision: commit of the code that the config names; None to run no such code.
    """
    from transformers import AutoModelForCausalLM

    named = (getattr(config, "auto_map", None) or {}).get("AutoModelForCausalLM")
    if not named or code_revision is None:
        return AutoModelForCausalLM.from_config(config, dtype=dtype)
    from transformers.dynamic_module_utils import get_class_from_dynamic_module

    # `from_config` would take a class of another commit if this process has loaded one before.
    own: Any = get_class_from_dynamic_module(named, str(config.name_or_path), code_revision=code_revision)
    return own._from_config(config, dtype=dtype)


def trust(commit: Commit, trust_remote_code: bool) -> dict[str, Any]:
    """Returns the arguments that tell `transformers` whether a checkpoint's own code is run, and at which commit."""
    # Without a word about trust, transformers would ask whoever sits at the terminal.
    return {"trust_remote_code": trust_remote_code} | (
        {"code_revision": commit.code_read_at} if trust_remote_code else {}
    )
