"""Going on inside a shard: what a long pass has done is saved beside its output, as `.<name>.progress`."""

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import h5py
import torch
from torch import Tensor

import ffkv
from ffkv.activations.trigger_state import State, settle
from ffkv.errors import UserError
from ffkv.files import hdf5
from ffkv.files.atomic import PROGRESS, remove
from ffkv.files.checksums import sum_path
from ffkv.process.signals import stop, stoppable

LARGEST_SHARE = 0.05  # of the time that saving may take
STATISTICS = ("fires", "fires_negative", "total", "finite", "maximum", "minimum", "histogram")
COUNTS = ("batches", "tokens", "prefixes")


@dataclass(frozen=True)
class Saved:
    """Where a pass saves its state.

    path: the file. identity: all that its numbers follow from; a state of another identity is not taken up.
    every: seconds between two savings.
    """

    path: Path
    identity: dict[str, Any]
    every: float


def beside(output: Path) -> Path:
    """Where the progress towards a file is saved."""
    return output.with_name(f".{output.name}{PROGRESS}")


def forget(output: Path) -> None:
    """Removes what was saved on the way to a file that is now complete."""
    remove(beside(output))
    remove(sum_path(beside(output)))


def identity(attributes: dict[str, Any], device: str) -> dict[str, Any]:
    """All that the numbers of a pass follow from: what its output says of itself, the device, the code of ffkv and of its libraries."""
    code = hashlib.sha256()
    for path in sorted(Path(ffkv.__file__).parent.rglob("*.py")):
        code.update(path.read_bytes())
    return {**attributes, "device": device, "versions": hdf5.versions(), "code": code.hexdigest()[:16]}


def has_identity(file: h5py.File, expected: dict[str, Any]) -> bool:
    """Whether what is saved in an open file is of an identity; as JSON writes it, so that a tuple is a list.

    Raises:
        KeyError: the file names none.
    """
    return json.loads(file.attrs["identity"]) == json.loads(json.dumps(expected))


@contextlib.contextmanager
def going_on(saved: Saved | None, state: State) -> Iterator[Callable[[], None]]:
    """Brings a state to where an earlier process left it.

    Yields:
        What is to be called between two batches: it saves the state from time to time. After SIGTERM or Ctrl-C it saves
        it and ends the process.
    """
    if saved is None:
        yield lambda: None
        return
    load(saved, state)
    last, pause = time.monotonic(), saved.every
    with stoppable() as stopped:

        def keep() -> None:
            nonlocal last, pause
            if not stopped() and time.monotonic() < last + pause:
                return
            begin = time.monotonic()
            save(saved, state)
            last = time.monotonic()
            pause = max(saved.every, (last - begin) / LARGEST_SHARE)
            if stopped():
                stop(stopped(), f"{state.tokens:,} tokens are done and saved")

        yield keep


def save(saved: Saved, state: State) -> None:
    """Writes a state.

    Raises:
        UserError: it cannot be written.
    """
    settle(state)
    counts = {name: getattr(state, name) for name in COUNTS}
    with hdf5.create(saved.path, "progress", {"identity": saved.identity, **counts}) as file:
        for name, tensors in _tensors(state).items():
            values = torch.cat(tensors).cpu().numpy()
            dimensions = ["memory", f"{name}_column"][: values.ndim]
            hdf5.put(file, name, values, dimensions, "1", "state of an unfinished pass")


def load(saved: Saved, state: State) -> None:
    """Takes up what `save` wrote, in place; says so. Without it, or where it is of no use, the state stays as it is."""
    if not saved.path.exists():
        return
    try:
        with hdf5.open(saved.path, "progress") as file:
            if not has_identity(file, saved.identity):
                click.echo(
                    "ffkv: what was saved belongs to other settings or code; starting from the beginning.", err=True
                )
                return
            _fill(file, state)
    except UserError as error:
        click.echo(f"ffkv: starting from the beginning: {error}", err=True)
        return
    click.echo(f"ffkv: going on after {state.tokens:,} tokens that are done.", err=True)


def _fill(file: h5py.File, state: State) -> None:
    # Read whole before anything is changed: a damaged dataset must not leave half a state.
    read = {name: torch.from_numpy(file[name][...]) for name in _tensors(state)}
    for name, tensors in _tensors(state).items():
        for tensor, part in zip(tensors, read[name].split([len(tensor) for tensor in tensors]), strict=True):
            tensor.copy_(part)
    settle(state)
    for name in COUNTS:
        setattr(state, name, int(file.attrs[name]))


def _tensors(state: State) -> dict[str, list[Tensor]]:
    """All that a state consists of, by layer."""
    contests = {"highest": state.highest} | ({"lowest": state.lowest} if state.lowest else {})
    return {name: [contest.best for contest in layers] for name, layers in contests.items()} | {
        name: [getattr(layer, name) for layer in state.statistics] for name in STATISTICS
    }
