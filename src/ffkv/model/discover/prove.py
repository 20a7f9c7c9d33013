"""The proof that runs on every model before any analysis: the identities of the decomposition, on real tokens."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ffkv.base.errors import UserError
from ffkv.model.anatomy import Layer
from ffkv.model.discover.calibrate import calibrate
from ffkv.model.discover.find import find_second_matrices
from ffkv.model.discover.probe_texts import MIN_TOKENS
from ffkv.model.discover.replay import Arguments, capture, replay
from ffkv.model.experts import layout_of, record_experts
from ffkv.model.head.head import Head
from ffkv.model.identities import IDENTITIES, TOLERANCE
from ffkv.model.keys_and_values import error_of, in_residual, values
from ffkv.model.tap.hooks import after, blocks_beside, by_name, forward, known_state, relative_error, tried, type_name
from ffkv.model.tap.tap import States, observe

REMEDY = "Use model.dtype float32."
SAME_DIRECTION = 1e-2  # relative error up to which logits count as equal whatever the length of the vector


class Decomposition(NamedTuple):
    """A decomposed model, of which the head is still to be proven."""

    layers: list[Layer]  # the feed-forward layers
    last_block: str  # see `Anatomy`
    returns: int  # see `Anatomy`
    errors: dict[str, float]  # largest relative error of each identity that applies
    # what the head reads: o of the last layer, or the output of its `readout_block` [sentence, token, d], float32
    final: Tensor
    logits: Tensor  # the model's own [sentence, token, vocabulary], float32
    dtype: str  # type of the model's weights


def prove_layers(model: nn.Module, first: Tensor, second: Tensor, second_matrix: str = "") -> Decomposition:
    """Finds and calibrates every feed-forward layer on one text, and proves the decomposition on another one.

    It proves the identities "experts", "memories", "residual" and "prefix" of `ffkv.model.identities`. The texts are ids
    [sentence, token]. The model's banks of experts keep records from now on. `second_matrix`: the setting
    `model.second_matrix`. Raises UserError if the model has no feed-forward layers that can be read, or an identity fails;
    names the layer, the identity and the error.
    """
    logits = tried(lambda: forward(model, second).logits)
    if isinstance(logits, Exception):
        raise UserError(
            f"it does not run on {tuple(second.shape)} tokens: {type(logits).__name__}: {logits}"
        ) from logits
    if not torch.isfinite(logits).all():
        raise UserError(f"it overflows in {type_name(model)}: its logits are not finite. {REMEDY}")
    errors = {}
    if any(layout_of(module) is not None for module in model.modules()):
        errors["experts"] = _prove_experts(model, first)
        _require("experts", errors["experts"], type_name(model))
    layers = calibrate(model, find_second_matrices(model, first, second_matrix), first)
    last_block, returns, output, logits = _last_block(model, layers, second)
    last = layers[-1]
    if last_block != last.block or (last.sum_module and not last.post_norm):
        layers[-1] = replace(last, readout_block=last_block)
    states = observe(model, layers, second, "mbsuyo")
    for layer, found in zip(layers, _layer_errors(model, layers, states, second), strict=True):
        for identity, error in found.items():
            if identity == "prefix" and error >= TOLERANCE[type_name(model)]:
                _check_short_rows(model, layers, second, error)
            _require(identity, error, type_name(model), f"layer {layer.index} ({layer.second_matrices[0].module}): ")
            errors[identity] = max(errors.get(identity, 0.0), error)
    # All layers share one activation function, and all dictionaries: a short text may miss its negative side in a layer.
    negative = (layer for layer in layers if layer.signed or bool((states[layer.index]["m"] < 0).any()))
    signed = {layer.is_dictionary for layer in negative}
    layers = [replace(layer, signed=layer.is_dictionary in signed) for layer in layers]
    final = output if layers[-1].readout_block else states[-1]["o"]
    return Decomposition(layers, last_block, returns, errors, final, logits, type_name(model))


def _prove_experts(model: nn.Module, ids: Tensor) -> float:
    """Lets banks of experts keep records; the largest relative error of what they return, on the inputs of a text."""
    layouts = {name: layout for name, module in model.named_modules() if (layout := layout_of(module)) is not None}
    # If the parent multiplies the inputs, it also sums the outputs: only the parent's own output is defined.
    names = [name if layout.reads_x else name.rpartition(".")[0] for name, layout in layouts.items()]
    original: dict[str, Tensor] = {}

    def note(name: str, module: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
        original.setdefault(name, known_state(output).clone())

    with after(*by_name(model, names, note)):
        arguments = capture(model, names, ids)
    record_experts(model)
    errors = [0.0]
    for name, output in original.items():
        args, kwargs = arguments[name, 0]
        with torch.no_grad():
            errors.append(relative_error(known_state(model.get_submodule(name)(*args, **kwargs)), output))
    return max(errors)


def _layer_errors(
    model: nn.Module, layers: list[Layer], states: list[States], ids: Tensor
) -> Iterator[dict[str, float]]:
    """Yields the relative errors of each layer, by identity. `states` are those on `ids` [sentence, token]."""
    prefixes = _observe_prefix(model, layers, ids)
    arguments = capture(model, [layer.block for layer in layers], ids)
    for layer in layers:
        m, b, y, o = (states[layer.index][quantity] for quantity in "mbyo")
        v, _ = values(model, layer)
        own = states[layer.index]
        made = own.get("s", 1) * (m @ v + in_residual(model, layer, b).float())
        if layer.is_dictionary:
            made += error_of(model, layer, own["u"], own.get("s"))
        rest = without_layer(model, layer, arguments[layer.block, layer.repeat]).reshape(o.shape)
        prefix_m = prefixes[layer.index]["m"]
        yield {
            "memories": relative_error(made, y),
            "residual": relative_error(y + rest, o),
            "prefix": relative_error(prefix_m, m[:, : prefix_m.shape[1]]) if m.any() else 0.0,
        }


def _check_short_rows(model: nn.Module, layers: list[Layer], ids: Tensor, error: float) -> None:
    """Raises UserError if the coefficients of a prefix depend on what follows it in long rows alone, with their length.

    In half precision, where short rows tell little, it raises nothing.
    """
    for length in range(MIN_TOKENS, ids.shape[1] + 1) if type_name(model) == "float32" else ():
        short = ids[:, :length]
        pairs = zip(_observe_prefix(model, layers, short), observe(model, layers, short, "m"), strict=True)
        off = max(relative_error(part["m"], whole["m"][:, : part["m"].shape[1]]) for part, whole in pairs)
        if off >= TOLERANCE["float32"] and length > MIN_TOKENS:
            raise UserError(
                f"in rows of more than {length - 1} tokens the coefficients of a prefix depend on what follows it (relative"
                f" error {error:.0e} in rows of {ids.shape[1]} tokens)"
            )
        if off >= TOLERANCE["float32"]:
            return


def _observe_prefix(model: nn.Module, layers: list[Layer], ids: Tensor) -> list[States]:
    """Coefficients of every layer on the first two thirds of a text [sentence, token], without the rest of it.

    In low precision another rest replaces it: texts of other lengths are rounded in other ways, by 5 % and more after some 25
    blocks in bfloat16. Texts of the same length are rounded alike.
    """
    end = ids.shape[1] * 2 // 3
    if TOLERANCE[type_name(model)] == TOLERANCE["float32"]:
        return observe(model, layers, ids[:, :end], "m")
    rest = ids[:, : ids.shape[1] - end]
    found = observe(model, layers, torch.cat([ids[:, :end], rest], 1), "m")
    return [{"m": states["m"][:, :end]} for states in found]


def without_layer(model: nn.Module, layer: Layer, arguments: Arguments) -> Tensor:
    """Returns the residual: the block output without the feed-forward layer [sentence, token, d].

    `arguments`: of the call of the layer's block, see `capture`.
    """
    inside = len(layer.block) + 1
    off = [matrix.module[inside:] for matrix in layer.second_matrices]
    trace = replay(model.get_submodule(layer.block), arguments, dict.fromkeys(off, torch.zeros_like))
    return known_state(trace.at(layer.sum_module[inside:])).float()


def _require(identity: str, error: float, dtype: str, where: str = "") -> None:
    tolerance = TOLERANCE[dtype]
    if error < tolerance:  # false for NaN, too
        return
    if error != error:
        raise UserError(f"{where}coefficients or outputs are not finite: the model overflows in its type. {REMEDY}")
    remedy = "" if tolerance == TOLERANCE["float32"] else f". It may be rounding. {REMEDY}"
    raise UserError(
        f"{where}{IDENTITIES[identity].failure} (relative error {error:.0e}, allowed {tolerance:.0e}){remedy}"
    )


def prove_head(head: Head, decomposition: Decomposition) -> tuple[float, bool]:
    """Returns the relative error of a head, as it was stored and in float32, against the model's own logits.

    Also returns whether the head reads the direction of a vector alone, so that its length changes no logit. Raises UserError if
    the error is larger than the tolerance.
    """
    last, final = decomposition.layers[-1], decomposition.final.flatten(0, -2)
    # Multiples of what the head reads: the long ones are far beyond the constant that norms add to a variance.
    multiples = (times * final for times in (1.0, 1e3, 1e4))
    logits, long, longer = (head.logits(each, None if last.readout_block else last.index) for each in multiples)
    error = relative_error(logits.reshape(decomposition.logits.shape).cpu(), decomposition.logits)
    _require("head", error, decomposition.dtype)
    return error, relative_error(longer, long) < SAME_DIRECTION


def _last_block(model: nn.Module, layers: list[Layer], ids: Tensor) -> tuple[str, int, Tensor, Tensor]:
    """Finds the block that runs last, with or without a feed-forward layer.

    Returns its name, the length of the tuple that it returns (0: a tensor), what it returns first, and the logits.
    """
    latest: dict[str, tuple[int, Tensor]] = {}  # of one block at a time

    def note(name: str, module: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
        latest.clear()
        latest[name] = 0 if torch.is_tensor(output) else len(output), known_state(output).float().clone()

    with after(*by_name(model, blocks_beside(model, layers), note)):
        logits = forward(model, ids).logits.float()
    name, (returns, output) = latest.popitem()
    return name, returns, output, logits
