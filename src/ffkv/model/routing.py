"""Where banks of experts send tokens, what each expert writes there, and what a bank writes if its router leaves an expert out.

A router leaves an expert out of each token's choice if its logit is -inf. No router is written anew for that: while the model's own
code runs, the results of the router's linear map are changed, and what is ranked behind it. Whether it worked is seen in the
record of the bank: `Routed`.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ffkv.model.anatomy import Layer, SecondMatrix
from ffkv.model.checkpoint.load import LoadedModel
from ffkv.model.experts import BankCall, last_calls
from ffkv.model.keys_and_values import in_residual
from ffkv.model.tap import hooks
from ffkv.model.tap.change import with_output
from ffkv.model.tap.tap import OnTensor, scale_of, tap

PRODUCTS = {"linear", "matmul", "__matmul__", "mm", "addmm"}  # names of torch's functions that a router's map may be


class Routed(NamedTuple):
    """What a bank did with tokens. A slot of a token is one of its experts, by their numbers."""

    expert: Tensor  # number of the expert; -1 behind the last one [token, slot]
    weight: Tensor  # the router's weight; NaN where it acts inside the expert [token, slot]
    written: Tensor  # what the expert adds to the residual, without the factor of a norm behind; 0 behind the last one [token, slot, d]


def bank_of(layer: Layer) -> SecondMatrix | None:
    """Returns the bank of experts of a layer; None without one."""
    return next((matrix for matrix in layer.second_matrices if matrix.experts), None)


def experts_of(layer: Layer) -> int:
    """Returns the number of experts of the bank of a layer; 0 without one."""
    return bank.experts if (bank := bank_of(layer)) else 0


def route(loaded: LoadedModel, ids: Tensor, chosen: Tensor, receive: OnTensor = lambda *_: None) -> dict[int, Routed]:
    """Runs tokens [sentence, token]; returns what each bank does with some of them, by layer.

    `chosen`: the numbers of these tokens in `ids` laid out flat. `receive`: is given s and o of each layer, as `tap` hands them out.
    """
    return _run(loaded, ids, chosen, receive, contextlib.nullcontext())


def route_without(
    loaded: LoadedModel, ids: Tensor, chosen: Tensor, outputs: Mapping[int, Tensor], left_out: Mapping[int, Tensor]
) -> dict[int, Routed]:
    """Returns what `route` does, if the router of each layer leaves an expert of each chosen token out.

    The layers do not see this of each other: o of each layer is set to what it is without the change. So one pass tells of
    all layers. Whoever calls must check that no token is sent to its expert, and each to as many as before.

    Args:
        outputs: o of the unchanged model, by layer [sentence, token, d].
        left_out: the expert that is left out for each chosen token, by layer with a bank; -1: none [token].
    """
    by_token = {}
    for layer, expert in left_out.items():
        by_token[layer] = torch.full((ids.numel(),), -1, device=expert.device)
        by_token[layer][chosen.to(expert.device)] = expert
    return _run(loaded, ids, chosen, lambda *_: None, _leaving_out(loaded, outputs, by_token))


def _run(
    loaded: LoadedModel, ids: Tensor, chosen: Tensor, receive: OnTensor, inside: contextlib.AbstractContextManager
) -> dict[int, Routed]:
    model, layers, found = loaded.model, loaded.anatomy.layers, dict[int, Routed]()

    def read(layer: Layer, bank: SecondMatrix, *_: Any) -> None:
        # Before the tap drops the record.
        call = last_calls[model.get_submodule(bank.module)]
        found[layer.index] = _routed(call, bank, chosen.to(call.written.device))

    with inside, _after_banks(model, layers, read), tap(model, layers, "so") as run:
        run(ids, receive)
    for layer in layers:  # behind the pass: a norm that is asked for its gain is no part of it
        if (own := found.get(layer.index)) is not None:
            written = in_residual(model, layer, own.written.flatten(0, 1), directions=True)
            found[layer.index] = own._replace(written=written.float().reshape(own.written.shape))
    return found


@contextlib.contextmanager
def _after_banks(model: nn.Module, layers: Sequence[Layer], act: Callable[..., None]) -> Iterator[None]:
    """Inside the `with` statement, act(layer, bank, …) is called when the bank of a layer has run, in the layer's own repeat."""
    repeats, counting = hooks.counting_repeats(model, {layer.block for layer in layers})
    pairs = [
        (model.get_submodule(bank.module), partial(hooks.in_own_repeat, layer, repeats, partial(act, layer, bank)))
        for layer in layers
        if (bank := bank_of(layer))
    ]
    with hooks.before(*counting), hooks.after(*pairs):
        yield


