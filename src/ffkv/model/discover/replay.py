"""Runs single blocks again on the inputs that they had, with some of their modules changed.

So it finds where the output of a feed-forward layer is added to the residual stream, and what happens to it on the way.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ffkv.model.experts import written
from ffkv.model.tap import hooks
from ffkv.model.tap.tap import flat, norm_gain

Arguments = tuple[tuple[Any, ...], dict[str, Any]]  # positional and named arguments of a call
TOLERANCE = 1e-4  # relative error up to which two tensors count as equal in float32: rounding, with room to spare
ROUNDS = 30  # of alternating least squares, which converges in a few
FAR = 1e4  # times as long as its inputs are the vectors that tell a norm from a linear map, also one of a large epsilon
ROUNDING = 1e-6  # relative: smaller differences are rounding, or nothing
ROUNDED = 8  # steps of a number type that rounding may leave in a difference
MOST_ROUNDING = 0.05  # relative error of a difference that is taken for rounding, at most


class BlockTrace(NamedTuple):
    """The states inside a block that was run once more."""

    output: Tensor  # hidden state that the block returned
    # hidden state that each module read, by the module's name inside the block, in order of execution
    inputs: dict[str, Tensor]
    # hidden state that each module returned, likewise; for a bank of experts, what it wrote for each token
    outputs: dict[str, Tensor]

    def at(self, sum_module: str) -> Tensor | None:
        """Returns the input of a module, or the block's output for ""; None if the module did not run."""
        return self.inputs.get(sum_module) if sum_module else self.output


def capture(model: nn.Module, modules: list[str], ids: Tensor) -> dict[tuple[str, int], Arguments]:
    """Returns the arguments of each call of some modules on `ids` [sentence, token], by module and repeat."""
    with capturing(model, modules) as captured:
        hooks.forward(model, ids)
    return captured


@contextlib.contextmanager
def capturing(model: nn.Module, modules: list[str]) -> Iterator[dict[tuple[str, int], Arguments]]:
    """Inside the `with` statement, one forward pass of the model fills what is yielded, see `capture`."""
    captured: dict[tuple[str, int], Arguments] = {}
    repeats: Counter[str] = Counter()

    def note(name: str, module: nn.Module, args: tuple, kwargs: dict) -> None:
        # A model may add to them in place.
        captured[name, repeats[name]] = hooks.map_tensors(torch.clone, (args, kwargs))
        repeats[name] += 1

    with hooks.before(*hooks.by_name(model, modules, note)):
        yield captured


def replay(
    block: nn.Module,
    arguments: Arguments,
    changes: Mapping[str, Callable[[Tensor], Tensor]] | None = None,
    reversed_inputs: tuple[str, ...] = (),
) -> BlockTrace:
    """Runs a block again on captured arguments.

    `changes`: functions of the outputs of some modules, by the module's name inside the block. `reversed_inputs`: names of
    modules that are to read the tokens in reverse order.
    """
    inputs: dict[str, Tensor] = {}
    outputs: dict[str, Tensor] = {}
    changes = changes or {}

    def on_input(name: str, module: nn.Module, args: tuple, kwargs: dict) -> Arguments | None:
        if (state := hooks.hidden_argument(args, kwargs)) is not None:
            inputs[name] = state.clone()
        if state is None or name not in reversed_inputs:
            return None
        return hooks.replace_hidden_argument(args, kwargs, reverse(state, arguments))

    def on_output(name: str, module: nn.Module, args: tuple, kwargs: dict, output: Any) -> Any:
        state = hooks.hidden_state(output)
        if state is None:
            return output
        change = changes.get(name, lambda tensor: tensor)
        outputs[name] = change(written(module, state)).clone()
        return hooks.replace_hidden_state(output, change(state)) if name in changes else output

    modules = [(name, module) for name, module in block.named_modules() if name]
    reading = hooks.before(*[(module, partial(on_input, name)) for name, module in modules])
    writing = hooks.after(*[(module, partial(on_output, name)) for name, module in modules])
    args, kwargs = hooks.map_tensors(torch.clone, arguments)
    with torch.no_grad(), reading, writing:
        output = hooks.known_state(block(*args, **kwargs)).clone()
    return BlockTrace(output, inputs, outputs)


def reverse(states: Tensor, arguments: Arguments) -> Tensor:
    """Reverses the tokens of each sentence in `states`, whether [sentence, token, .] or [sentence * token, .]."""
    sentences, tokens = hooks.known_state(hooks.hidden_argument(*arguments)).shape[:2]
    return states.reshape(sentences, tokens, -1).flip(1).reshape(states.shape)


class Scaling(NamedTuple):
    """arrived = weight * scale * sent."""

    scale: float | Tensor  # one number, or one per dimension [d]
    per_token_weight: bool  # whether there is also a weight per token


