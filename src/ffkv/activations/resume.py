"""Continuing an interrupted shard: the state of a long pass is saved beside its output, as `.<name>.progress`."""

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import torch
from torch import Tensor

from ffkv.base.batching import to_host
from ffkv.base.errors import UserError
from ffkv.base.files import datasets, hdf5
from ffkv.base.files.atomic import PROGRESS, remove
from ffkv.base.files.datasets import dataset
from ffkv.base.files.stored import sum_path, versions
from ffkv.base.lookup import exists
from ffkv.base.signals import stop, stoppable
from ffkv.base.terminal import say

if TYPE_CHECKING:
    from ffkv.activations.triggers import PassState

LARGEST_SHARE = 0.05  # of the time that saving may take
STATISTICS = ("fires", "fires_negative", "total", "finite", "maximum", "minimum", "histogram")
COUNTS = ("batches", "tokens", "prefixes")


@dataclass(frozen=True)
class SavedState:
    """What a progress file holds: the state of an unfinished trigger pass, the layers one behind the other."""

    highest: np.ndarray = dataset("memory rank", "int64", unit="1", about="packed triggers of positive coefficients")
    fires: np.ndarray = dataset("memory", "int64", unit="prefix", about="number of positive coefficients")
    fires_negative: np.ndarray = dataset("memory", "int64", unit="prefix", about="number of negative coefficients")
    total: np.ndarray = dataset("memory", "int64", unit="2^-20", about="sum of the coefficient, in fixed point")
    finite: np.ndarray = dataset("memory", "bool", unit="1", about="whether every coefficient was finite")
    maximum: np.ndarray = dataset("memory", "float32", unit="1", about="largest coefficient")
    minimum: np.ndarray = dataset("memory", "float32", unit="1", about="smallest coefficient")
    histogram: np.ndarray = dataset("memory bin", "int64", unit="prefix", about="number of prefixes by coefficient")
    lowest: np.ndarray | None = dataset(
        "memory rank", "int64", unit="1", about="packed triggers of negative coefficients", optional=True
    )


@dataclass(frozen=True)
class ProgressFile:
    """Where a pass saves its state."""

    path: Path  # the file
    identity: dict[str, Any]  # all that the pass's numbers follow from; a state of another identity is not continued
    every: float  # seconds between two savings


def progress_path(output: Path) -> Path:
    """Returns the progress file of an output."""
    return output.with_name(f".{output.name}{PROGRESS}")


def discard_progress(output: Path) -> None:
    """Removes the progress file of an output that is now complete."""
    remove(progress_path(output))
    remove(sum_path(progress_path(output)))


def identity(code: str, attributes: dict[str, Any], device: str) -> dict[str, Any]:
    """Returns all that the numbers of a pass follow from.

    `code`: a hash over its code (`ffkv.base.dependencies`). `attributes`: what the output says of itself.
    """
    return {**attributes, "device": device.partition(":")[0], "versions": versions(commit=False), "code": code}


def has_identity(file: h5py.File, expected: dict[str, Any]) -> bool:
    """Tells whether an open file was saved with an identity. Both are compared as JSON, so that a tuple equals a list."""
    return hdf5.parsed(file, "identity") == json.loads(json.dumps(expected))


@contextlib.contextmanager
def resuming(progress_file: ProgressFile | None, state: "PassState") -> Iterator[Callable[[], None]]:
    """Brings a state to the point that an earlier process has saved.

    Yields `save_if_due`, to be called between two batches: it saves the state from time to time. After SIGTERM or Ctrl-C
    it saves it and ends the process.
    """
    if progress_file is None:
        yield lambda: None
        return
    load(progress_file, state)
    last, pause = time.monotonic(), progress_file.every
    with stoppable() as stopped:

        def save_if_due() -> None:
            nonlocal last, pause
            if not stopped() and time.monotonic() < last + pause:
                return
            begin = time.monotonic()
            save(progress_file, state)
            last = time.monotonic()
            pause = max(progress_file.every, (last - begin) / LARGEST_SHARE)
            if stopped():
                stop(stopped(), f"{state.tokens:,} tokens are done and saved")

        yield save_if_due


def save(progress_file: ProgressFile, state: "PassState") -> None:
    """Saves a state. Raises UserError if the file cannot be written."""
    counts = {name: getattr(state, name) for name in COUNTS}
    saved = SavedState(**{name: np.concatenate(parts) for name, parts in on_host(state).items()})
    with hdf5.create(progress_file.path, "progress", {"identity": progress_file.identity, **counts}) as file:
        datasets.write(file, saved)


def read_progress(
    path: Path, expected: dict[str, Any], record: type, **others: Any
) -> tuple[Any, dict[str, Any]] | None:
    """Returns what an earlier process saved of a pass with this identity, and the file's attributes; None if that cannot be used.

    It says why a file that is there is not used. `record`: the dataclass that describes it. `others`: its fields that are no datasets.
    """
    if not exists(path):
        return None
    try:
        with hdf5.open(path, "progress") as file:
            if has_identity(file, expected):
                return datasets.read(file, record, **others), dict(file.attrs)
            say("the saved progress belongs to other settings or code; starting from the beginning.", error=True)
    except UserError as error:
        say(f"starting from the beginning: {error}", error=True)
    return None


def load(progress_file: ProgressFile, state: "PassState") -> None:
    """Fills a state in place with what `save` wrote, if something of it can be used."""
    if (found := read_progress(progress_file.path, progress_file.identity, SavedState)) is None:
        return
    saved, attributes = found
    for name, tensors in _tensors(state).items():
        parts = torch.from_numpy(getattr(saved, name)).split([len(tensor) for tensor in tensors])
        for tensor, part in zip(tensors, parts, strict=True):
            tensor.copy_(part)
    state.settle()
    for name in COUNTS:
        setattr(state, name, int(attributes[name]))
    say(f"going on after {state.tokens:,} tokens that are done.", error=True)


def on_host(state: "PassState") -> dict[str, list[np.ndarray]]:
    """Returns every array of a state, by field of `SavedState` and by layer; all pending candidates are inserted first."""
    state.settle()
    tensors = _tensors(state)
    arrays = iter(to_host([tensor for layers in tensors.values() for tensor in layers]))
    return {name: [next(arrays) for _ in layers] for name, layers in tensors.items()}


def _tensors(state: "PassState") -> dict[str, list[Tensor]]:
    """Returns every tensor of a state, by field of `SavedState` and by layer."""
    found = {name: [getattr(layer, name) for layer in state.statistics] for name in STATISTICS}
    found["highest"] = [top.best for top in state.highest]
    return found | ({"lowest": [top.best for top in state.lowest]} if state.lowest else {})
