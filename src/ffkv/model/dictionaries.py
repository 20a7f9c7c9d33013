"""What stands in the place of a layer's second matrix when its output is read as a sum of other units: those of a dictionary.

A package brings dictionaries through the door `ffkv.dictionaries`. Here is what the model needs of them.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ffkv.base.doors import load
from ffkv.base.settings import Dictionary
from ffkv.model.anatomy import DictionaryPlace, Layer


class Call(NamedTuple):
    """What a decoder is told beside the coefficients, of tokens [..., token]."""

    m: Tensor  # the coefficients that the dictionary computed [..., unit]
    x: Tensor  # what the dictionary read [..., .]
    y: Tensor  # the output of the model's own module [..., d]
    h: Tensor | None = None  # what y is added to, if the units add up to h + y [..., d]


class Decoder(nn.Module):
    """The values of a dictionary: a second matrix. y is that of the model, y = Σ m_i v_i + b + S x - h + error, see `Call`."""

    def __init__(self, values: Tensor, bias: Tensor, skip: Tensor | None = None, of_stream: bool = False):
        """Takes values [unit, d], b [d] and S [d, d]; None if the dictionary passes nothing on. `of_stream`: calls have an h."""
        super().__init__()
        self.constant = skip is None and not of_stream  # whether b is all that is written beside the units
        self.weight, self.bias = (nn.Parameter(each, requires_grad=False) for each in (values, bias))
        self.skip = None if skip is None else nn.Parameter(skip, requires_grad=False)

    def forward(self, m: Tensor, call: Call | None = None) -> Tensor:
        """Returns y, and what other coefficients `m` than those of the call change of it. Without a call: Σ m_i v_i + b."""
        if call is None:
            return m @ self.weight + self.bias
        return call.y if m is call.m else call.y + (m - call.m) @ self.weight

    def rest(self, m: Tensor, call: Call) -> tuple[Tensor, Tensor]:
        """Returns what the dictionary writes beside its units, b + S x - h, and what it leaves of y, its error [..., d].

        If coefficients have changed since the call, so has y, and the error is that of the call.
        """
        beside = self.bias.expand(call.y.shape) if self.skip is None else self.bias + call.x @ self.skip.T
        beside = beside if call.h is None else beside - call.h
        return beside, self.forward(m, call) - m @ self.weight - beside


class StandIn(nn.Module):
    """Stands in the place of a module that returns y. Calls it, and then `decoder`, whose units are the memories of the layer."""

    decoder: Decoder
    native: nn.Module  # the model's own module
    encoder: Any  # an `nn.Linear` that writes what becomes the coefficients; None if the layer's own first matrices do
    replaces: frozenset[str]  # the second matrices of the model's own layer, by name: nobody reads them


@dataclass(frozen=True)
class Dictionaries:
    """What a package does with dictionaries."""

    # from a proven model, all its layers, real tokens [sentence, token] and settings: where they read and write, ascending by
    # layer, and words about it. Raises UserError if they cannot be read, do not fit, or explain too little
    choose: Callable[[nn.Module, Sequence[Layer], Tensor, Dictionary], tuple[list[DictionaryPlace], list[str]]]
    # puts them into these places of a model, from the folder; returns a hash over them. Raises UserError if one cannot be read
    install: Callable[[nn.Module, Sequence[DictionaryPlace], str], str]
    # the `ffkv.model.shape.Shape` of a model with units in the place of memories, from that without. Raises UserError if files do not fit
    resize: Callable[[Any, Dictionary], Any]


def dictionaries() -> Dictionaries:
    """Returns what the package does. Raises UserError if it is not installed, or broken."""
    found: Dictionaries = load("dictionaries", "dictionary")
    return found


def choose_places(
    model: nn.Module, layers: Sequence[Layer], texts: Sequence[Tensor], settings: Dictionary
) -> tuple[list[DictionaryPlace], list[str]]:
    """Chooses where dictionaries read and write, if settings ask for them, see `Dictionaries`. `texts`: real ids [sentence, token] each."""
    if not settings.is_asked:
        return [], []
    tokens = min(text.shape[1] for text in texts)
    return dictionaries().choose(model, layers, torch.cat([text[:, :tokens] for text in texts]), settings)


def install(model: nn.Module, places: Sequence[DictionaryPlace], folder: str, model_hash: str) -> str:
    """Puts dictionaries into their places. Returns the hash of the model with them, from that of the model; see `Dictionaries`."""
    if not places:
        return model_hash
    both = f"{model_hash} {dictionaries().install(model, places, folder)}"
    return hashlib.sha256(both.encode()).hexdigest()[:16]