def find_scaling(sent: Tensor, arrived: Tensor, tolerance: float) -> Scaling | None:
    """Finds the simplest scaling by which `arrived` follows from `sent`, both [token, d]; None if there is none."""
    z, d = flat(sent).double(), flat(arrived).double()
    number, vector, weight = (_ratio(z, d, dimensions) for dimensions in ((0, 1), 0, 1))
    if _close(number * z, d, tolerance):
        return Scaling(_or_one(number, tolerance), False)
    if _close(vector * z, d, tolerance):
        return Scaling(vector, False)
    if _close(weight * z, d, tolerance):
        return Scaling(1.0, True)
    weight = d.norm(dim=1, keepdim=True) / z.norm(dim=1, keepdim=True).clamp_min(1e-30)
    for _ in range(ROUNDS):
        vector = _ratio(weight * z, d, 0)
        weight = _ratio(vector * z, d, 1)
    return Scaling(vector, True) if _close(weight * vector * z, d, tolerance) else None


def proportion(tensor: Tensor, expected: Tensor, tolerance: float = TOLERANCE) -> float | None:
    """Returns the number a with a * tensor = expected; None if there is none."""
    tensor, expected = tensor.double(), expected.double()
    number = _ratio(tensor, expected, tuple(range(tensor.ndim)))
    return _or_one(number, tolerance) if _close(number * tensor, expected, tolerance) else None


def _or_one(number: Tensor, tolerance: float) -> float:
    return 1.0 if abs(number.item() - 1) < tolerance else number.item()


def _ratio(z: Tensor, d: Tensor, dimensions: int | tuple[int, ...]) -> Tensor:
    return (z * d).sum(dimensions, keepdim=True) / (z * z).sum(dimensions, keepdim=True).clamp_min(1e-300)


def _close(tensor: Tensor, expected: Tensor, tolerance: float) -> bool:
    return bool((tensor - expected).abs().max() < tolerance * expected.abs().max())


class ResidualPath(NamedTuple):
    """How the outputs of second matrices reach the residual stream. Names are those inside the block."""

    sum_module: str  # the module whose input is o = r + y; "" if the block returns it
    scalings: list[Scaling]  # what happens to the output of each second matrix before the sum
    output_module: str = ""  # see `anatomy.Layer`, as for the next two
    output_scale: float = 1.0  # a number
    output_kind: str = ""  # "sum", "norm" or "linear"


class _Ablations(NamedTuple):
    """Traces of one block on the same arguments."""

    intact: BlockTrace  # the block as it is
    without: BlockTrace  # some second matrices return zero
    without_each: dict[str, BlockTrace]  # this one of them alone returns zero
    doubled: dict[str, BlockTrace]  # this one alone returns twice its output


def residual_path(
    block: nn.Module, arguments: Arguments, intact: BlockTrace, matrices: list[str]
) -> ResidualPath | list[str]:
    """Finds the place in a block where o = r + y, with y the joint output of some second matrices.

    The block is run again on `arguments`: with all `matrices` off, with each alone off, and with each alone doubled.
    `intact` is the trace of the unchanged block. Its output is tried first, then the inputs of its later modules. Returns
    the path; if there is none, the reasons against the places that were tried.
    """
    without = replay(block, arguments, dict.fromkeys(matrices, torch.zeros_like))
    without_each = {
        matrix: without if len(matrices) == 1 else replay(block, arguments, {matrix: torch.zeros_like})
        for matrix in matrices
    }
    doubled = {matrix: replay(block, arguments, {matrix: lambda output: 2 * output}) for matrix in matrices}
    reasons: dict[str, None] = {}
    for outcome in _tried(block, _Ablations(intact, without, without_each, doubled)):
        if isinstance(outcome, ResidualPath):
            return outcome
        reasons[outcome] = None
    return [reason for reason in reasons if reason]


def _tried(block: nn.Module, ablations: _Ablations) -> Iterator[ResidualPath | str]:
    """Yields a path, or the reason against one, perhaps ""; the simplest path comes first."""
    order, matrices = list(ablations.intact.outputs), ablations.without_each
    first, last = (extreme(order.index(matrix) for matrix in matrices) for extreme in (min, max))
    later = [name for name in order[first:] if name not in matrices]
    behind = [name for name in later if not any(matrix.startswith(f"{name}.") for matrix in matrices)]
    for place in ["", *(name for name in order[last + 1 :] if name not in matrices)]:
        y = _added(ablations, place)
        if y is None:
            continue
        scalings = _scalings(ablations, place)
        for name in behind:
            path = _through(block, name, place, y, ablations)
            # A norm whose inputs are short beside its epsilon, or about equally long, only looks like a scaling.
            if isinstance(path, str) or isinstance(scalings, str) or path.output_kind == "norm":
                yield path
            else:
                break
        if isinstance(scalings, str):
            yield scalings
        elif not any(scaling.per_token_weight for scaling in scalings):
            yield ResidualPath(place, scalings)
        else:
            for name in later:
                scale = _scale_to(y, ablations.intact.outputs[name], hooks.known_state(ablations.intact.at(place)))
                yield "" if scale is None else ResidualPath(place, scalings, name, scale, "sum")


