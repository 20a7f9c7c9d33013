"""Runs single blocks again on the inputs that they had, with some of their modules changed."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ffkv.model.experts.record import written
from ffkv.model.tap.hooks import after, before, forward, given, hidden, with_hidden

Arguments = tuple[tuple, dict]  # of a call


class Run(NamedTuple):
    """A block run once more.

    output: its hidden state. inputs, outputs: hidden states of each of its modules, by name inside the block, in order of
    execution; the output of a bank of experts is what it writes for each token.
    """

    output: Tensor
    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]

    def at(self, site: str) -> Tensor | None:
        """What goes into a module; "" for the block's output. None where that module does not run."""
        return self.inputs.get(site) if site else self.output


def capture(model: nn.Module, blocks: list[str], ids: Tensor) -> dict[tuple[str, int], Arguments]:
    """The arguments that each run of each block gets on `ids` [sentence, token], by (block, run)."""
    caught: dict[tuple[str, int], Arguments] = {}
    runs = dict.fromkeys(blocks, 0)

    def note(name: str):
        def on_input(module, args, kwargs) -> None:
            caught[name, runs[name]] = _copy((args, kwargs))
            runs[name] += 1

        return on_input

    with before(*[(model.get_submodule(name), note(name)) for name in runs]):
        forward(model, ids)
    return caught


def replay(
    block: nn.Module,
    arguments: Arguments,
    changed: Mapping[str, Callable[[Tensor], Tensor]] | None = None,
    flipped: tuple[str, ...] = (),
) -> Run:
    """Runs a block again on captured arguments.

    Args:
        changed: what becomes of the output of some modules, by name inside the block.
        flipped: names of modules that see the tokens in reverse order.
    """
    inputs, outputs, changed = {}, {}, changed or {}

    def on_input(name: str):
        def note(module, args, kwargs):
            if (state := given(args, kwargs)) is not None:
                inputs[name] = state.clone()
            return ((reverse(args[0], arguments), *args[1:]), kwargs) if name in flipped else None

        return note

    def on_output(name: str):
        def note(module, args, kwargs, output):
            state = hidden(output)
            if state is None:
                return output
            if name in changed:
                output = with_hidden(output, changed[name](state))
                state = changed[name](written(module, state))
            else:
                state = written(module, state)
            outputs[name] = state.clone()
            return output

        return note

    parts = [(name, module) for name, module in block.named_modules() if name]
    args, kwargs = _copy(arguments)
    with torch.no_grad(), before(*[(m, on_input(n)) for n, m in parts]), after(*[(m, on_output(n)) for n, m in parts]):
        output = hidden(block(*args, **kwargs)).clone()
    return Run(output, inputs, outputs)


def reverse(states: Tensor, arguments: Arguments) -> Tensor:
    """`states` with the tokens of each sentence in reverse order, whether [sentence, token, .] or [sentence * token, .]."""
    sentences, tokens = given(*arguments).shape[:2]
    return states.reshape(sentences, tokens, -1).flip(1).reshape(states.shape)


def _copy(arguments: Any) -> Any:
    """Captured arguments, their tensors cloned: some models add the residual in place."""
    if torch.is_tensor(arguments):
        return arguments.clone()
    if type(arguments) is dict:
        return {name: _copy(value) for name, value in arguments.items()}
    return tuple(map(_copy, arguments)) if type(arguments) is tuple else arguments
