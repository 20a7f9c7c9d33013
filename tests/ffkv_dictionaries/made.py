"""Dictionaries written in each form by hand, with the coefficients and outputs that the formulas of that form give in float64.

A `Case` is what its own code says of it: nothing here uses the readers.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import yaml
from safetensors.torch import save_file
from torch import Tensor

from ffkv_dictionaries.forms import Dictionary

D, UNITS, K = 6, 16, 4
STATES = torch.randn(200, D, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


class Case(NamedTuple):
    """A dictionary in a folder, and what it gives on `STATES`."""

    folder: Path
    layer: int | None
    coefficients: Tensor  # [state, unit]
    outputs: Tensor  # [state, d]


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def tensors(gated: bool = False, jump: bool = False, skip: bool = False) -> dict[str, Tensor]:
    """Those of SAELens, in its orientation; forms rename and transpose them."""
    made = {"W_enc": drawn(D, UNITS), "W_dec": drawn(UNITS, D, seed=1), "b_enc": drawn(UNITS), "b_dec": drawn(D)}
    if gated:
        del made["b_enc"]
        made |= {"b_gate": drawn(UNITS, seed=2), "b_mag": drawn(UNITS, seed=3), "r_mag": drawn(UNITS, seed=4) / 2}
    if jump:
        made["threshold"] = drawn(UNITS, seed=5)  # below 0, it is as 0 where a ReLU stands before it
    if skip:
        made["W_skip"] = drawn(D, D, seed=6)
    return made


def largest_of(scores: Tensor, k: int, by_size: bool = False) -> Tensor:
    """`scores` where they are among the k largest of their row, else 0; without sign 0 below 0."""
    order = (scores.abs() if by_size else scores).topk(k, dim=1).indices
    kept = torch.zeros_like(scores).scatter(1, order, scores.gather(1, order))
    return kept if by_size else kept.relu()


def write(folder: Path, config: str, said: dict, weights: str, saved: dict[str, Tensor], *, dtype=None) -> None:
    """Writes a config (nothing if its name is "") and tensors."""
    path = folder / weights
    path.parent.mkdir(parents=True, exist_ok=True)
    if config:
        (folder / config).write_text(json.dumps(said) if config.endswith("json") else yaml.safe_dump(said))
    saved = {name: tensor.to(dtype or tensor.dtype).contiguous() for name, tensor in saved.items()}
    if path.suffix == ".npz":
        np.savez(path, **{name: tensor.numpy() for name, tensor in saved.items()})
    else:
        save_file(saved, path)


def given(t: dict[str, Tensor], act: Callable[[Tensor], Tensor], shift: bool = False) -> tuple[Tensor, Tensor]:
    """m and ŷ of plain tensors: act((x - b_dec) W_enc + b_enc), m W_dec + b_dec + W_skip x."""
    t = {name: tensor.double() for name, tensor in t.items()}
    m = act((STATES - t["b_dec"] if shift else STATES) @ t["W_enc"] + t["b_enc"])
    y = m @ t["W_dec"] + t["b_dec"]
    return m, y + STATES @ t["W_skip"].T if "W_skip" in t else y


def jumps(threshold: Tensor | float) -> Callable[[Tensor], Tensor]:
    return lambda h: h.relu() * (h > threshold)


def saelens(folder: Path, architecture: str = "standard", dtype=None, drop=(), **said) -> Case:
    """A dictionary as SAELens 6 saves one. `said`: more of its config; `drop`: keys that it does not have."""
    shift, rescaled = (
        said.get("apply_b_dec_to_input", True),
        said.get("rescale_acts_by_decoder_norm", "batch" in architecture),
    )
    t = tensors("gated" in architecture, "jump" in architecture, "skip" in architecture)
    transcodes = "transcoder" in architecture
    shift = shift and not transcodes
    names = {"hook_name": "blocks.3.hook_resid_post", "model_name": "gpt2", "sae_lens_version": "6.54.12"}
    names |= {"hook_name": "blocks.3.hook_mlp_in", "hook_name_out": "blocks.3.hook_mlp_out"} if transcodes else {}
    config = {
        "d_in": D,
        "d_sae": UNITS,
        "dtype": "float32",
        "device": "cuda",
        "apply_b_dec_to_input": shift,
        "normalize_activations": "none",
        "reshape_activations": "none",
        "architecture": architecture,
        "metadata": names,
        **({"d_out": D} if transcodes else {}),
        **({"k": K} if architecture.endswith("topk") and "batch" not in architecture else {}),
    }
    saved = dict(t)
    if "batchtopk" in architecture:  # a checkpoint of its training
        saved["topk_threshold"] = torch.tensor(0.7, dtype=torch.float64)
    config = {name: value for name, value in (config | said).items() if name not in drop}
    write(folder, "cfg.json", config, "sae_weights.safetensors", saved, dtype=dtype)
    t = {name: tensor.to(dtype or tensor.dtype).double() for name, tensor in t.items()}
    if "batchtopk" in architecture:
        return Case(folder, 3, *_rescaled(t, jumps(0.7), shift, rescaled))
    if "topk" in architecture:
        return Case(folder, 3, *_rescaled(t, lambda h: largest_of(h, K, architecture == "abstopk"), shift, rescaled))
    if architecture == "gated":
        x = STATES - t["b_dec"] if shift else STATES
        opened = x @ t["W_enc"] + t["b_gate"] > 0
        m = opened * (x @ (t["W_enc"] * t["r_mag"].exp()) + t["b_mag"]).relu()
        return Case(folder, 3, m, m @ t["W_dec"] + t["b_dec"])
    return Case(folder, 3, *given(t, jumps(t.get("threshold", 0.0)), shift))


def _rescaled(t, act, shift, rescaled) -> tuple[Tensor, Tensor]:
    """A TopK whose `encode` multiplies by the norms of the decoder, and whose `decode` divides by them."""
    norms = t["W_dec"].norm(dim=1) if rescaled else torch.ones(UNITS, dtype=torch.float64)
    m = act(((STATES - t["b_dec"] if shift else STATES) @ t["W_enc"] + t["b_enc"]) * norms)
    return m, (m / norms) @ t["W_dec"] + t["b_dec"]


def saelens_old(folder: Path, topk: bool = False, number: str = "hook_layer", **said) -> Case:
    """As versions before 6 wrote it: other names, no metadata, TopK in the activation alone."""
    t = tensors()
    config = {
        "d_in": D,
        "d_sae": UNITS,
        "hook_name": "blocks.{layer}.hook_resid_pre",
        number: 3,
        "dtype": "torch.float32",
    }
    config |= {"activation_fn_str": "topk", "activation_fn_kwargs": {"k": K}} if topk else {"activation_fn_str": "relu"}
    write(folder, "cfg.json", config | said, "sae_weights.safetensors", t)
    act = (lambda h: largest_of(h, K)) if topk else torch.relu
    return Case(folder, 2, *given(t, act, shift=True))  # the stream before block 3 is that behind block 2


def gemma(folder: Path, lower: bool = False, dtype=None) -> Case:
    """A dictionary of Gemma Scope; `folder` holds those of layer 3."""
    t = tensors(jump=True)
    place = folder / "layer_3/width_16/average_l0_5"
    names = {name: name.replace("W_", "w_") if lower else name for name in t}
    write(place, "", {}, "params.npz", {names[name]: tensor for name, tensor in t.items()}, dtype=dtype)
    t = {name: tensor.to(dtype or tensor.dtype).double() for name, tensor in t.items()}
    return Case(folder, 3, *given(t, jumps(t["threshold"])))


def gemma_2(folder: Path, skip: bool = False, config: bool = True, upper: bool = False, **said) -> Case:
    """A dictionary of Gemma Scope 2; with `skip` a transcoder with an affine skip connection [from, to]. `upper`: "W_enc"."""
    t = tensors(jump=True, skip=skip)
    place = folder / "layer_3_width_16_l0_small"
    hooks = {
        f"hf_hook_point_{side}": f"model.layers.3.{name}" for side, name in (("in", "a.output"), ("out", "b.output"))
    }
    names = {"W_skip": "affine_skip_connection"} | ({} if upper else {"W_enc": "w_enc", "W_dec": "w_dec"})
    saved = {names.get(name, name): tensor.T if name == "W_skip" else tensor for name, tensor in t.items()}
    told = {"architecture": "jump_relu", "affine_connection": skip, "model_name": "gemma-v3-270m", **hooks, **said}
    write(place, "config.json" if config else "", told, "params.safetensors", saved)
    return Case(folder, 3, *given(t, jumps(t["threshold"].double())))


def llama(
    folder: Path, act_fn="jumprelu", jump=0.3, norms=(5.0, 2.0), has_bias=True, shift=False, unit=True, drop=(), **said
) -> Case:
    """A dictionary of Llama Scope: states have the mean norm √d in its training, so they are scaled there. `drop`: keys it lacks."""
    t = tensors()
    t = t if has_bias else t | {"b_dec": torch.zeros(D)}
    saved = {"encoder.weight": t["W_enc"].T, "encoder.bias": t["b_enc"], "decoder.weight": t["W_dec"].T}
    saved |= {"decoder.bias": t["b_dec"]} if has_bias else {}
    config = {
        "d_model": D,
        "d_sae": UNITS,
        "act_fn": act_fn,
        "jump_relu_threshold": jump,
        "norm_activation": "dataset-wise" if norms else "inference",
        "dataset_average_activation_norm": dict(zip(("in", "out"), norms)) if norms else None,
        "use_decoder_bias": has_bias,
        "apply_decoder_bias_to_pre_encoder": shift,
        "sparsity_include_decoder_norm": unit,
        "top_k": K,
        "hook_point_in": "blocks.3.ln2.hook_normalized",
        "hook_point_out": "blocks.3.hook_mlp_out",
    }
    config = {name: value for name, value in (config | said).items() if name not in drop}
    write(folder, "hyperparams.json", config, "checkpoints/final.safetensors", saved)
    t = {name: tensor.double() for name, tensor in t.items()}
    f, g = (math.sqrt(D) / norm for norm in norms) if norms else (1.0, 1.0)
    # In training: h = W_enc (f x) + b_enc; ŷ = (act(h) W_dec + b_dec) / g. Then h / f is what is held against the threshold,
    # in units of values of the norm 1.
    x = STATES - t["b_dec"] / g if shift and has_bias else STATES
    values = t["W_dec"] * f / g
    lengths = values.norm(dim=1) if unit else torch.ones(UNITS, dtype=torch.float64)
    h = (f * x @ t["W_enc"] + t["b_enc"]) / f * lengths
    if act_fn == "topk" and jump <= 0:
        m = largest_of(h, K)
    else:
        m = h.relu() if act_fn == "relu" else torch.where(h > jump, h, 0)
    return Case(folder, 3, m, m / lengths @ values + t["b_dec"] / g)


def llama_later(folder: Path, names: str = "linear", unit: bool = True, **said) -> Case:
    """As later versions of OpenMOSS's code save one. `names`: of the tensors, "linear" or "plain"."""
    t = tensors()
    t["logs"] = drawn(UNITS, seed=7) / 2 - 1
    hooks = {"in": "blocks.3.ln2.hook_normalized", "out": "blocks.3.hook_mlp_out"}
    if names == "plain":
        saved = {"W_E": t["W_enc"], "b_E": t["b_enc"], "W_D": t["W_dec"], "b_D": t["b_dec"]}
        saved["activation_function.log_jumprelu_threshold"] = t["logs"]
    else:
        saved = {"encoder.weight": t["W_enc"].T, "encoder.bias": t["b_enc"], "decoder.weight": t["W_dec"].T}
        saved |= {"decoder.bias": t["b_dec"], "log_jumprelu_threshold": t["logs"]}
    norms = {"in": 5.0, "out": 2.0}
    saved |= {f"dataset_average_activation_norm.{hooks[side]}": torch.tensor(norms[side]) for side in norms}
    config = {
        "sae_type": "sae",
        "d_model": D,
        "expansion_factor": 3,
        "act_fn": "jumprelu",
        "norm_activation": "dataset-wise",
    }
    config |= {"hook_point_in": hooks["in"], "hook_point_out": hooks["out"], "sparsity_include_decoder_norm": unit}
    write(folder, "config.json", config | {"jump_relu_threshold": 0.0} | said, "sae_weights.safetensors", saved)
    t = {name: tensor.double() for name, tensor in t.items()}
    f, g = (math.sqrt(D) / norm for norm in norms.values())
    # In training: h = W_enc (f x) + b_enc, and of h, or of h times the norm of its value there, it is asked whether it is above.
    h = f * STATES @ t["W_enc"] + t["b_enc"]
    on = h * (t["W_dec"].norm(dim=1) if unit else 1) > t["logs"].exp()
    lengths = t["W_dec"].norm(dim=1) * f / g if unit else torch.ones(UNITS, dtype=torch.float64)
    return Case(folder, 3, h * on / f * lengths, (h * on @ t["W_dec"] + t["b_dec"]) / g)


