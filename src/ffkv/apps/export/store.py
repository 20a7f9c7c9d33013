"""The coefficients of all exported memories on their sentences, computed in one pass and kept in two files.

Each sentence runs once, for all memories that are shown on it. The files are as large as what is exported; the memory
of the process is not: coefficients are written as they come, and read memory by memory.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ffkv.apps.export.selection import NONE, Selection
from ffkv.base.errors import UserError
from ffkv.base.files.atomic import atomic
from ffkv.base.files.bounded import read_json
from ffkv.base.process.progress import progress
from ffkv.base.terminal import in_bytes
from ffkv.run.results.run import Run

if TYPE_CHECKING:  # torch takes seconds to import, and an export without sentences needs none
    from torch import Tensor

    from ffkv.model.anatomy import Layer

BLOCK = 2048  # sentences after which the pass can go on after a kill
PIECE = 2**20  # coefficients that are written at a time


@dataclass(frozen=True)
class Store:
    """Where the coefficients lie.

    `examples.f32` holds those on the sentences of the trigger examples: one memory behind the other, its sides behind
    each other, the strongest example first. `sample.f32` holds those on the shared sentences [token, memory].
    """

    folder: Path  # of the two files
    selection: Selection  # the memories and their sentences
    lengths: np.ndarray  # number of tokens of each sentence of the train split [sentence]

    @cached_property
    def sentence(self) -> np.ndarray:
        """The sentences of the trigger examples of both sides; -1 for none [memory, rank]."""
        return np.concatenate([*self.selection.sentence.values()], axis=1)

    @cached_property
    def start(self) -> np.ndarray:
        """Where each sentence of `sentence` starts in `examples.f32` [memory, rank]."""
        tokens = np.where(self.sentence == NONE, 0, self.lengths[self.sentence])
        ends = np.cumsum(tokens, dtype=np.int64).reshape(tokens.shape)
        return ends - tokens

    @cached_property
    def size(self) -> int:
        """Number of coefficients in `examples.f32`."""
        return int(np.sum(self.lengths[self.sentence[self.sentence != NONE]], dtype=np.int64))

    @cached_property
    def sample_start(self) -> np.ndarray:
        """Where each shared sentence starts in `sample.f32`, and where the last one ends [sentence + 1]."""
        return np.concatenate([[0], np.cumsum(self.lengths[self.selection.sample])]).astype(np.int64)

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of each file."""
        return {"examples.f32": 4 * self.size, "sample.f32": 4 * int(self.sample_start[-1]) * len(self.selection)}

    def examples(self, places: range) -> np.ndarray:
        """Returns the coefficients of some neighbouring memories in `examples.f32`, one behind the other."""
        if not self.size:
            return np.zeros(0, np.float32)
        first, last = (self._begin(place) for place in (places.start, places.stop))
        return np.fromfile(self.folder / "examples.f32", np.float32, last - first, offset=4 * first)

    def _begin(self, place: int) -> int:
        return int(self.start[place, 0]) if place < len(self.selection) else self.size

    def sample(self, places: range) -> np.ndarray:
        """Returns the coefficients of some neighbouring memories on the shared sentences [memory, token]."""
        shape = int(self.sample_start[-1]), len(self.selection)
        if not all(shape):
            return np.zeros((len(places), 0), np.float32)
        mapped = np.memmap(self.folder / "sample.f32", np.float32, "r", shape=shape)
        return np.ascontiguousarray(mapped[:, places.start : places.stop].T)


def fill(run: Run, store: Store, key: str, device: str) -> None:
    """Computes the coefficients. After a kill it goes on where it was.

    Args:
        key: what the export is made of. Coefficients of another key are thrown away.
        device: as the setting `model.device`.
    Raises:
        UserError: the disk has no room for the files; or the model cannot be loaded.
    """
    sentences, done = store.selection.sentences, _blocks_done(store, key)
    blocks = [sentences[start : start + BLOCK] for start in range(0, len(sentences), BLOCK)]
    if done == len(blocks):
        return
    if not done:
        _check_room(store)
    from ffkv.run.trace.coefficients import for_each_coefficient

    model, corpus = run.model(device), run.corpus("train")
    if not done:
        _make_files(store)
    layers = [run.anatomy.layers[int(store.selection.layer[places.start])] for places in store.selection.layers()]
    pairs, tokens = _Pairs(store), [int(store.lengths[block].sum()) for block in blocks]
    with progress(sum(tokens), "tokens", "coefficients", sum(tokens[:done])) as bar:
        for number in range(done, len(blocks)):
            ids = [corpus.ids(int(sentence)) for sentence in blocks[number]]
            write, batch_tokens = pairs.writer(blocks[number]), run.settings.batches.tokens
            for_each_coefficient(model, layers, corpus.bos, ids, batch_tokens, write)
            _save(store, key, number + 1)
            bar.update(tokens[number])


def _blocks_done(store: Store, key: str) -> int:
    """Returns the number of blocks whose coefficients are in the files."""
    try:
        state = read_json(store.folder / "blocks.json")
        whole = all((store.folder / name).stat().st_size == size for name, size in store.sizes.items())
    except (OSError, ValueError):  # none yet
        return 0
    return int(state["done"]) if whole and state["key"] == key else 0


