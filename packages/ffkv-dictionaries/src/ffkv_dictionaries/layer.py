"""The modules that stand where a layer's output y is made, and read it as a sum of other units.

The model computes what it computed. Beside it the units are computed, so that y = Σ m_i v_i + b + S x + error. If coefficients
change, y changes by Σ (m_i' - m_i) v_i. A dictionary of the residual stream makes h + y again, with h what y is added to: then
y = Σ m_i v_i + b - h + error.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ffkv.model.anatomy import DictionaryPlace
from ffkv.model.dictionaries import Call, Decoder, StandIn
from ffkv.model.placement import device_of, in_float32, resident
from ffkv.model.tap import hooks
from ffkv_dictionaries.forms import Dictionary


class DictionaryLayer(StandIn):
    """Computes the units of a dictionary from what it reads."""

    def __init__(self, native: nn.Module, dictionary: Dictionary, replaces: Iterable[str], of_stream: bool = False):
        super().__init__()
        units, width = dictionary.encoder.shape
        self.native, self.replaces = native, frozenset(replaces)
        self.decoder = Decoder(dictionary.decoder, dictionary.decoder_bias, dictionary.skip, of_stream)
        self.of_stream = of_stream  # the dictionary reads and writes h + y, with h what the module before it read
        self.encoder = nn.Linear(width, units, device="meta").requires_grad_(False)
        self.encoder.weight = nn.Parameter(dictionary.encoder, requires_grad=False)
        self.encoder.bias = nn.Parameter(dictionary.encoder_bias, requires_grad=False)
        self.threshold: Tensor | None
        self.register_buffer("threshold", dictionary.threshold)
        self.largest, self.either_sign = dictionary.largest, dictionary.either_sign
        self.heard: list[Tensor] | None = None  # what a module before it read; None: the dictionary reads y

    def hear(self, module: nn.Module, args: tuple, kwargs: dict) -> None:
        """Notes what the encoder is to read, as a hook of the module that reads it, too."""
        self.heard = [hooks.hidden_input(args, kwargs)]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Returns what the model's own module returns, changed as far as hooks change the coefficients."""
        output = self.native(*args, **kwargs)
        y = hooks.known_state(output)
        heard = None if self.heard is None else self.heard.pop().reshape(*y.shape[:-1], -1)
        if not is_read(self.encoder, self.decoder):
            return output
        h = heard if self.of_stream else None
        x = y if heard is None else heard if h is None else h + y
        m = activate(self.encoder(x), self.threshold, self.largest, self.either_sign)
        made = self.decoder(m, Call(m, x, y, h))
        return output if made is y else hooks.replace_hidden_state(output, made)


class LargestMemories(StandIn):
    """Keeps of the layer's own memories, at each token, those with the largest contributions |m_i| ‖v_i‖."""

    encoder = None

    def __init__(self, native: nn.Module, largest: int):
        super().__init__()
        with torch.no_grad(), resident(native):
            weight: Any = native.weight
            # GPT-2 has inputs by outputs.
            values = weight.detach() if type(native).__name__ == "Conv1D" else weight.detach().T
            self.decoder = Decoder(values, native(weight.new_zeros(1, len(values)))[0])
        self.native, self.replaces, self.largest = native, frozenset(), min(largest, len(values))
        self.norms: Tensor
        self.register_buffer("norms", values.float().norm(dim=1).to(values))

    def forward(self, m: Tensor) -> Tensor:
        """Returns what the second matrix returns, changed as far as hooks change the coefficients that are kept."""
        if not is_read(self.decoder):
            return self.native(m)
        kept = self.keep(m)
        return self.decoder(kept, Call(kept, m, self.native(m)))

    def keep(self, m: Tensor) -> Tensor:
        """Returns coefficients [..., memory], 0 but for those that are kept."""
        if self.largest == m.shape[-1]:
            return m
        chosen = (m.abs() * self.norms).topk(self.largest, -1).indices
        return torch.zeros_like(m).scatter(-1, chosen, m.gather(-1, chosen))


def is_read(*parts: nn.Module) -> bool:
    """Tells whether a hook reads or changes units. If not, they are not computed: y does not need them."""
    return any(part._forward_hooks or part._forward_pre_hooks for part in parts)


def activate(pre_activations: Tensor, threshold: Tensor | None, largest: int, either_sign: bool) -> Tensor:
    """Returns the coefficients that pre-activations [..., unit] become, see `Dictionary`."""
    if threshold is not None:
        return torch.where(pre_activations > threshold, pre_activations, 0)
    size = pre_activations.abs() if either_sign else pre_activations.relu()
    chosen = size.topk(largest, -1).indices
    return torch.zeros_like(size).scatter(-1, chosen, (pre_activations if either_sign else size).gather(-1, chosen))


def put(model: nn.Module, place: DictionaryPlace, dictionary: Dictionary | None) -> StandIn:
    """Puts a dictionary into its place, in the number type and on the device of the block; None: the layer's largest memories."""
    native, block = model.get_submodule(place.writes), model.get_submodule(place.block)
    parent, _, name = place.writes.rpartition(".")
    if dictionary is None:
        layer: StandIn = LargestMemories(native, place.largest)
    else:
        with resident(block):
            dtype = next(part.dtype for part in block.parameters() if part.is_floating_point())
        read = as_read(model, place, dictionary)
        moved: dict[str, Any] = {name: each.to(device_of(block), dtype) for name, each in read.tensors().items()}
        layer = read_here = DictionaryLayer(native, replace(read, **moved), place.replaces, place.of_stream)
        if place.reads:
            read_here.heard = []
            model.get_submodule(place.reads).register_forward_pre_hook(read_here.hear, with_kwargs=True)
    setattr(model.get_submodule(parent), name, layer.eval())
    return layer


def as_read(model: nn.Module, place: DictionaryPlace, dictionary: Dictionary) -> Dictionary:
    """Returns a dictionary that reads what the module at its place reads: a gain is folded into it if it was made without it."""
    if not place.without_gain:
        return dictionary
    gain, bias = gain_of(model.get_submodule(place.without_gain), dictionary.encoder.shape[1])
    return dictionary.reading(1 / gain, -bias / gain)


def gain_of(norm: nn.Module, width: int) -> tuple[Tensor, Tensor]:
    """Returns what a norm multiplies each dimension of a vector with when its variance is 1, and adds then [d], float32."""
    # Of mean 0 and without zeros: a norm that takes the mean away does the same to it.
    plain = torch.tensor([1.0, -1.0]).repeat(width // 2 + 1)[:width]
    plain = plain if width % 2 == 0 else torch.cat([torch.tensor([1.0, 1.0, -2.0]), plain[: width - 3]])
    plain = plain / plain.square().mean().sqrt()
    with torch.no_grad(), in_float32(norm):
        both = torch.stack([torch.zeros(width), plain])[None].to(device_of(norm))
        bias, made = hooks.known_state(norm(both))[0].float().cpu()
    return (made - bias) / plain, bias