def _added(ablations: _Ablations, place: str) -> Tensor | None:
    """y at a place; None if nothing arrives there, or nothing but the outputs of the second matrices."""
    whole, rest, output = ablations.intact.at(place), ablations.without.at(place), ablations.intact.output
    if whole is None or rest is None or whole.shape != rest.shape or whole.numel() != output.numel():
        return None
    if whole.shape[-1] != output.shape[-1]:
        return None
    size = whole.abs().max()
    spread = rest.reshape(-1, rest.shape[-1]).float().std(0).max()
    added = whole - rest
    return None if added.abs().max() < ROUNDING * size or spread < ROUNDING * size else added


def _scalings(ablations: _Ablations, place: str) -> list[Scaling] | str:
    """Returns how the output of each second matrix is scaled on its way to a place; else the reason why not, or ""."""
    whole, scalings = ablations.intact.at(place), []
    where = place or "the block's output"
    for matrix, trace in ablations.without_each.items():
        z = ablations.intact.outputs[matrix]
        without, twice = trace.at(place), ablations.doubled[matrix].at(place)
        if whole is None or without is None or whole.numel() != z.numel() or whole.shape[-1] != z.shape[-1]:
            return ""
        arrived = (whole - without).reshape(z.shape)
        if arrived.abs().max() < ROUNDING * max(z.abs().max(), whole.abs().max()):
            return f"{matrix} does not arrive at {where}"
        allowed = TOLERANCE + _rounding(whole, arrived)
        scaling = find_scaling(z, arrived, allowed)
        if scaling is None:
            return f"{matrix} arrives changed at {where}: gated, normed or transformed"
        # A norm of one of several branches is read as a weight per token; a norm of the whole layer is an output module.
        branch = isinstance(scaling.scale, Tensor) and len(ablations.without_each) > 1
        if scaling.per_token_weight and not branch:
            more = (hooks.known_state(twice) - whole).reshape(z.shape)
            if proportion(more, arrived, 10 * allowed) is None:
                return f"{matrix} arrives at {where} through something that scales each token by its own length"
        scalings.append(scaling)
    return scalings


def _rounding(whole: Tensor, difference: Tensor) -> float:
    """Returns the relative error that rounding of `whole` leaves in a difference of two such tensors."""
    relative = ROUNDED * torch.finfo(whole.dtype).eps * whole.abs().max() / difference.abs().max()
    return min(relative.item(), MOST_ROUNDING)


def _through(block: nn.Module, name: str, place: str, y: Tensor, ablations: _Ablations) -> ResidualPath | str:
    """Returns the path of y through a norm or linear map that returns y; else the reason against it, perhaps ""."""
    state, output = ablations.intact.inputs.get(name), ablations.intact.outputs[name]
    scale = _scale_to(y, output, hooks.known_state(ablations.intact.at(place)))
    if scale is None or state is None or state.shape != output.shape:
        return ""
    kind = _kind(block.get_submodule(name), state, output)
    before = _scalings(ablations, name) if kind else ""
    return before if isinstance(before, str) else ResidualPath(place, before, name, scale, kind)


def _scale_to(y: Tensor, output: Tensor, whole: Tensor) -> float | None:
    """Returns the number a with a * output = y; None if there is none. `whole`: what y is a part of."""
    alike = output.numel() == y.numel() and output.shape[-1] == y.shape[-1]
    return proportion(output.reshape(y.shape), y, TOLERANCE + _rounding(whole, y)) if alike else None


def _kind(module: nn.Module, state: Tensor, output: Tensor) -> str:
    """Names what a module does with each token: "norm", "linear", or "" for anything else."""
    with torch.no_grad():
        one, far, zero = (hooks.known_state(module(x)) for x in (state[..., -1:, :].clone(), FAR * state, 0 * state))
    if proportion(one, output[..., -1:, :]) != 1.0:
        return ""  # it mixes tokens
    if proportion(far - zero, FAR * (output - zero)) == 1.0:
        return "linear"
    z, d = flat(state * norm_gain(module, state)).double(), flat(output).double()
    return "norm" if _close(_ratio(z, d, 1) * z, d, TOLERANCE) else ""  # one number per token
