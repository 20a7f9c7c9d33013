"""The coverage table: one row per causal language model type of transformers says whether ffkv can read it as memories.

A tiny model of the type goes through the same proof as a real checkpoint. The proof alone decides.
"""

import multiprocessing
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any

import pandas as pd

from ffkv.base.errors import UserError

SENTENCES, TOKENS = 2, 12


@dataclass(frozen=True)
class Row:
    """One model type. Fields that do not apply are empty."""

    model_type: str  # as a checkpoint's config.json names it
    proven: str  # "yes" or "no"
    kind: str = ""  # how its feed-forward layers are built; several kinds are separated by |
    largest_error: str = ""  # largest relative error of all identities of the proof, to one digit
    reason: str = ""  # why it is not proven


COLUMNS = [field.name for field in fields(Row)]


def table(rows: list[Row]) -> pd.DataFrame:
    """Returns the rows as a table, in their order."""
    return pd.DataFrame([asdict(row) for row in rows], columns=COLUMNS)


def rows(model_types: list[str], processes: int) -> Iterator[Row]:
    """Yields the rows of model types, in their order. The number of processes changes no row."""
    context = multiprocessing.get_context("spawn")  # a fork would inherit the threads of torch, but not their locks
    with context.Pool(min(processes, len(model_types)), initializer=_start) as pool:
        yield from pool.imap(row, model_types)


def cores() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _start() -> None:
    """Sets one thread per process, and silences transformers about the odd sizes of tiny models."""
    from ffkv.base.process.runtime import configure, torch_with

    configure(1)
    torch_with(1)
    from transformers.utils import logging

    logging.set_verbosity_error()


def row(model_type: str) -> Row:
    """Builds a tiny model of a type and puts it to the proof."""
    from ffkv.model.architectures.tiny import tiny_model

    try:
        model = tiny_model(model_type)
    except Exception as error:  # the type's own code may raise anything
        return Row(model_type, "no", reason=f"not built: {type(error).__name__}: {_line(error)}")
    return proof(model_type, model)


def proof(model_type: str, model: Any) -> Row:
    """Returns the row of a model in memory. It is calibrated on one pair of random sentences and proven on another.

    They have ids [2, 12] from the middle of the vocabulary, away from special tokens.
    """
    import torch

    from ffkv.model.architectures.tiny import VOCABULARY
    from ffkv.model.step import prove_in_memory

    generator = torch.Generator().manual_seed(0)
    pairs = [torch.randint(4, VOCABULARY - 6, (SENTENCES, TOKENS), generator=generator) for _ in range(2)]
    try:
        layers, errors = prove_in_memory(model, *pairs)
    except UserError as error:
        return Row(model_type, "no", reason=_line(error))
    except Exception as error:  # a defect of ffkv: in the table, so that it is seen
        return Row(model_type, "no", reason=f"error: {type(error).__name__}: {_line(error)}")
    kinds = sorted({layer.kind for layer in layers})
    return Row(model_type, "yes", kind=" | ".join(kinds), largest_error=f"{max(errors.values()):.0e}")


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
