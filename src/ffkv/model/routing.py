"""Where banks of experts send tokens, what each expert writes there, and what a bank writes if its router leaves an expert out.

A router leaves an expert out of each token's choice if its logit is -inf. No router is written anew for that: while the model's own
code runs, the results of the router's linear map are changed, and what is ranked behind it. Whether it worked is seen in the
record of the bank: `Routed`.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ffkv.model.anatomy import Layer, SecondMatrix
from ffkv.model.checkpoint.load import LoadedModel
from ffkv.model.experts import BankCall, coefficients, last_calls
from ffkv.model.keys_and_values import in_residual
from ffkv.model.tap import hooks
from ffkv.model.tap.change import with_output
from ffkv.model.tap.tap import scale_of, tap, token_weights

Banks = list[tuple[Layer, SecondMatrix]]  # layers with a bank of experts, and their banks
PRODUCTS = {"linear", "matmul", "__matmul__", "mm", "addmm"}  # names of torch's functions that a router's map may be


class Routed(NamedTuple):
    """What a bank did with tokens. A slot of a token is one of its experts, by their numbers; empty ones are behind the last."""

    expert: Tensor  # number of the expert; -1 in an empty slot [token, slot]
    weight: Tensor  # the router's weight; NaN where it acts inside the expert [token, slot]
    written: Tensor  # what the expert adds to the residual, without the factors of norms behind [token, slot, d]
    factor: Tensor | float  # of a norm behind the layer, times that of one behind the bank [token, 1, 1]; 1 without
    o: Tensor  # o of the layer at all tokens [sentence, token, d]


def banks_of(layers: Iterable[Layer]) -> Banks:
    """Returns the layers that have a bank of experts, each with its bank."""
    return [(layer, matrix) for layer in layers for matrix in layer.second_matrices if matrix.experts]


def route(
    loaded: LoadedModel,
    ids: Tensor,
    chosen: Tensor,
    inside: contextlib.AbstractContextManager = contextlib.nullcontext(),
) -> dict[int, Routed]:
    """Runs tokens [sentence, token]; returns what each bank does with some of them, by layer.

    `chosen`: the numbers of these tokens in `ids` laid out flat. `inside`: the pass runs inside this `with` statement.
    """
    layers, banks, seen = loaded.anatomy.layers, banks_of(loaded.anatomy.layers), dict[tuple[int, str], Tensor]()
    calls, unweighted = dict[int, tuple[Tensor, Tensor, Tensor]](), dict[int, Tensor]()
    quantities = "o" + "s" * any(layer.output_kind == "norm" for layer in layers)
    quantities += "m" * any(bank.per_token_weight for _, bank in banks)

    def read(layer: Layer, bank: SecondMatrix, *_: Any) -> None:
        module = loaded.model.get_submodule(bank.module)
        call = last_calls.pop(module) if quantities == "o" else last_calls[module]  # else the tap drops it itself
        own = chosen.to(call.written.device)
        if bank.per_token_weight:  # a norm behind the bank alone: m has its factor
            unweighted[layer.index] = coefficients(module, own)[own]
        calls[layer.index] = _routed(call, bank, own)

    def receive(layer: Layer, quantity: str, tensor: Tensor) -> None:
        if quantity == "o":
            seen[layer.index, quantity] = tensor.clone()
        elif quantity == "s" or layer.index in unweighted:
            its = tensor.flatten(0, 1)[chosen.to(tensor.device)].float()
            if quantity == "m":
                of_bank = its[:, layer.experts[0].start : layer.experts[-1].stop]
                its = token_weights(unweighted[layer.index][None], of_bank).T.float()
            seen[layer.index, quantity] = its[:, None]

    with inside, after_banks(loaded.model, banks, read), tap(loaded.model, layers, quantities) as run:
        run(ids, receive)
    found = {}
    for layer, _ in banks:  # behind the pass: a norm that is asked for its gain is no part of it
        expert, weight, raw = calls[layer.index]
        written = in_residual(loaded.model, layer, raw.flatten(0, 1), directions=True).float().reshape(raw.shape)
        factor = seen.get((layer.index, "s"), 1.0) * seen.get((layer.index, "m"), 1.0)
        found[layer.index] = Routed(expert, weight, written, factor, seen[layer.index, "o"])
    return found


@contextlib.contextmanager
def after_banks(model: nn.Module, banks: Banks, act: Callable[..., None]) -> Iterator[None]:
    """Inside the `with` statement, act(layer, bank, …) is called when the bank of a layer has run, in the layer's own repeat."""
    repeats, counting = hooks.counting_repeats(model, {layer.block for layer, _ in banks})
    pairs = [
        (model.get_submodule(bank.module), partial(hooks.in_own_repeat, layer, repeats, partial(act, layer, bank)))
        for layer, bank in banks
    ]
    with hooks.before(*counting), hooks.after(*pairs):
        yield


