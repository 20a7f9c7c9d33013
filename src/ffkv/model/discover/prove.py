"""The proof that runs on every model before anything is analysed: the identities of the decomposition, on real tokens."""

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ffkv.errors import UserError
from ffkv.model.anatomy import Layer, Shell
from ffkv.model.discover.calibrate import TOLERANCE, calibrate
from ffkv.model.discover.find import find
from ffkv.model.discover.replay import capture, replay
from ffkv.model.experts.record import form_of, record_experts
from ffkv.model.head.head import Head
from ffkv.model.tap.hooks import after, forward, hidden, relative_error
from ffkv.model.tap.tap import tap
from ffkv.model.values_file import in_residual, values

REASONS = {
    "experts": "running the experts one at a time gives another output than the model's own code",
    "memories": "the memories do not add up to the feed-forward layer's output",
    "residual": "the block output is not the feed-forward output added to what stands there with the layer switched off",
    "prefix": "not causal: the coefficients of a prefix change with the tokens after it (an encoder loaded without is_decoder=True?)",
    "head": "what follows the last block does not depend on its output at one token alone: reading it out gives other logits than the model",
}
REMEDY = "Use model.dtype float32."


class Proven(NamedTuple):
    """A decomposed model.

    shell: its feed-forward layers and its end. errors: the largest relative error of each identity. final: o^L, or what the
    last block returns where the model reads out that (`anatomy.Layer.end`) [sentence, token, d]; logits: the model's own
    [sentence, token, vocabulary]; both float32.
    """

    shell: Shell
    errors: dict[str, float]
    final: Tensor
    logits: Tensor


