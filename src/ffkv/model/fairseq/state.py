"""Brings the tensors of a fairseq checkpoint to current names, and puts each one into its place in the model."""

import re
from typing import Any

import torch
from torch import Tensor, nn

from ffkv.base.errors import UserError

# Tensors that hold no weight: version numbers, stand-ins for a device, and positions that are a formula.
BOOKKEEPING = re.compile(
    r"decoder\.(version|adaptive_softmax\.version|embed_positions\.weights|([\w.]+\.)?_float_tensor)"
)
OLDER = {"layer_norms.0": "self_attn_layer_norm", "layer_norms.2": "final_layer_norm"}
SOFTMAX = "decoder.adaptive_softmax"
FIRST_WITH_NORM = 3  # version of a decoder that may have a norm behind its blocks


def upgrade(state: dict[str, Tensor], settings: dict[str, Any]) -> dict[str, Any]:
    """Brings a state dict to the names and orientations of `ffkv.model.fairseq.modeling`, in place.

    Returns the settings of the model's config. Settings that only the tensors tell are corrected.
    """
    version = state.get("decoder.version")
    normed = settings["final_norm"] and version is not None and version.item() >= FIRST_WITH_NORM
    for name in [name for name in state if BOOKKEEPING.fullmatch(name)]:
        del state[name]
    for name in list(state):
        if found := re.search(r"\.in_proj_(weight|bias)$", name):
            stem, tensor = name[: found.start()], state.pop(name)
            for part, third in zip("qkv", tensor.chunk(3)):
                state[f"{stem}.{part}_proj.{found[1]}"] = third
        elif found := re.search(r"layer_norms\.[02]", name):
            state[name.replace(found[0], OLDER[found[0]])] = state.pop(name)
    if (whole := state.pop(f"{SOFTMAX}.head.weight", None)) is not None:  # one matrix where the words are not tied
        words = settings["output_bands"][0][0]
        state[f"{SOFTMAX}.head.word_proj.weight"] = whole[:words]
        state[f"{SOFTMAX}.head.class_proj.weight"] = whole[words:]
    tied = _turn_projections(state, settings)
    return {**settings, "final_norm": normed, "tie_projections": tied}


def _turn_projections(state: dict[str, Tensor], settings: dict[str, Any]) -> bool:
    """Brings the projections of the tails to [d, width]. Returns whether they are those of the input.

    A tied projection is stored in the shape of the input's, another one as a linear layer's weight, [width, d]. The
    shape decides; the args decide only if it is square.
    """
    d, tied = settings["hidden_size"], settings["tie_projections"]
    for number, (_, width) in enumerate(settings["output_bands"][1:]):
        name = f"{SOFTMAX}.tail.{number}.0.weight"
        if name in state and tuple(state[name].shape) == (width, d) and (width != d or not tied):
            state[name], tied = state[name].T.contiguous(), False
    return tied


def fill(model: nn.Module, state: dict[str, Tensor], dtype: torch.dtype | None) -> None:
    """Gives a model on the meta device its weights. Parameters that are shared stay so; nothing is copied without need.

    Args:
        state: by parameter name; it is emptied.
        dtype: what the weights become; None takes that of the first.
    Raises:
        UserError: a tensor is missing, left over or not floating-point, has another shape, or differs from its twin.
    """
    given: dict[int, tuple[str, Tensor, nn.Parameter]] = {}
    for name, parameter in list(model.named_parameters(remove_duplicate=False)):
        tensor = _take(state, name, tuple(parameter.shape))
        dtype = dtype or tensor.dtype
        if id(parameter) not in given:
            weight = nn.Parameter(tensor.to(dtype), requires_grad=False)
            given[id(parameter)] = (name, tensor, weight)
        first, same, weight = given[id(parameter)]
        if tensor.data_ptr() != same.data_ptr() and not torch.equal(tensor, same):
            raise UserError(
                f"{name} and {first} differ, but args.tie_adaptive_weights and tie_adaptive_proj say they are one."
            )
        owner, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(owner), attribute, weight)
    if state:
        raise UserError(f"it holds tensors that are not part of the model: {', '.join(sorted(state)[:5])}.")


def _take(state: dict[str, Tensor], name: str, shape: tuple[int, ...]) -> Tensor:
    tensor = state.pop(name, None)
    if tensor is None:
        raise UserError(
            f"it lacks the tensor {name} of shape {shape}. Fetch it again, or save all tensors of the model."
        )
    if tuple(tensor.shape) != shape:
        raise UserError(f"the tensor {name} has the shape {tuple(tensor.shape)}, not {shape}.")
    if not tensor.is_floating_point():
        raise UserError(f"the tensor {name} is of type {tensor.dtype}: weights are floating-point numbers.")
    return tensor