def _check_room(store: Store) -> None:
    """Refuses an export whose coefficients the disk cannot hold."""
    existing = next(folder for folder in store.folder.absolute().parents if folder.exists())
    needed, free = sum(store.sizes.values()), shutil.disk_usage(existing).free
    if needed > free:
        raise UserError(
            f"The coefficients take {in_bytes(needed)} on the disk of {store.folder.parent}, which has {in_bytes(free)}"
            " free. Name fewer memories with --memories, or ask for fewer --examples or --sentences."
        )


def _make_files(store: Store) -> None:
    """Makes the files with room for all coefficients."""
    shutil.rmtree(store.folder, ignore_errors=True)
    try:
        store.folder.mkdir(parents=True)
        for name, size in store.sizes.items():
            with (store.folder / name).open("wb") as file:
                file.truncate(size)
    except OSError as error:
        raise UserError(f"{store.folder.parent} cannot be written: {error.strerror}. Name another folder.") from error


def _save(store: Store, key: str, done: int) -> None:
    """Notes how many blocks are on the disk."""
    for name in store.sizes:
        with (store.folder / name).open("rb+") as file:
            os.fsync(file.fileno())
    with atomic(store.folder / "blocks.json", summed=False) as temporary:
        temporary.write_text(json.dumps({"key": key, "done": done}))


class _Pairs:
    """The pairs of memory and sentence, in the order of the sentences."""

    def __init__(self, store: Store):
        self.store = store
        flat = store.sentence.ravel()
        self.order = np.argsort(flat, kind="stable")
        self.sentence = flat[self.order]
        self.places = {int(store.selection.layer[own.start]): own for own in store.selection.layers()}

    def writer(self, block: np.ndarray) -> "Callable[[np.ndarray, Layer, Tensor], None]":
        """Makes what writes the coefficients of a block of sentences, see `for_each_coefficient`."""
        store, selection = self.store, self.store.selection
        low, high = np.searchsorted(self.sentence, [block[0], block[-1] + 1])
        own = self.order[low:high]
        place = own // max(1, store.sentence.shape[1])
        line = np.searchsorted(block, self.sentence[low:high])
        layer_of, start = selection.layer[place], store.start.ravel()[own]
        # Of each layer: its pairs in the order of the lines, and where those of each line begin.
        of_layer = {}
        for layer in self.places:
            chosen = np.flatnonzero(layer_of == layer)
            bounds = np.searchsorted(line[chosen], np.arange(len(block) + 1))
            of_layer[layer] = (selection.memory[place[chosen]], start[chosen], bounds)
        shared = np.searchsorted(selection.sample, block)
        in_sample = np.isin(block, selection.sample)

        def write(numbers: np.ndarray, layer: "Layer", m: "Tensor") -> None:
            memory, first, bounds = of_layer[layer.index]
            counts = bounds[numbers + 1] - bounds[numbers]
            chosen = np.concatenate([np.arange(bounds[number], bounds[number + 1]) for number in numbers])
            lines = np.repeat(np.arange(len(numbers)), counts)
            _write_examples(store, m, lines, memory[chosen], first[chosen], store.lengths[block[numbers]][lines])
            lines = np.flatnonzero(in_sample[numbers])
            _write_sample(store, m, lines, shared[numbers[lines]], self.places[layer.index])

        return write


def _write_examples(
    store: Store, m: "Tensor", lines: np.ndarray, memory: np.ndarray, first: np.ndarray, lengths: np.ndarray
) -> None:
    """Writes the coefficients of pairs: of a memory on the sentence in a line of m, from `first` on, all [pair]."""
    if not len(lines):
        return
    target = np.memmap(store.folder / "examples.f32", np.float32, "r+")
    tokens = np.arange(m.shape[1])
    for part in _pieces(len(lines), m.shape[1]):
        values = m[lines[part], :, memory[part]].float().cpu().numpy()
        real = tokens < lengths[part, None]
        target[(first[part, None] + tokens)[real]] = values[real]


def _write_sample(store: Store, m: "Tensor", lines: np.ndarray, shared: np.ndarray, places: range) -> None:
    """Writes the coefficients of all memories of a layer on the sentences that all memories share.

    `lines` are rows of m, and `shared` is the number of the sentence of each of them [line].
    """
    if not len(lines):
        return
    shape = int(store.sample_start[-1]), len(store.selection)
    target = np.memmap(store.folder / "sample.f32", np.float32, "r+", shape=shape)
    columns = store.selection.memory[places.start : places.stop]
    for line, number in zip(lines.tolist(), shared.tolist(), strict=True):
        start, stop = store.sample_start[number : number + 2].tolist()
        target[start:stop, places.start : places.stop] = m[line, : stop - start, columns].float().cpu().numpy()


def _pieces(count: int, tokens: int) -> Iterator[slice]:
    size = max(1, PIECE // max(1, tokens))
    return (slice(start, start + size) for start in range(0, count, size))
