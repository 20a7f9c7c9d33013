"""Reads the coefficients of all memories with a library. Runs in the environment of the peers: LIBRARY CHECKPOINT IDS MODULES OUTPUT.

IDS is a .npy file [sentence, token]; MODULES a JSON list of the names of the second matrices, layer by layer. OUTPUT becomes a .npz
file: the inputs of each of these modules [sentence, token, memory], by layer.
"""

import json
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

PACKAGES = {
    "plain hooks": "transformers",
    "nnsight": "nnsight",
    "TransformerLens": "transformer-lens",
    "interp-engine": "interp-engine",
}


def with_plain_hooks(model: Any, ids: Tensor, modules: Sequence[str]) -> list[Tensor]:
    """transformers, and a hook of torch before each second matrix."""
    read: list[Tensor] = []
    for name in modules:
        model.get_submodule(name).register_forward_pre_hook(lambda _, inputs: read.append(inputs[0]))
    model(ids, use_cache=False)
    return read


def with_nnsight(model: Any, ids: Tensor, modules: Sequence[str]) -> list[Tensor]:
    """nnsight: a trace that saves the inputs of the second matrices."""
    import nnsight

    traced = nnsight.NNsight(model)
    with traced.trace(ids, use_cache=False):
        read = nnsight.save([traced.get(name).input for name in modules])
    return read


def with_transformer_lens(model: Any, ids: Tensor, modules: Sequence[str]) -> list[Tensor]:
    """TransformerLens: a bridge around the model, and `run_with_cache`."""
    from transformer_lens.model_bridge.sources._bridge_builder import build_bridge_from_module

    bridge = build_bridge_from_module(model, type(model).__name__, hf_config=model.config)
    names = [f"blocks.{layer}.mlp.out.hook_in" for layer in range(len(modules))]
    _, cache = bridge.run_with_cache(ids, names_filter=names, return_type=None, use_cache=False)
    return [cache[name] for name in names]


def with_interp_engine(model: Any, ids: Tensor, modules: Sequence[str]) -> list[Tensor]:
    """interp-engine in its eager mode: the point `mlp_act`."""
    from interp_engine import Address, capture, load_model

    served = load_model(model.name_or_path, backend="eager", device="cpu", dtype="float32")
    points = [Address("mlp_act", layer) for layer in range(len(modules))]
    cache = capture(served, ids, points)
    return [cache.get("mlp_act", layer) for layer in range(len(modules))]


LIBRARIES = {
    "plain hooks": with_plain_hooks,
    "nnsight": with_nnsight,
    "TransformerLens": with_transformer_lens,
    "interp-engine": with_interp_engine,
}


def main(library: str, checkpoint: str, ids: str, modules: str, output: str) -> None:
    """Writes what the library reads. A model that it does not know ends in its own error."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    with torch.no_grad():
        read = LIBRARIES[library](model, torch.from_numpy(np.load(ids)), json.loads(Path(modules).read_text()))
    np.savez(output, *(each.float().numpy() for each in read))
    print(version(PACKAGES[library]))


if __name__ == "__main__":
    main(*sys.argv[1:])
