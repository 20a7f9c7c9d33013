"""Runs the sampled validation prefixes and keeps r, x, y, o and m of each."""

import hashlib
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from torch import Tensor

from ffkv import store
from ffkv.activations.batches import blocks
from ffkv.activations.prefix_data import allocate
from ffkv.activations.rows import at_last_position
from ffkv.corpus.data import Corpus
from ffkv.errors import UserError
from ffkv.model.anatomy import Layer
from ffkv.model.load import LoadedModel
from ffkv.progress import progress
from ffkv.settings import Activations


def write_prefixes(
    path: Path,
    loaded: LoadedModel,
    corpus: Corpus,
    sample: tuple[np.ndarray, np.ndarray],
    activations: Activations,
    shard: int,
    shards: int,
    attributes: dict[str, Any],
) -> None:
    """Runs one shard of the sampled prefixes and writes what stands at the last token of each.

    Args:
        sample: sentence and position of every sampled prefix, of all shards.
    """
    work = blocks(len(sample[0]), activations.block_sentences, shard, shards)
    first, last = (work[0].start, work[-1].stop) if work else (0, 0)
    sentence, position = (part[first:last] for part in sample)
    attributes = {
        **attributes,
        "sample_hash": hashlib.sha256(np.stack(sample).tobytes()).hexdigest()[:16],
        "sampled": len(sample[0]),
    }
    with store.create(path, "prefixes", attributes) as file, progress(int(position.sum()), "tokens", "prefixes") as bar:
        allocate(file, loaded.anatomy, len(sentence))
        file["sentence"][...], file["position"][...] = sentence, position
        file["next_token"][...] = corpus.next_token(sentence, position)
        for block in work:
            part = slice(block.start - first, block.stop - first)
            rows = [
                np.concatenate([corpus.bos, corpus.ids(s)[:p]])
                for s, p in zip(sentence[part], position[part], strict=True)
            ]
            _write_block(file, loaded, rows, part, activations.batch_tokens)
            bar.update(int(position[part].sum()))


def _write_block(file: h5py.File, loaded: LoadedModel, rows: list[np.ndarray], part: slice, batch_tokens: int) -> None:
    """One block of prefixes, gathered in memory by layer and quantity, then written."""
    anatomy = loaded.anatomy
    found = {
        (layer.index, q): np.zeros((len(rows), layer.memories if q == "m" else anatomy.width), np.float32)
        for layer in anatomy.layers
        for q in "xmyo"
    }
    found[len(anatomy.layers) - 1, "e"] = np.zeros((len(rows), anatomy.width), np.float32)
    found |= {(layer.index, "s"): np.ones((len(rows), 1), np.float32) for layer in anatomy.layers}

    def take(numbers: np.ndarray, layer: Layer, quantity: str, values: Tensor) -> None:
        found[layer.index, quantity][numbers] = values.float().cpu().numpy()

    at_last_position(loaded, anatomy.layers, "xmsyoe", rows, batch_tokens, take)
    if not all(np.isfinite(values).all() for values in found.values()):
        raise UserError(
            f"States of {anatomy.checkpoint} are not finite: the model overflows in {anatomy.dtype}. Use model.dtype float32."
        )
    offsets = anatomy.layer_offset
    if anatomy.layers[-1].end:
        file["end"][part] = found[len(anatomy.layers) - 1, "e"]
    for layer in anatomy.layers:
        x, m, y, o = (found[layer.index, quantity] for quantity in "xmyo")
        file["m"][part, offsets[layer.index] : offsets[layer.index + 1]] = m
        file["factor"][layer.index, part] = found[layer.index, "s"][:, 0]
        for name, values in {"r": o - y, "x": x, "y": y, "o": o}.items():
            file[name][layer.index, part] = values
