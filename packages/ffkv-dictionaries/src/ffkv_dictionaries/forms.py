"""Forms of dictionaries: what their files tell, and what reads them. Each reader stands behind the door `ffkv.dictionary_forms`."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

from torch import Tensor

from ffkv.base.doors import load_all
from ffkv.base.errors import UserError
from ffkv.base.lookup import exists, is_dir


@dataclass(frozen=True)
class Dictionary:
    """A dictionary of one layer: m = act(E x + a) and ŷ = Σ m_i v_i + b + S x. All tensors are finite float32, on the CPU.

    A unit is a memory: its row of E is its key, its v_i is its value. What scales rows of both is folded into them, so that m is
    what the dictionary's own code gives.

    Attributes:
        encoder: E [unit, d].
        encoder_bias: a [unit]; a bias that the input loses first is folded into it.
        decoder: the values v_i [unit, d].
        decoder_bias: b [d].
        threshold: m_i is E_i x + a_i if this is above the threshold, and else 0 [unit]. Zeros are a ReLU. None if `largest` units
            are chosen per token.
        largest: number k of units that are not 0 at a token: those with the largest E_i x + a_i, or 0 if this is negative. 0: see
            `threshold`.
        either_sign: whether the `largest` are those of the largest |E_i x + a_i|, with their sign.
        skip: S [d, d], which the layer's output has beside the units; None if there is none.
        told: what its files say of the place where it reads and writes, for a person; "" if nothing.
    """

    encoder: Tensor
    encoder_bias: Tensor
    decoder: Tensor
    decoder_bias: Tensor
    threshold: Tensor | None = None
    largest: int = 0
    either_sign: bool = False
    skip: Tensor | None = None
    told: str = ""

    def tensors(self) -> dict[str, Tensor]:
        """Returns its tensors by the names of the attributes."""
        named = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in named.items() if isinstance(value, Tensor)}

    def reading(self, scale: Tensor, shift: Tensor) -> Self:
        """Returns the dictionary that makes of x what this one makes of scale * x + shift, both [d]."""
        moved: dict[str, Any] = {
            "encoder": self.encoder * scale,
            "encoder_bias": self.encoder_bias + self.encoder @ shift,
        }
        if self.skip is not None:
            moved |= {"skip": self.skip * scale, "decoder_bias": self.decoder_bias + self.skip @ shift}
        return replace(self, **moved)


@dataclass(frozen=True)
class Form:
    """A form of files. Its functions import what takes long when they are called."""

    files: str  # the files of such a folder, and the name of the form, for messages: "cfg.json and sae_weights.safetensors (SAELens)"
    reads: Callable[[Path], bool]  # whether a folder or file is of this form, perhaps an incomplete one
    # the numbers of the layers that the files have a dictionary of, each with the file or folder of that dictionary. The number is
    # None for a single dictionary whose files do not tell its layer. Raises UserError if they cannot be read
    layers: Callable[[Path], dict[int | None, Path]]
    load: Callable[[Path], Dictionary]  # of one of these files or folders. Raises UserError if it cannot be read


def form_of(path: Path) -> Form:
    """Returns what reads the dictionaries in a folder.

    Raises UserError if nothing is there, no package reads it, or it holds dictionaries of several forms.
    """
    if not exists(path):
        raise UserError(f"dictionary.path: there is no {path}.")
    forms, broken = load_all("dictionary_forms")
    found = [form for form in forms.values() if form.reads(path)]
    if len(found) == 1:
        return found[0]
    if found:
        raise UserError(
            f"dictionary.path: {path} holds dictionaries of several forms: {'; '.join(form.files for form in found)}. Name"
            " the folder of one of them, without the files of the others."
        )
    if broken:
        raise next(iter(broken.values()))
    known = "; ".join(form.files for form in forms.values())
    alone = "" if is_dir(path) else " It is one file: name the folder that holds it and its config."
    raise UserError(f"dictionary.path: {path} is of no form that ffkv reads. It reads: {known}.{alone}")
