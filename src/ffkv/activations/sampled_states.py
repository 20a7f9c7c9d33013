"""Runs the sampled validation prefixes and keeps r, x, y, o and m of each."""

import hashlib
from pathlib import Path
from typing import Any

import click
import numpy as np
from torch import Tensor

from ffkv.activations.batches import blocks
from ffkv.activations.last_token import at_last_position
from ffkv.activations.prefix_file import allocate, copy
from ffkv.activations.resume import beside, forget, has_identity, identity
from ffkv.corpus.corpus_file import Corpus
from ffkv.errors import UserError
from ffkv.files import hdf5
from ffkv.model.anatomy import Layer
from ffkv.model.checkpoint.load import LoadedModel
from ffkv.process.progress import progress
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

    Each block is written to a file of its own first: a shard that was interrupted goes on after its last complete block.

    Args:
        sample: sentence and position of every sampled prefix, of all shards.
    Raises:
        UserError: states overflow, or a file cannot be written.
    """
    work = blocks(len(sample[0]), activations.block_sentences, shard, shards)
    attributes = {
        **attributes,
        "sample_hash": hashlib.sha256(np.stack(sample).tobytes()).hexdigest()[:16],
        "sampled": len(sample[0]),
    }
    own = {**attributes, "identity": identity(attributes, loaded.device)}
    parts = {block: beside(path) / f"{block.start}.h5" for block in work}
    kept = [block for block in work if _has(parts[block], own)]
    tokens = {block: int(sample[1][block.start : block.stop].sum()) for block in work}
    with progress(sum(tokens.values()), "tokens", "prefixes", sum(tokens[block] for block in kept)) as bar:
        for block in (block for block in work if block not in kept):
            here = slice(block.start, block.stop)
            _make_block(parts[block], loaded, corpus, (sample[0][here], sample[1][here]), activations.batch_tokens, own)
            bar.update(tokens[block])
    first, last = (work[0].start, work[-1].stop) if work else (0, 0)
    with hdf5.create(path, "prefixes", attributes) as file:
        allocate(file, loaded.anatomy, last - first)
        for block in work:
            with hdf5.open(parts[block], "prefixes") as source:
                copy(source, file, slice(block.start - first, block.stop - first))
    forget(path)


def _make_block(
    path: Path,
    loaded: LoadedModel,
    corpus: Corpus,
    sample: tuple[np.ndarray, np.ndarray],
    batch_tokens: int,
    attributes: dict[str, Any],
) -> None:
    """Runs one block of prefixes, gathered in memory by layer and quantity, and writes it."""
    anatomy, (sentence, position) = loaded.anatomy, sample
    rows = [np.concatenate([corpus.bos, corpus.ids(s)[:p]]) for s, p in zip(sentence, position, strict=True)]
    found = _states(loaded, rows, batch_tokens)
    with hdf5.create(path, "prefixes", attributes) as file:
        allocate(file, anatomy, len(rows))
        file["sentence"][...], file["position"][...] = sentence, position
        file["next_token"][...] = corpus.next_token(sentence, position)
        offsets = anatomy.layer_offset
        if anatomy.layers[-1].readout_block:
            file["end"][...] = found[len(anatomy.layers) - 1, "e"]
        for layer in anatomy.layers:
            x, m, y, o = (found[layer.index, quantity] for quantity in "xmyo")
            file["m"][:, offsets[layer.index] : offsets[layer.index + 1]] = m
            file["factor"][layer.index] = found[layer.index, "s"][:, 0]
            for name, values in {"r": o - y, "x": x, "y": y, "o": o}.items():
                file[name][layer.index] = values


def _states(loaded: LoadedModel, rows: list[np.ndarray], batch_tokens: int) -> dict[tuple[int, str], np.ndarray]:
    """What stands at the last token of each row, by layer and quantity."""
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
    return found


def _has(path: Path, attributes: dict[str, Any]) -> bool:
    """Whether an earlier process wrote this block of this very pass."""
    if not path.exists():
        return False
    try:
        with hdf5.open(path, "prefixes") as file:
            return has_identity(file, attributes["identity"])
    except UserError as error:
        click.echo(f"ffkv: a block is made again: {error}", err=True)
        return False
