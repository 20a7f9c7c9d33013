"""Random checkpoints as fairseq would have saved them, and where the authors' outputs stand."""

import argparse
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from support import ROOT

ORACLE = ROOT.parent / "shared" / "oracle"


def fairseq_state(d, d_m, layers, bands, factor, tied, tied_projections, generator) -> dict[str, torch.Tensor]:
    """A state dict by fairseq's names. Matrices that are tied are one tensor under two names, as fairseq saves them."""

    def matrix(rows, columns):
        return torch.randn(rows, columns, generator=generator) / columns**0.5

    def vector(size, mean=0.0):
        return mean + 0.3 * torch.randn(size, generator=generator)

    state = {"decoder.version": torch.tensor([3.0]), "decoder.embed_positions._float_tensor": torch.zeros(1)}
    state["decoder.embed_tokens._float_tensor"] = torch.zeros(1)
    widths = [int(d // factor**band) for band in range(len(bands))]
    for band, (size, width) in enumerate(zip(bands, widths)):
        state[f"decoder.embed_tokens.embeddings.{band}.0.weight"] = matrix(size, width)
        state[f"decoder.embed_tokens.embeddings.{band}.1.weight"] = matrix(d, width)
    for layer in range(layers):
        stem = f"decoder.layers.{layer}"
        for part in "qkv":
            state[f"{stem}.self_attn.{part}_proj.weight"] = matrix(d, d)
            state[f"{stem}.self_attn.{part}_proj.bias"] = vector(d)
        state[f"{stem}.self_attn.out_proj.weight"], state[f"{stem}.self_attn.out_proj.bias"] = matrix(d, d), vector(d)
        for norm in ("self_attn_layer_norm", "final_layer_norm"):
            state[f"{stem}.{norm}.weight"], state[f"{stem}.{norm}.bias"] = vector(d, 1.0), vector(d)
        state[f"{stem}.fc1.weight"], state[f"{stem}.fc1.bias"] = matrix(d_m, d), vector(d_m)
        state[f"{stem}.fc2.weight"], state[f"{stem}.fc2.bias"] = matrix(d, d_m), vector(d)
    softmax = "decoder.adaptive_softmax"
    state[f"{softmax}.version"] = torch.tensor([1])
    if tied:
        state[f"{softmax}.head._float_tensor"] = torch.zeros(1)
        state[f"{softmax}.head.word_proj.weight"] = state["decoder.embed_tokens.embeddings.0.0.weight"]
        state[f"{softmax}.head.class_proj.weight"] = matrix(len(bands) - 1, d)
    else:
        state[f"{softmax}.head.weight"] = matrix(bands[0] + len(bands) - 1, d)
    for band in range(1, len(bands)):
        words, projection = (state[f"decoder.embed_tokens.embeddings.{band}.{part}.weight"] for part in (0, 1))
        own = not (tied and tied_projections)  # a linear layer of its own has the other orientation
        state[f"{softmax}.tail.{band - 1}.0.weight"] = matrix(widths[band], d) if own else projection
        state[f"{softmax}.tail.{band - 1}.2.weight"] = words if tied else matrix(*words.shape)
    return state


def with_old_names(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The state dict as fairseq saved it before 2019: stacked attention, numbered norms, positions as a table."""
    old = {"decoder.embed_positions.weights": torch.zeros(40, 4)}
    for name, tensor in state.items():
        if "k_proj" in name or "v_proj" in name:
            continue
        if "q_proj" in name:
            parts = [state[name.replace("q_proj", f"{part}_proj")] for part in "qkv"]
            name, tensor = name.replace("q_proj.", "in_proj_"), torch.cat(parts)
        name = name.replace("self_attn_layer_norm", "layer_norms.0").replace("final_layer_norm", "layer_norms.2")
        old[name] = tensor
    return old


@pytest.fixture(scope="session")
def write_checkpoint() -> Callable[..., Path]:
    """Writes a random checkpoint of the paper's form into a folder, and a dictionary of words w4, w5, ... beside it.

    `change` may alter the args (a dictionary) and the state dict before they are saved; other arguments go to the args.
    """

    def write(
        folder: Path,
        *,
        layers=2,
        d=16,
        d_m=24,
        heads=2,
        cutoffs=(20, 40),
        vocabulary=64,
        factor=2,
        tied=True,
        tied_projections=True,
        old_names=False,
        final_norm=False,
        archive=True,
        dtype=torch.float32,
        seed=0,
        change=lambda args, state: None,
        **more,
    ) -> Path:
        generator = torch.Generator().manual_seed(seed)
        ends = [0, *cutoffs, *([vocabulary] if vocabulary > cutoffs[-1] else [])]
        bands = [stop - start for start, stop in pairwise(ends)]
        state = fairseq_state(d, d_m, layers, bands, factor, tied, tied_projections, generator)
        if final_norm:
            state["decoder.layer_norm.weight"] = 1 + 0.3 * torch.randn(d, generator=generator)
            state["decoder.layer_norm.bias"] = 0.3 * torch.randn(d, generator=generator)
        if dtype != torch.float32:
            state = {name: tensor.to(dtype) if tensor.ndim else tensor for name, tensor in state.items()}
        args = {
            "arch": "transformer_lm_wiki103",
            "decoder_layers": layers,
            "decoder_embed_dim": d,
            "decoder_input_dim": d,
            "decoder_output_dim": d,
            "decoder_ffn_embed_dim": d_m,
            "decoder_attention_heads": heads,
            "decoder_normalize_before": True,
            "decoder_learned_pos": False,
            "no_decoder_final_norm": not final_norm,
            "activation_fn": "relu",
            "adaptive_input": True,
            "adaptive_input_cutoff": ",".join(map(str, cutoffs)),
            "adaptive_input_factor": factor,
            "adaptive_softmax_cutoff": ",".join(map(str, cutoffs)),
            "adaptive_softmax_factor": factor,
            "tie_adaptive_weights": tied,
            "tie_adaptive_proj": tied_projections,
            "tokens_per_sample": 64,
            "max_target_positions": 48,
            **more,
        }
        state = with_old_names(state) if old_names else state
        change(args, state)
        folder.mkdir(parents=True, exist_ok=True)
        stored = {"args": argparse.Namespace(**args), "model": state, "extra_state": {"epoch": 3}}
        torch.save(stored, folder / "model.pt", _use_new_zipfile_serialization=archive)
        lines = (f"w{number} {vocabulary - number}\n" for number in range(4, vocabulary))
        (folder / "dict.txt").write_text("".join(lines))
        return folder

    return write


@pytest.fixture(scope="session")
def oracle() -> Path:
    """What the authors' own code says of a small model of the paper's form."""
    if not ORACLE.exists():
        pytest.skip("the authors' outputs are not beside the project")
    return ORACLE