def prove(model: nn.Module, first: Tensor, second: Tensor, second_matrix: str = "") -> Proven:
    """Finds and calibrates every feed-forward layer on one text, and proves the decomposition on another.

    - experts: a bank of experts that keeps a record returns what the model's own code returns for the same input
    - memories: y = sum_i m_i v_i + b, times the token's factor where a norm follows
    - residual: o = r + y, with r what stands there when the feed-forward layer is switched off
    - prefix: the coefficients of a prefix do not depend on the tokens after it

    Args:
        first, second: ids [sentence, token]. second_matrix: the setting `model.second_matrix`.
    Raises:
        UserError: the model has no feed-forward layers that can be read, or an identity fails; names the layer, the identity
            and the error.
    """
    tolerance = TOLERANCE[_dtype(model)]
    try:
        logits = forward(model, second).logits
    except Exception as error:  # a model's own code may raise anything
        raise UserError(f"it does not run on {tuple(second.shape)} tokens: {type(error).__name__}: {error}") from error
    if not torch.isfinite(logits).all():
        raise UserError(
            f"it overflows in {str(_dtype(model)).removeprefix('torch.')}: its logits are not finite. {REMEDY}"
        )
    errors = {"experts": _record(model, first), **dict.fromkeys(["memories", "residual", "prefix"], 0.0)}
    _require("experts", errors["experts"], tolerance, "")
    layers = calibrate(model, find(model, first, second_matrix), first)
    last_block, returns, output, logits = _end(model, layers, second)
    at = layers[-1]
    if last_block != at.block or (at.site and not at.post_norm):
        layers[-1] = replace(at, end=last_block)
    states = observe(model, layers, second)
    prefix = observe(model, layers, second[:, : second.shape[1] * 2 // 3], "m")
    arguments = capture(model, [layer.block for layer in layers], second)
    for layer in layers:
        m, y, o, short = states[layer.index]["m"], *(states[layer.index][q] for q in "yo"), prefix[layer.index]["m"]
        found = {
            "memories": relative_error(_from_memories(model, layer, states[layer.index]), y),
            "residual": relative_error(
                y + _without(model, layer, arguments[layer.block, layer.call]).reshape(o.shape), o
            ),
            "prefix": relative_error(short, m[:, : short.shape[1]]) if m.any() else 0.0,
        }
        for name, error in found.items():
            _require(name, error, tolerance, f"layer {layer.index} ({layer.writes[0].module}): ")
            errors[name] = max(errors[name], error)
    if any(layer.signed or bool((states[layer.index]["m"] < 0).any()) for layer in layers):
        # They share one activation: a short text may miss its negative side in a layer.
        layers = [replace(layer, signed=True) for layer in layers]
    final = output if layers[-1].end else states[-1]["o"]
    return Proven(Shell(type(model).__name__, layers, last_block, returns), errors, final, logits)


def _record(model: nn.Module, ids: Tensor) -> float:
    """Lets banks of experts keep a record; the largest relative error of what they return, on the inputs of a text."""
    banks = {name: form for name, module in model.named_modules() if (form := form_of(module)) is not None}
    # Where the parent multiplies the inputs, it also adds up the outputs: only its own output is defined.
    names = [name if form.reads_x else name.rpartition(".")[0] for name, form in banks.items()]
    own: dict[str, Tensor] = {}

    def note(name: str):
        def on_output(module, args, kwargs, output) -> None:
            own.setdefault(name, hidden(output).clone())

        return on_output

    with after(*[(model.get_submodule(name), note(name)) for name in names]):
        arguments = capture(model, names, ids)
    record_experts(model)
    errors = [0.0]
    for name, output in own.items():
        args, kwargs = arguments[name, 0]
        with torch.no_grad():
            errors.append(relative_error(hidden(model.get_submodule(name)(*args, **kwargs)), output))
    return max(errors)


def _from_memories(model: nn.Module, layer: Layer, states: dict[str, Tensor]) -> Tensor:
    v, _ = values(model, layer)
    b = in_residual(model, layer, states["b"]).float()
    return states.get("s", 1) * (states["m"] @ v + b)


def _without(model: nn.Module, layer: Layer, arguments: tuple[tuple, dict]) -> Tensor:
    """The residual: what stands where o stood, with the layer switched off."""
    inside = len(layer.block) + 1
    off = {write.module[inside:]: torch.zeros_like for write in layer.writes}
    return replay(model.get_submodule(layer.block), arguments, off).at(layer.site[inside:]).float()


def _require(identity: str, error: float, tolerance: float, where: str) -> None:
    if error < tolerance:  # false for NaN, too
        return
    if error != error:
        raise UserError(f"{where}coefficients or outputs are not finite: the model overflows in its type. {REMEDY}")
    raise UserError(f"{where}{REASONS[identity]} (relative error {error:.0e}, allowed {tolerance:.0e})")


def prove_head(head: Head, proven: Proven) -> float:
    """The relative error of the head, as it was stored, against the model's own logits.

    Raises:
        UserError: they differ by more than the tolerance.
    """
    last = proven.shell.layers[-1]
    read = head.logits(proven.final.reshape(-1, proven.final.shape[-1]), None if last.end else last.index)
    error = relative_error(read.reshape(proven.logits.shape).cpu(), proven.logits)
    _require("head", error, TOLERANCE[head.dtype], "")
    return error


def observe(model: nn.Module, layers: list[Layer], ids: Tensor, quantities: str = "mbsyo") -> list[dict[str, Tensor]]:
    """Copies of some quantities of every layer on ids [sentence, token], in float32."""
    states: list[dict[str, Tensor]] = [{} for _ in layers]

    def take(layer: Layer, quantity: str, tensor: Tensor) -> None:
        states[layer.index][quantity] = tensor.float().clone()

    with tap(model, layers, quantities, take) as run:
        run(ids)
    return states


def _end(model: nn.Module, layers: list[Layer], ids: Tensor) -> tuple[str, int, Tensor, Tensor]:
    """The block that runs last, how many values it returns, its output and the model's logits."""
    last: list = ["", 0, None]

    def note(name: str):
        def on_output(module, args, kwargs, output) -> None:
            last[:] = name, 0 if torch.is_tensor(output) else len(output), hidden(output).float().clone()

        return on_output

    lists = dict.fromkeys(layer.block.rpartition(".")[0] for layer in layers)
    blocks = [(block, f"{path}.{name}") for path in lists for name, block in model.get_submodule(path).named_children()]
    with after(*[(block, note(name)) for block, name in blocks]):
        logits = forward(model, ids).logits.float()
    return *last, logits


def _dtype(model: nn.Module) -> torch.dtype:
    return next(parameter.dtype for parameter in model.parameters() if parameter.is_floating_point())
