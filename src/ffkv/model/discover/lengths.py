"""The identity "prefix" at the lengths that are really read: alone, inside longer rows, and beside them in one batch.

Some models compute long rows in another way than short ones: with other rotary angles (longrope), or by chunks. Then the
coefficients of a prefix depend on what follows it, or on the other rows of its batch.
"""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ffkv.base.batching import pad
from ffkv.base.errors import UserError
from ffkv.model.anatomy import Layer
from ffkv.model.identities import TOLERANCE
from ffkv.model.tap.hooks import tried, type_name
from ffkv.model.tap.tap import tap

BOUNDARY = re.compile("window|chunk|original|max_pos|n_positions|local_att")  # in names of config fields
COMPARED = 8  # tokens at the end of a row whose coefficients are compared


def lengths_of(longest: int, config: Any) -> list[int]:
    """Returns the lengths at which prefixes are compared: a quarter of each other, and both sides of each named boundary."""
    fields = [*vars(config).items(), *(getattr(config, "rope_parameters", None) or {}).items()]
    named = {value for name, value in fields if BOUNDARY.search(name) and type(value) is int}
    quarters = {longest // 4**power for power in range(16)}
    return sorted(each for each in quarters | named | {value + 1 for value in named} if 1 < each <= longest)


def steady_length(
    model: nn.Module, layers: list[Layer], row: np.ndarray, device: str = "cpu", batch_tokens: int = 0
) -> int:
    """Returns the number of tokens up to which coefficients of prefixes do not depend on the length of what is read.

    The beginnings of a row [token] are read alone, from the shortest to the whole row. The longest of which two fit into
    `batch_tokens` is read beside the shortest in its place, and alone only if coefficients differ then. Raises UserError
    if this alone changes coefficients, or if they are not finite.
    """
    config = model.config.get_text_config(decoder=True)  # type: ignore[operator, union-attr]
    lengths = lengths_of(len(row), config)
    compared = _Comparison(model, layers, device)
    with tap(model, layers, "m") as run:
        beside = max((length for length in lengths[1:] if 2 * length <= batch_tokens), default=0)
        for before, length in zip([1, *lengths], lengths, strict=False):
            if length == beside and compared.holds(run, [row[:length], row[: lengths[0]]]):
                continue
            if not compared.holds(run, [row[:length]]):
                return before
            if length == beside:
                raise UserError(
                    f"the coefficients of a prefix change with the rows beside it in a batch (rows of {lengths[0]} and"
                    f" {length} tokens). Set batches.tokens to 1: then each row is read alone"
                )
    return len(row)


class _Comparison:
    """Coefficients at the ends of the rows that were read so far, by layer and position."""

    def __init__(self, model: nn.Module, layers: list[Layer], device: str):
        dtype = type_name(model)
        self.device, self.tolerance = device, TOLERANCE[dtype]
        # Rounding sends tokens to other experts, and in half precision adds up: then the typical error counts.
        experts = any(matrix.experts for layer in layers for matrix in layer.second_matrices)
        self.typical = experts or dtype in ("float16", "bfloat16")
        # Ascending positions, and the coefficients there of each layer [position, memory].
        self.positions, self.known = list[int](), dict[int, Tensor]()

    def holds(self, run: Any, rows: Sequence[np.ndarray]) -> bool:
        """Tells whether rows that are read together have the known coefficients; notes those at the end of the first."""
        errors, found = list[Tensor](), dict[int, Tensor]()
        # The positions at the end of the first row that are not known. Later rows are longer.
        new = range(max(0, len(rows[0]) - COMPARED, *(each + 1 for each in self.positions[-1:])), len(rows[0]))

        def compare(layer: Layer, quantity: str, m: Tensor) -> None:
            known = self.known.get(layer.index, m.new_empty(0, m.shape[-1], dtype=torch.float32))
            for row, coefficients in zip(rows, m, strict=True) if self.positions else ():
                there = [position for position in self.positions if position < len(row)]
                off = (coefficients[there].float() - known[: len(there)]).abs().amax(1)
                errors.append((off / known.abs().max().clamp_min(1e-30)).to(self.device))
            found[layer.index] = torch.cat([known, m[0, new.start : new.stop].float()])

        raised = tried(run, pad(rows, self.device), compare)
        if isinstance(raised, Exception):
            why = f"{type(raised).__name__}: {raised}"
            raise UserError(f"it does not run on a row of {len(rows[0]):,} tokens: {why}") from raised
        if self.positions:
            together = torch.cat(errors)
            error = (together.median() if self.typical else together.max()).item()  # the only wait for a GPU
            if error != error:
                raise UserError(
                    "coefficients are not finite: the model overflows in its type. Use model.dtype float32."
                )
            if error >= self.tolerance:
                return False
        self.known, self.positions = found, [*self.positions, *new]
        return True