def circuit_tracer(
    folder: Path, jump: bool = False, skip: bool = False, layer: int = 3, config: bool = True, k: int = 0, **said
) -> Case:
    """A set of circuit-tracer with one layer. `k`: of a TopK, saved as a tensor, and not told by the config."""
    t = tensors(jump=jump, skip=skip)
    names = {"threshold": "activation_function.threshold"}
    saved = {names.get(name, name): tensor.T if name == "W_enc" else tensor for name, tensor in t.items()}
    if jump:  # it has no ReLU, so that this may be negative
        saved["activation_function.threshold"][:4] *= -1
        t["threshold"] = saved["activation_function.threshold"]
    told = {"model_kind": "transcoder_set", "model_name": "m", "scan": "s", "feature_input_hook": "mlp.hook_in"}
    told |= {"feature_output_hook": "hook_mlp_out", **said}
    saved |= {"k": torch.tensor(k)} if k else {}
    write(folder, "config.yaml" if config else "", told, f"layer_{layer}.safetensors", saved)
    act = (lambda h: largest_of(h, K)) if k or said.get("activation") == "topk" else torch.relu
    act = (lambda h: h * (h > t["threshold"])) if jump else act
    return Case(folder, layer, *given(t, act))


def sparsify(folder: Path, module: str = "layers.3.mlp", transcode=True, skip=False, signed=None, **said) -> Case:
    """A folder of sparsify with one module. `signed`: in versions before 1.0 alone."""
    t = tensors(skip=skip)
    names = {"W_enc": "encoder.weight", "b_enc": "encoder.bias"}
    saved = {names.get(name, name): tensor.T if name == "W_enc" else tensor for name, tensor in t.items()}
    config = {"activation": "topk", "expansion_factor": 32, "normalize_decoder": True, "num_latents": UNITS, "k": K}
    config |= {"multi_topk": False, "skip_connection": skip, "transcode": transcode, "d_in": D}
    config |= {} if signed is None else {"signed": signed}
    write(folder / module, "cfg.json", config | said, "sae.safetensors", saved)
    return Case(folder, 3, *given(t, lambda h: largest_of(h, K, bool(signed)), shift=not transcode))


def computed(found: Dictionary) -> tuple[Tensor, Tensor]:
    """m [state, unit] and ŷ [state, d] of a dictionary that was read, as its docstring says."""
    h = STATES @ found.encoder.double().T + found.encoder_bias.double()
    if found.largest:
        m = largest_of(h, found.largest, found.either_sign)
    else:
        m = torch.where(h > found.threshold.double(), h, 0)
    y = m @ found.decoder.double() + found.decoder_bias.double()
    return m, y if found.skip is None else y + STATES @ found.skip.double().T
