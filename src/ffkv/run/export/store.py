"""The coefficients of all exported memories on their sentences, computed in one pass and kept in two files."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ffkv.base.errors import UserError
from ffkv.base.files.atomic import write_text
from ffkv.base.lookup import exists, read_json
from ffkv.base.process.progress import progress
from ffkv.base.terminal import in_bytes
from ffkv.run.export.selection import NONE, Selection
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

    def tokens(self) -> tuple[np.ndarray, np.ndarray]:
        """The sentences of the trigger examples, both sides, and their numbers of tokens: -1 and 0 for none [memory, rank]."""
        sentence = np.concatenate([*self.selection.sentence.values()], axis=1)
        return sentence, np.where(sentence == NONE, 0, self.lengths[sentence])

    @cached_property
    def begin(self) -> np.ndarray:
        """Where each memory begins in `examples.f32`, and where the last one ends [memory + 1]."""
        return np.concatenate([[0], np.cumsum(self.tokens()[1].sum(1))]).astype(np.int64)

    @cached_property
    def sample_start(self) -> np.ndarray:
        """Where each shared sentence starts in `sample.f32`, and where the last one ends [sentence + 1]."""
        return np.concatenate([[0], np.cumsum(self.lengths[self.selection.sample])]).astype(np.int64)

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of each file."""
        sample = int(self.sample_start[-1]) * len(self.selection)
        return {"examples.f32": 4 * int(self.begin[-1]), "sample.f32": 4 * sample}

    def open(self, name: str) -> np.ndarray:
        """Maps a file into memory, so that only what is read or written of it takes any."""
        return np.memmap(self.folder / name, np.float32, "r+") if self.sizes[name] else np.zeros(0, np.float32)

    def examples(self, places: range) -> np.ndarray:
        """Returns the coefficients of some neighbouring memories in `examples.f32`, one behind the other."""
        return np.array(self.open("examples.f32")[self.begin[places.start] : self.begin[places.stop]])

    def sample(self, places: range) -> np.ndarray:
        """Returns the coefficients of some neighbouring memories on the shared sentences [memory, token]."""
        mapped = self.open("sample.f32").reshape(int(self.sample_start[-1]), len(self.selection))
        return np.ascontiguousarray(mapped[:, places.start : places.stop].T)


def fill(run: Run, store: Store, key: str, device: str) -> None:
    """Computes the coefficients. After a kill it goes on where it was. Those of another `key` are thrown away.

    Raises UserError if the disk has no room for the files, or the model cannot be loaded.
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
    layers = [run.anatomy.layers[group.layer] for group in store.selection.groups()]
    write, tokens = _writer(store), [int(store.lengths[block].sum()) for block in blocks]
    with progress(sum(tokens), "tokens", "coefficients", sum(tokens[:done])) as bar:
        for number in range(done, len(blocks)):
            ids = [corpus.ids(int(sentence)) for sentence in blocks[number]]
            on_coefficients = partial(write, blocks[number])
            for_each_coefficient(model, layers, corpus.bos, ids, model.batch_tokens, on_coefficients)
            for name in store.sizes:
                with (store.folder / name).open("rb+") as file:
                    os.fsync(file.fileno())
            # How many are on the disk.
            write_text(store.folder / "blocks.json", json.dumps({"key": key, "done": number + 1}))
            bar.update(tokens[number])


def _blocks_done(store: Store, key: str) -> int:
    try:
        state = read_json(store.folder / "blocks.json")
        whole = all((store.folder / name).stat().st_size == size for name, size in store.sizes.items())
    except (OSError, ValueError):  # none yet
        return 0
    return int(state["done"]) if whole and state["key"] == key else 0


def _check_room(store: Store) -> None:
    existing = next(folder for folder in store.folder.absolute().parents if exists(folder))
    needed, free = sum(store.sizes.values()), shutil.disk_usage(existing).free
    if needed > free:
        raise UserError(
            f"The coefficients take {in_bytes(needed)} on the disk of {store.folder.parent}, which has {in_bytes(free)}"
            " free. Name fewer memories with --memories, or ask for fewer --examples or --sentences."
        )


def _make_files(store: Store) -> None:
    shutil.rmtree(store.folder, ignore_errors=True)
    try:
        store.folder.mkdir(parents=True)
        for name, size in store.sizes.items():
            with (store.folder / name).open("wb") as file:
                file.truncate(size)
    except OSError as error:
        raise UserError(f"{store.folder.parent} cannot be written: {error.strerror}. Name another folder.") from error


def _writer(store: Store) -> "Callable[[np.ndarray, np.ndarray, Layer, Tensor], None]":
    """Makes what writes the coefficients of a layer, m [line, token, memory].

    It gets a block of sentences, and the number in it of the sentence of each line.
    """
    selection, lengths, (sentence, tokens) = store.selection, store.lengths, store.tokens()
    start = np.cumsum(tokens, dtype=np.int64) - tokens.ravel()
    # The pairs of memory and sentence, by layer and sentence; in each layer, those without a sentence come first.
    key = (selection.layer[:, None] * (len(lengths) + 1) + sentence - NONE).ravel()
    order = np.argsort(key, kind="stable")
    key, columns = key[order], sentence.shape[1]
    groups = {group.layer: group for group in selection.groups()}

    def write(block: np.ndarray, numbers: np.ndarray, layer: "Layer", m: "Tensor") -> None:
        sentences, own = block[numbers], groups[layer.index].places
        wanted = layer.index * (len(lengths) + 1) + sentences - NONE
        first, last = np.searchsorted(key, wanted), np.searchsorted(key, wanted, side="right")
        pairs = np.concatenate([order[low:high] for low, high in zip(first, last)])
        lines = np.repeat(np.arange(len(sentences)), last - first)
        target, token = store.open("examples.f32"), np.arange(m.shape[1])
        size = max(1, PIECE // max(1, m.shape[1]))
        for begin in range(0, len(pairs), size):
            pair, line = (each[begin : begin + size] for each in (pairs, lines))
            values = m[line, :, selection.memory[pair // columns]].float().cpu().numpy()
            real = token < lengths[sentences[line], None]
            target[(start[pair, None] + token)[real]] = values[real]
        target = store.open("sample.f32").reshape(-1, len(selection))
        for row in np.flatnonzero(np.isin(sentences, selection.sample)).tolist():
            number = np.searchsorted(selection.sample, sentences[row])
            low, high = store.sample_start[number : number + 2].tolist()
            values = m[row, : high - low, groups[layer.index].memories].float().cpu().numpy()
            target[low:high, own.start : own.stop] = values

    return write
