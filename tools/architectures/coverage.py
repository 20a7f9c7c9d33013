"""The coverage table: one row per causal language model type of transformers says whether ffkv can read it as memories.

A tiny model of the type is saved, and goes the way of a real checkpoint. Its proof alone decides.
"""

import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import pandas as pd

from ffkv.base.errors import UserError
from ffkv.base.process.runtime import torch_with
from ffkv.base.process.workers import in_order


@dataclass(frozen=True)
class Row:
    """One model type. Fields that do not apply are empty."""

    model_type: str  # as a checkpoint's config.json names it
    proven: str  # "yes" or "no"
    kind: str = ""  # how its feed-forward layers are built; several kinds are separated by |
    largest_error: str = ""  # largest relative error of all identities of the proof, to one digit
    reason: str = ""  # why it is not proven, or not up to its whole context


COLUMNS = [field.name for field in fields(Row)]


def table(rows: list[Row]) -> pd.DataFrame:
    """Returns the rows as a table, in their order."""
    return pd.DataFrame([asdict(row) for row in rows], columns=COLUMNS)


def rows(model_types: list[str], processes: int) -> Iterator[Row]:
    """Yields the rows of model types, in their order. The number of processes changes no row."""
    from transformers.utils import logging

    torch_with(1)  # a fork would inherit its threads, but not their locks
    logging.set_verbosity_error()  # the sizes of tiny models are odd
    yield from in_order(row, model_types, min(processes, len(model_types)), "prove types")


def row(model_type: str, settings: dict[str, Any] | None = None) -> Row:
    """Saves a tiny model of a type as a checkpoint, and proves it as any other, beside shorter rows, too.

    `settings`: see `tiny_model`. A checkpoint of a type is refused for the same reason.
    """
    from ffkv.base.settings import Model
    from ffkv.model.discover.lengths import steady_length
    from ffkv.model.discover.probe_texts import long_row, passages
    from ffkv.model.step import prove
    from tools.architectures.tiny import save_tiny

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "checkpoint"
        try:
            save_tiny(folder, model_type, settings)
        except Exception as error:  # the type's own code may raise anything
            return Row(model_type, "no", reason=f"not built: {type(error).__name__}: {_line(error)}")
        try:
            proven = prove(Model(checkpoint=str(folder), device="cpu"))
            model, tokens = proven.model, proven.anatomy.proven_tokens
            longest = long_row(model, passages(model, proven.tokenizer)[1], tokens)
            # Alone, a row of this length is proven; beside others it may raise an error.
            steady_length(model, proven.anatomy.layers, longest, batch_tokens=2 * tokens)
            anatomy = proven.write(name)
        except UserError as error:
            reason = _line(error.__cause__ if isinstance(error.__cause__, UserError) else error)
            return Row(model_type, "no", reason=reason.replace(str(folder), model_type))
        except Exception as error:  # a defect of ffkv: in the table, so that it is seen
            return Row(model_type, "no", reason=f"error: {type(error).__name__}: {_line(error)}")
    kinds, largest = sorted({layer.kind for layer in anatomy.layers}), f"{max(anatomy.errors.values()):.0e}"
    limits = "; ".join(remark for remark in anatomy.remarks if remark.startswith("context"))
    return Row(model_type, "yes", " | ".join(kinds), largest, limits)


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())
