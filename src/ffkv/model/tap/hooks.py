"""Hooks that are always removed, and the hidden states in what modules read and return."""

import contextlib
import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ffkv.base.errors import UserError
from ffkv.base.fault import BatchTooLarge, is_out_of_memory, out_of_memory
from ffkv.model.anatomy import Layer

Hook = Callable[..., Any]
NamedHook = tuple[Hook, str, Hook]  # `before` or `after`, the name of a module, its hook


@contextlib.contextmanager
def _hooked(register: Callable[..., Any], *pairs: tuple[nn.Module, Hook]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for module, hook in pairs:
            stack.callback(register(module, hook, with_kwargs=True).remove)
        yield


# Inside the `with` statement, hook(module, args, kwargs) is called before each forward pass of its module.
before = partial(_hooked, nn.Module.register_forward_pre_hook)
# Inside the `with` statement, hook(module, args, kwargs, output) is called after each forward pass of its module.
after = partial(_hooked, nn.Module.register_forward_hook)


def by_name(model: nn.Module, names: Iterable[str], hook: Hook) -> list[tuple[nn.Module, Hook]]:
    """Returns some modules, each with a hook that is given the module's name first, for `before` and `after`."""
    return [(model.get_submodule(name), partial(hook, name)) for name in dict.fromkeys(names)]


def blocks_beside(model: nn.Module, layers: Iterable[Layer]) -> dict[str, nn.Module]:
    """Returns all items of the lists that hold the blocks of some layers, by name, in order."""
    lists = dict.fromkeys(layer.block.rpartition(".")[0] for layer in layers)
    return {f"{path}.{name}": block for path in lists for name, block in model.get_submodule(path).named_children()}


def counting_repeats(model: nn.Module, blocks: Iterable[str]) -> tuple[Counter[str], list[tuple[nn.Module, Hook]]]:
    """Returns how often each block has started in the running forward pass, and the hooks that count it, for `before`."""
    repeats: Counter[str] = Counter()

    def count(block: str, *_: Any) -> None:
        repeats[block] += 1

    return repeats, [(model, lambda *_: repeats.clear()), *by_name(model, blocks, count)]


def in_own_repeat(layer: Layer, repeats: Counter[str], hook: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a hook in the layer's own repeat of its block, and returns what it does; None in other repeats."""
    return hook(*arguments) if repeats[layer.block] == layer.repeat + 1 else None


def hidden_state(output: Any) -> Tensor | None:
    """Returns the hidden state in what a module returns: the tensor itself, or the first one in a tuple or mapping."""
    if torch.is_tensor(output):
        return output
    items = output.values() if isinstance(output, Mapping) else output if isinstance(output, tuple | list) else ()
    return next((state for item in items if (state := hidden_state(item)) is not None), None)


def known_state(output: Any) -> Tensor:
    """Returns the hidden state in what a module returns, if a caller knows that there is one."""
    state = hidden_state(output)
    if state is None:
        raise TypeError(f"no tensor in a {type(output).__name__}")
    return state


def replace_hidden_state(output: Any, state: Tensor) -> Any:
    """Puts another tensor in place of the hidden state in what a module returned."""
    if torch.is_tensor(output):
        return state
    if isinstance(output, Mapping):
        name = next(name for name, item in output.items() if hidden_state(item) is not None)
        return type(output)(**{**output, name: replace_hidden_state(output[name], state)})
    place = next(number for number, item in enumerate(output) if hidden_state(item) is not None)
    return type(output)([*output[:place], replace_hidden_state(output[place], state), *output[place + 1 :]])


def hidden_argument(args: tuple, kwargs: dict) -> Tensor | None:
    """Returns the hidden state among a module's arguments: the first floating-point tensor."""
    tensors = (value for value in (*args, *kwargs.values()) if torch.is_tensor(value) and value.is_floating_point())
    return next(tensors, None)


def hidden_input(args: tuple, kwargs: dict) -> Tensor:
    """Returns the hidden state among a module's arguments, passed by position or by name. Raises UserError without one."""
    state = hidden_argument(args, kwargs)
    if state is None:
        raise UserError(f"a module was called without a hidden state (arguments: {[*map(type, args), *kwargs]})")
    return state


def replace_hidden_argument(args: tuple, kwargs: dict, state: Tensor) -> tuple[tuple, dict]:
    """Returns a module's arguments, with another tensor as its hidden state."""
    original = hidden_argument(args, kwargs)
    return tuple(state if value is original else value for value in args), {
        name: state if value is original else value for name, value in kwargs.items()
    }


def map_tensors(function: Callable[[Tensor], Tensor], arguments: Any) -> Any:
    """Returns captured arguments, however nested, with a function of each tensor in its place."""
    if torch.is_tensor(arguments):
        return function(arguments)
    if type(arguments) is dict:
        return {name: map_tensors(function, value) for name, value in arguments.items()}
    return tuple(map_tensors(function, value) for value in arguments) if type(arguments) is tuple else arguments


def attention_mask(seen: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns what is added to scores of attention [sentence, 1, token, token], so that a token sees only some of the tokens.

    `seen`: whether it sees each of them [sentence, token, token]. `dtype`: number type of the model.
    """
    return torch.zeros_like(seen, dtype=dtype).masked_fill_(~seen, torch.finfo(dtype).min)[:, None]


def forward(model: nn.Module, ids: Tensor, gradients: bool = False, cache: Any = None, **arguments: Any) -> Any:
    """Runs one forward pass over `ids` [sentence, token], with gradients if they are asked for.

    `cache`: a `Cache` of transformers, with keys and values of earlier tokens, to which the pass adds its own. `arguments` go to
    the model, such as `position_ids`. Raises UserError if the memory does not suffice.
    """
    if cache is not None:
        # Before transformers 5.24, and in model code beside a checkpoint, it has another name.
        takes = inspect.signature(model.forward).parameters
        arguments["cache" if "cache" in takes else "past_key_values"] = cache
    with torch.set_grad_enabled(gradients), enough_memory(lambda: weight_bytes(model), BatchTooLarge):
        return model(input_ids=ids, use_cache=False, **arguments)


def tried(function: Callable[..., Any], *arguments: Any) -> Any:
    """Returns what a function that runs a model returns, or what it raised: a model's own code may raise anything.

    Raises UserError if the function does, or the memory does not suffice: that says nothing about the model.
    """
    try:
        with enough_memory(lambda: 0.0, BatchTooLarge):
            return function(*arguments)
    except UserError:
        raise
    except Exception as error:
        return error


@contextlib.contextmanager
def enough_memory(weights: Callable[[], float], kind: type[UserError] = UserError) -> Iterator[None]:
    """Inside the `with` statement, an error about memory becomes one of a `kind`. `weights` tells the weights' bytes."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:  # torch's errors are RuntimeErrors
        if is_out_of_memory(error):
            raise out_of_memory(error, weights(), kind) from error
        raise


def type_name(model: nn.Module) -> str:
    """Returns the type of a model's weights, such as "float32"."""
    return str(next(each.dtype for each in model.parameters() if each.is_floating_point())).removeprefix("torch.")


def weight_bytes(model: nn.Module) -> float:
    """Returns the bytes of the weights of a model, wherever they lie."""
    return float(sum(parameter.numel() * parameter.element_size() for parameter in model.parameters()))


def relative_error(tensor: Tensor, expected: Tensor) -> float:
    """Largest absolute difference, relative to the largest absolute expected value. NaN if a number is not finite."""
    tensor, expected = tensor.double(), expected.double()
    return ((tensor - expected).abs().max() / expected.abs().max().clamp_min(1e-30)).item()