def _routed(call: BankCall, bank: SecondMatrix, chosen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns expert, weight, and what is written, before what follows the sum of the second matrices."""
    if not call.experts:  # each token was passed on as it is
        empty = call.written.new_zeros(len(chosen), 1)
        return empty.long() - 1, empty.float(), empty[..., None].expand(-1, -1, call.written.shape[1])
    row = chosen.new_full((len(call.written),), -1)
    row[chosen] = torch.arange(len(chosen), device=chosen.device)
    tokens = row[torch.cat([each.tokens for each in call.experts])]
    kept = tokens >= 0
    order = tokens[kept].argsort(stable=True)  # the experts of each token, by their numbers
    token, counts = tokens[kept][order], tokens[kept].bincount(minlength=len(chosen))
    slot = torch.arange(len(token), device=chosen.device) - (counts.cumsum(0) - counts)[token]

    def dense(parts: Iterable[Tensor], empty: int) -> Tensor:
        values = torch.cat([*parts])[kept][order]
        found = values.new_full((len(chosen), int(counts.max()), *values.shape[1:]), empty)
        found[token, slot] = values
        return found

    written = dense((each.written for each in call.experts), 0)
    expert = dense((torch.full_like(each.tokens, each.expert) for each in call.experts), -1)
    return expert, dense((each.weight for each in call.experts), 0).float(), scale_of(bank, written) * written


class _LeavingOut(TorchFunctionMode):
    """Inside the `with` statement, a router that runs leaves out an expert of each token."""

    experts = 0  # of the bank whose router runs
    left_out: Tensor | None = None  # see `leaving_out`; None: no router has run since a bank did
    maps = False  # whether the router's linear map runs

    def __torch_function__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        name = getattr(function, "__name__", "")
        if name == "topk":
            args = self._without(args[0]), *args[1:]
        result = function(*args, **(kwargs or {}))
        return self._without(result) if self.maps and name in PRODUCTS else result

    def _without(self, scores: Tensor) -> Tensor:
        out = self.left_out
        if out is None or scores.shape[-1] != self.experts or scores.numel() != self.experts * len(out):
            return scores
        rows, out = scores.reshape(len(out), -1).clone(), out.to(scores.device)
        rows[out >= 0, out[out >= 0]] = -torch.inf
        return rows.reshape(scores.shape)


@contextlib.contextmanager
def leaving_out(loaded: LoadedModel, unchanged: Mapping[int, Routed], left_out: Mapping[int, Tensor]) -> Iterator[None]:
    """Inside the `with` statement, the router of each layer leaves out an expert of each token.

    The layers do not see this of each other: o of each layer is set to what it is without the change. So one pass tells of all
    layers. Whoever uses it must check that no token is sent to its expert, and each to as many as before.

    `unchanged`: see `route`. `left_out`: the expert that is left out for each token, by layer; -1: none [sentence * token].
    """
    model, banks, mode = loaded.model, banks_of(loaded.anatomy.layers), _LeavingOut()
    repeats, pairs = hooks.counting_repeats(model, {layer.block for layer, _ in banks})

    def begin(layer: Layer, bank: SecondMatrix, *_: Any) -> None:
        mode.experts, mode.left_out, mode.maps = bank.experts, left_out[layer.index], True

    def end_map(*_: Any) -> None:
        mode.maps = False

    def end(*_: Any) -> None:
        mode.left_out = None

    def restore(layer: Layer, o: Tensor) -> Tensor:
        return unchanged[layer.index].o.to(o).reshape(o.shape)

    with contextlib.ExitStack() as stack:
        for layer, bank in banks:
            stack.enter_context(with_output(model, layer, partial(restore, layer)))
            for router in _routers(model, layer, bank):
                pairs.append((router, partial(hooks.in_own_repeat, layer, repeats, partial(begin, layer, bank))))
                stack.enter_context(hooks.after((router, end_map)))
        stack.enter_context(after_banks(model, banks, end))
        stack.enter_context(hooks.before(*pairs))
        stack.enter_context(mode)
        yield


def _routers(model: nn.Module, layer: Layer, bank: SecondMatrix) -> list[nn.Module]:
    """Returns the modules with a matrix of a row per expert: those inside a bank; without any, those of the module around it."""
    others = {name for matrix in layer.second_matrices for name in (matrix.module, *matrix.first_matrices)}
    known, found = {model.get_submodule(name) for name in others}, list[nn.Module]()
    for scope in (bank.module, bank.module.rpartition(".")[0]):
        found = found or [
            module
            for module in model.get_submodule(scope).modules()
            if module not in known
            and any(each.ndim == 2 and len(each) == bank.experts for each in module.parameters(recurse=False))
        ]
    return found
