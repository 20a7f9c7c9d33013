"""Runs single blocks again on the inputs that they had, with some of their modules changed."""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ffkv.model.experts.record import written
from ffkv.model.tap.hooks import (
    after,
    before,
    forward,
    hidden_argument,
    hidden_state,
    known_state,
    replace_hidden_argument,
    replace_hidden_state,
)

Arguments = tuple[tuple[Any, ...], dict[str, Any]]  # positional and named arguments of a call


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
        forward(model, ids)
    return captured


@contextlib.contextmanager
def capturing(model: nn.Module, modules: list[str]) -> Iterator[dict[tuple[str, int], Arguments]]:
    """Inside the `with` statement, one forward pass of the model fills what is yielded, see `capture`."""
    captured: dict[tuple[str, int], Arguments] = {}
    repeats: Counter[str] = Counter()

    def note(name: str, module: nn.Module, args: tuple, kwargs: dict) -> None:
        captured[name, repeats[name]] = map_tensors(torch.clone, (args, kwargs))  # a model may add to them in place
        repeats[name] += 1

    with before(*[(model.get_submodule(name), partial(note, name)) for name in dict.fromkeys(modules)]):
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
        if (state := hidden_argument(args, kwargs)) is not None:
            inputs[name] = state.clone()
        if state is None or name not in reversed_inputs:
            return None
        return replace_hidden_argument(args, kwargs, reverse(state, arguments))

    def on_output(name: str, module: nn.Module, args: tuple, kwargs: dict, output: Any) -> Any:
        state = hidden_state(output)
        if state is None:
            return output
        change = changes.get(name, lambda tensor: tensor)
        outputs[name] = change(written(module, state)).clone()
        return replace_hidden_state(output, change(state)) if name in changes else output

    modules = [(name, module) for name, module in block.named_modules() if name]
    reading = before(*[(module, partial(on_input, name)) for name, module in modules])
    writing = after(*[(module, partial(on_output, name)) for name, module in modules])
    args, kwargs = map_tensors(torch.clone, arguments)
    with torch.no_grad(), reading, writing:
        output = known_state(block(*args, **kwargs)).clone()
    return BlockTrace(output, inputs, outputs)


def reverse(states: Tensor, arguments: Arguments) -> Tensor:
    """Reverses the tokens of each sentence in `states`, whether [sentence, token, .] or [sentence * token, .]."""
    sentences, tokens = known_state(hidden_argument(*arguments)).shape[:2]
    return states.reshape(sentences, tokens, -1).flip(1).reshape(states.shape)


def map_tensors(function: Callable[[Tensor], Tensor], arguments: Any) -> Any:
    """Returns captured arguments, however nested, with a function of each tensor in its place."""
    if torch.is_tensor(arguments):
        return function(arguments)
    if type(arguments) is dict:
        return {name: map_tensors(function, value) for name, value in arguments.items()}
    return tuple(map_tensors(function, value) for value in arguments) if type(arguments) is tuple else arguments
