"""`prefixes.h5`: r, x, y, o and all coefficients m of sampled validation prefixes, by layer."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from torch import Tensor

from ffkv import store
from ffkv.activations.batches import blocks
from ffkv.activations.rows import at_last_position
from ffkv.corpus.data import Corpus
from ffkv.model.anatomy import Anatomy, Layer
from ffkv.model.load import LoadedModel
from ffkv.progress import progress
from ffkv.settings import Activations

STATES = {
    "r": "residual: what the FF output is added to (o - y)",
    "x": "FF input, after the norm",
    "y": "FF output, as it is added to the residual",
    "o": "block output, r + y",
}
WHICH = {
    "sentence": ("sentence", "sentence of the prefix"),
    "position": ("token", "length of the prefix, BOS not counted"),
    "next_token": ("token", "id of the token that follows"),
}
READ_AT_ONCE = 512  # prefixes in a chunk of coefficients


def write_prefixes(path: Path, loaded: LoadedModel, corpus: Corpus, sample: tuple[np.ndarray, np.ndarray], activations: Activations, shard: int, shards: int, attributes: dict[str, Any]) -> None:
    """Runs one shard of the sampled prefixes and writes what stands at the last token of each.

    Args:
        sample: sentence and position of every sampled prefix, of all shards.
    """
    work = blocks(len(sample[0]), activations.block_sentences, shard, shards)
    first, last = (work[0].start, work[-1].stop) if work else (0, 0)
    sentence, position = (part[first:last] for part in sample)
    attributes = {**attributes, "sample_hash": hashlib.sha256(np.stack(sample).tobytes()).hexdigest()[:16], "sampled": len(sample[0])}
    with store.create(path, "prefixes", attributes) as file, progress(int(position.sum()), "tokens", "prefixes") as bar:
        allocate(file, loaded.anatomy, len(sentence))
        file["sentence"][...], file["position"][...] = sentence, position
        file["next_token"][...] = corpus.next_token(sentence, position)
        for block in work:
            part = slice(block.start - first, block.stop - first)
            rows = [np.concatenate([corpus.bos, corpus.ids(s)[:p]]) for s, p in zip(sentence[part], position[part], strict=True)]
            _write_block(file, loaded, rows, part, activations.batch_tokens)
            bar.update(int(position[part].sum()))


def _write_block(file: h5py.File, loaded: LoadedModel, rows: list[np.ndarray], part: slice, batch_tokens: int) -> None:
    """One block of prefixes, gathered in memory by layer and quantity, then written."""
    anatomy = loaded.anatomy
    found = {(layer.index, q): np.zeros((len(rows), layer.memories if q == "m" else anatomy.width), np.float32) for layer in anatomy.layers for q in "xmyo"}

    def take(numbers: np.ndarray, layer: Layer, quantity: str, values: Tensor) -> None:
        found[layer.index, quantity][numbers] = values.float().cpu().numpy()

    at_last_position(loaded, anatomy.layers, "xmyo", rows, batch_tokens, take)
    offsets = anatomy.layer_offset
    for layer in anatomy.layers:
        x, m, y, o = (found[layer.index, quantity] for quantity in "xmyo")
        file["m"][part, offsets[layer.index] : offsets[layer.index + 1]] = m
        for name, values in {"r": o - y, "x": x, "y": y, "o": o}.items():
            file[name][layer.index, part] = values


def allocate(file: h5py.File, anatomy: Anatomy, prefixes: int) -> None:
    """Room for `prefixes` prefixes of a model."""
    layers, width, memories = len(anatomy.layers), anatomy.width, anatomy.layer_offset[-1]
    store.put(file, "layer_offset", np.asarray(anatomy.layer_offset), ["layer_boundary"], "memory", "first column of each layer in `m`; memory i of layer l is column layer_offset[l] + i")
    for name, (unit, description) in WHICH.items():
        store.allocate(file, name, (prefixes,), np.int32, ["prefix"], unit, description)
    for name, description in STATES.items():
        store.allocate(file, name, (layers, prefixes, width), np.float32, ["layer", "prefix", "width"], "1", description, chunks=(1, max(1, min(prefixes, 4096)), width))
    largest = max(layer.memories for layer in anatomy.layers)
    store.allocate(file, "m", (prefixes, memories), np.float32, ["prefix", "memory"], "1", "memory coefficients", chunks=(max(1, min(prefixes, READ_AT_ONCE)), largest))


def merge_prefixes(path: Path, shards: Sequence[Path], anatomy: Anatomy) -> None:
    """Puts the shards' prefixes one behind the other.

    Raises:
        UserError: the shards are not parts of one sample.
    """
    with store.open(shards[0], "prefixes") as first:
        attributes = {name: first.attrs[name] for name in first.attrs if name not in ("format", "kind", "versions")}
    with store.create(path, "prefixes", attributes) as file:
        allocate(file, anatomy, int(attributes["sampled"]))
        start = 0
        for shard in shards:
            with store.open(shard, "prefixes", attributes) as source:
                count = len(source["sentence"])
                _copy(source, file, slice(start, start + count))
                start += count


def _copy(source: h5py.File, file: h5py.File, part: slice) -> None:
    for name in WHICH:
        file[name][part] = source[name][...]
    for begin in range(0, part.stop - part.start, READ_AT_ONCE):
        here = slice(begin, min(begin + READ_AT_ONCE, part.stop - part.start))
        file["m"][part.start + here.start : part.start + here.stop] = source["m"][here]
    for name in STATES:
        for layer in range(len(source[name])):
            file[name][layer, part] = source[name][layer]


@dataclass(frozen=True)
class PrefixLayer:
    """One layer of the sampled prefixes: r, x, y, o [prefix, d] and m [prefix, memory], float32."""

    r: np.ndarray
    x: np.ndarray
    y: np.ndarray
    o: np.ndarray
    m: np.ndarray


def read_layer(file: h5py.File, layer: int, quantities: str = "rxyom") -> PrefixLayer:
    """Some quantities of one layer of an open `prefixes.h5`; those not asked for are empty."""
    offsets = file["layer_offset"][...]
    columns = slice(int(offsets[layer]), int(offsets[layer + 1]))
    nothing = np.zeros((0, 0), np.float32)
    read = {name: file[name][layer] if name in quantities else nothing for name in STATES}
    return PrefixLayer(**read, m=file["m"][:, columns] if "m" in quantities else nothing)
