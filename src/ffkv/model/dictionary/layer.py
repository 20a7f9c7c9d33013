"""The module that makes a feed-forward layer one of a dictionary: it stands where the layer's output y is made.

The model computes what it computed: y is that of its own layer. Beside it the dictionary computes m, so that
y = Σ m_i v_i + b + S x + error. If coefficients change, y changes by Σ (m_i' - m_i) v_i.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ffkv.model.anatomy import DictionaryPlace
from ffkv.model.dictionary.forms import Dictionary, form_of
from ffkv.model.placement import device_of, in_float32, resident
from ffkv.model.tap import hooks

NATIVE, ENCODER, DECODER = "native", "encoder", "decoder"  # names of what is in the module


class Call(NamedTuple):
    """What a decoder is told beside the coefficients, of tokens [..., token]."""

    m: Tensor  # the coefficients that the encoder made [..., unit]
    x: Tensor  # what the encoder read [..., d]
    y: Tensor  # the output of the model's own layer [..., d]


class Decoder(nn.Module):
    """The values of a dictionary: a second matrix, as far as its units go."""

    def __init__(self, dictionary: Dictionary):
        super().__init__()
        self.weight = nn.Parameter(dictionary.decoder, requires_grad=False)  # the values [unit, d]
        self.bias = nn.Parameter(dictionary.decoder_bias, requires_grad=False)
        self.skip = None if dictionary.skip is None else nn.Parameter(dictionary.skip, requires_grad=False)

    def forward(self, m: Tensor, call: Call | None = None) -> Tensor:
        """Returns y, and what other coefficients `m` than those of the call change of it. Without a call: Σ m_i v_i + b."""
        if call is None:
            return m @ self.weight + self.bias
        return call.y if m is call.m else call.y + (m - call.m) @ self.weight

    def rest(self, m: Tensor, y: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Returns what the dictionary writes beside its units, b + S x, and what it leaves of y, its error [..., d]."""
        beside = self.bias.expand(x.shape) if self.skip is None else self.bias + x @ self.skip.T
        return beside, y - m @ self.weight - beside


class DictionaryLayer(nn.Module):
    """Stands in the place of the module that returns y, which it calls."""

    def __init__(self, native: nn.Module, dictionary: Dictionary, replaces: Iterable[str]):
        super().__init__()
        units, width = dictionary.encoder.shape
        self.native, self.decoder = native, Decoder(dictionary)
        self.encoder = nn.Linear(width, units, device="meta").requires_grad_(False)
        self.encoder.weight = nn.Parameter(dictionary.encoder, requires_grad=False)
        self.encoder.bias = nn.Parameter(dictionary.encoder_bias, requires_grad=False)
        self.threshold: Tensor | None
        self.register_buffer("threshold", dictionary.threshold)
        self.largest, self.either_sign = dictionary.largest, dictionary.either_sign
        self.replaces = frozenset(replaces)  # the second matrices of the model's own layer, by name
        self.heard: list[Tensor] | None = None  # what a module before it read; None: the dictionary reads y

    def hear(self, module: nn.Module, args: tuple, kwargs: dict) -> None:
        """Notes what the encoder is to read, as a hook of the module that reads it, too."""
        self.heard = [hooks.hidden_input(args, kwargs)]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Returns what the model's own module returns, changed as far as hooks change the coefficients."""
        output = self.native(*args, **kwargs)
        y = hooks.known_state(output)
        x = y if self.heard is None else self.heard.pop().reshape(*y.shape[:-1], -1)
        m = activate(self.encoder(x), self.threshold, self.largest, self.either_sign)
        made = self.decoder(m, Call(m, x, y))
        return output if made is y else hooks.replace_hidden_state(output, made)


def activate(pre_activations: Tensor, threshold: Tensor | None, largest: int, either_sign: bool) -> Tensor:
    """Returns the coefficients that pre-activations [..., unit] become, see `Dictionary`."""
    if threshold is not None:
        return torch.where(pre_activations > threshold, pre_activations, 0)
    size = pre_activations.abs() if either_sign else pre_activations.relu()
    chosen = size.topk(largest, -1).indices
    return torch.zeros_like(size).scatter(-1, chosen, (pre_activations if either_sign else size).gather(-1, chosen))


def install(model: nn.Module, places: Iterable[DictionaryPlace], folder: Path | str) -> str:
    """Puts the dictionaries of a folder into the places that were chosen for them. Returns a hash over them; "" without any.

    Raises UserError if one of them cannot be read.
    """
    digest, installed = hashlib.sha256(), list(places)
    for place in installed:
        dictionary = form_of(Path(folder)).load(Path(folder) / place.file)
        put(model, place, dictionary)
        digest.update(f"{place} {dictionary.largest} {dictionary.either_sign}".encode())
        for name, tensor in dictionary.tensors().items():
            digest.update(f"{name} {tuple(tensor.shape)}".encode())
            digest.update(tensor.contiguous().numpy().data)
    return digest.hexdigest()[:16] if installed else ""


def combined(model_hash: str, dictionary_hash: str) -> str:
    """Returns the hash of a model in which dictionaries are read, from that of the model and theirs; the model's without any."""
    both = f"{model_hash} {dictionary_hash}"
    return hashlib.sha256(both.encode()).hexdigest()[:16] if dictionary_hash else model_hash


def put(model: nn.Module, place: DictionaryPlace, dictionary: Dictionary) -> None:
    """Puts a dictionary into its place, in the number type and on the device of the block."""
    native, block = model.get_submodule(place.writes), model.get_submodule(place.block)
    parent, _, name = place.writes.rpartition(".")
    with resident(block):
        dtype = next(part.dtype for part in block.parameters() if part.is_floating_point())
    read = as_read(model, place, dictionary)
    moved: dict[str, Any] = {name: tensor.to(device_of(block), dtype) for name, tensor in read.tensors().items()}
    layer = DictionaryLayer(native, replace(read, **moved), place.replaces).eval()
    if place.reads:
        layer.heard = []
        model.get_submodule(place.reads).register_forward_pre_hook(layer.hear, with_kwargs=True)
    setattr(model.get_submodule(parent), name, layer)


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