def _routed(call: BankCall, bank: SecondMatrix, chosen: Tensor) -> Routed:
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

    calls = call.experts
    written = dense((each.written for each in calls), 0)
    weights = (
        each.written.new_full((len(each.tokens), 1), torch.nan) if each.weight is None else each.weight
        for each in calls
    )
    experts = dense((torch.full_like(each.tokens, each.expert) for each in calls), -1)
    return Routed(experts, dense(weights, 0)[..., 0].float(), scale_of(bank, written) * written)


class _LeavingOut(TorchFunctionMode):
    """Inside the `with` statement, a router that runs leaves out an expert of each token."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = 0  # of the bank whose router runs
        self.left_out: Tensor | None = (
            None  # the expert of each token; -1: none. None: no router has run since the last bank did
        )
        self.maps = False  # whether the router's linear map runs

    def __torch_function__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        name = getattr(function, "__name__", "")
        if name == "topk":
            args = self._without(args[0]), *args[1:]
        result = function(*args, **(kwargs or {}))
        return self._without(result) if self.maps and name in PRODUCTS else result

    def _without(self, scores: Tensor) -> Tensor:
        if (
            self.left_out is None
            or scores.shape[-1] != self.experts
            or scores.numel() != self.experts * len(self.left_out)
        ):
            return scores
        rows, out = scores.reshape(-1, self.experts).clone(), self.left_out.to(scores.device)
        rows[out >= 0, out[out >= 0]] = -torch.inf
        return rows.reshape(scores.shape)


@contextlib.contextmanager
def _leaving_out(loaded: LoadedModel, outputs: Mapping[int, Tensor], left_out: Mapping[int, Tensor]) -> Iterator[None]:
    model, layers, mode = loaded.model, loaded.anatomy.layers, _LeavingOut()
    repeats, pairs = hooks.counting_repeats(model, {layer.block for layer in layers})

    def begin(layer: Layer, experts: int, *_: Any) -> None:
        mode.experts, mode.left_out, mode.maps = experts, left_out[layer.index], True

    def end_map(*_: Any) -> None:
        mode.maps = False

    def end(*_: Any) -> None:
        mode.left_out = None

    with contextlib.ExitStack() as stack:
        for layer in layers:
            o = outputs[layer.index]
            stack.enter_context(with_output(model, layer, lambda changed, o=o: o.to(changed).reshape(changed.shape)))
            if (bank := bank_of(layer)) is None:
                continue
            for router in _routers(model, layer, bank):
                pairs.append(
                    (router, partial(hooks.in_own_repeat, layer, repeats, partial(begin, layer, bank.experts)))
                )
                stack.enter_context(hooks.after((router, end_map)))
        stack.enter_context(_after_banks(model, layers, end))
        stack.enter_context(hooks.before(*pairs))
        with mode:
            yield


def _routers(model: nn.Module, layer: Layer, bank: SecondMatrix) -> list[nn.Module]:
    """Returns the modules with a matrix of a row per expert: those inside a bank; without any, those of the module around it."""
    others = {name for matrix in layer.second_matrices for name in (matrix.module, *matrix.first_matrices)}
    known = {model.get_submodule(name) for name in others}
    for scope in (bank.module, bank.module.rpartition(".")[0]):
        found = [
            module
            for module in model.get_submodule(scope).modules()
            if module not in known
            and any(each.ndim == 2 and len(each) == bank.experts for each in module.parameters(recurse=False))
        ]
        if found:
            return found
    return []
