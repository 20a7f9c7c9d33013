"""The identity "prefix" at the lengths that are really read: alone, inside longer rows, and beside them in one batch.

Some models compute long rows in another way than short ones: with other rotary angles (longrope), or by chunks. Then the
coefficients of a prefix depend on what follows it, or on the other rows of its batch.
"""

import re
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ffkv.base.batching import pad
from ffkv.base.errors import UserError
from ffkv.model.anatomy import Layer
from ffkv.model.identities import TOLERANCE
from ffkv.model.tap.hooks import type_name
from ffkv.model.tap.tap import tap

BOUNDARY = re.compile("window|chunk|original|max_pos|n_positions|local_att")  # in names of config fields
COMPARED = 8  # tokens at the end of a row whose coefficients are compared


def lengths_of(longest: int, config: Any) -> list[int]:
    """Returns the lengths at which prefixes are compared: a quarter of each other, and on both sides of each number of
    tokens that a config names as a boundary.
    """
    fields = [*vars(config).items(), *(getattr(config, "rope_parameters", None) or {}).items()]
    named = {value for name, value in fields if BOUNDARY.search(name) and type(value) is int}
    quarters = {longest // 4**power for power in range(16)}
    return sorted(each for each in quarters | named | {value + 1 for value in named} if 1 < each <= longest)


def steady_length(
    model: nn.Module, layers: list[Layer], row: np.ndarray, device: str = "cpu", batch_tokens: int = 0
) -> int:
    """Returns the number of tokens up to which coefficients of prefixes do not depend on the length of what is read.

    The beginnings of a row [token] are read alone, from the shortest to the whole row. The longest of which two fit into
    `batch_tokens` is read beside the shortest, too. Raises UserError if this alone changes coefficients, or if they are
    not finite.
    """
    config = model.config.get_text_config(decoder=True)  # type: ignore[operator, union-attr]
    lengths = lengths_of(len(row), config)
    compared = _Comparison(model, layers, device)
    with tap(model, layers, "m") as run:
        for before, length in zip([1, *lengths], lengths, strict=False):
            if not compared.holds(run, [row[:length]]):
                return before
        mixed = [length for length in lengths[1:] if 2 * length <= batch_tokens][-1:]
        for length in mixed:
            if not compared.holds(run, [row[:length], row[: lengths[0]]]):
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
        self.known: dict[int, dict[int, Tensor]] = {layer.index: {} for layer in layers}

    def holds(self, run: Any, rows: Sequence[np.ndarray]) -> bool:
        """Tells whether rows that are read together have the known coefficients; notes those at the end of the first."""
        errors: list[Tensor] = []
        try:
            run(pad(rows, self.device), partial(self._compare, rows, errors))
        except UserError:
            raise
        except Exception as raised:  # a model's own code may raise anything
            why = f"{type(raised).__name__}: {raised}"
            raise UserError(f"it does not run on a row of {len(rows[0]):,} tokens: {why}") from raised
        if not errors:
            return True
        together = torch.stack(errors)
        error = (together.median() if self.typical else together.max()).item()
        if error != error:
            raise UserError("coefficients are not finite: the model overflows in its type. Use model.dtype float32.")
        return error < self.tolerance

    def _compare(
        self, rows: Sequence[np.ndarray], errors: list[Tensor], layer: Layer, quantity: str, m: Tensor
    ) -> None:
        known = self.known[layer.index]
        if known:
            scale = torch.stack([each.abs().max() for each in known.values()]).max().clamp_min(1e-30)
            for row, coefficients in zip(rows, m.float(), strict=True):
                errors += [
                    ((coefficients[position] - before).abs().max() / scale).cpu()
                    for position, before in known.items()
                    if position < len(row)
                ]
        for position in range(max(0, len(rows[0]) - COMPARED), len(rows[0])):
            known.setdefault(position, m[0, position].float().clone())
