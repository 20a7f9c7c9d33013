"""Runs the sampled validation prefixes and keeps y, o and m of each (paper sections 4 and 5)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from ffkv.activations.batches import blocks
from ffkv.activations.last_token import for_each_last_token
from ffkv.activations.prefix_file import KIND, SampledPrefixes, absent, sizes, write_linked
from ffkv.activations.resume import has_identity, identity
from ffkv.corpus.corpus_file import Corpus
from ffkv.errors import UserError
from ffkv.files import datasets, hdf5
from ffkv.files.atomic import remove
from ffkv.files.checksums import block_folder, sum_path
from ffkv.model.anatomy import Layer
from ffkv.model.checkpoint.load import LoadedModel
from ffkv.parts import Part
from ffkv.process.progress import progress
from ffkv.settings import Activations
from ffkv.terminal import say

QUANTITIES = {"y": "y", "o": "o", "m": "m", "x": "x", "factor": "s", "end": "e"}  # dataset: quantity of the tap


def write_shard(
    path: Path,
    loaded: LoadedModel,
    corpus: Corpus,
    sample: tuple[np.ndarray, np.ndarray],
    keep: Sequence[str],
    batching: Activations,
    shard: Part,
    attributes: dict[str, Any],
) -> None:
    """Runs one shard of the sampled prefixes and writes their states, each once.

    Each block is a file of its own. An interrupted shard continues after its last complete block.

    Args:
        path: the shard's file; its blocks are in the folder beside it.
        loaded: the proven model.
        corpus: the validation split.
        sample: sentence and position of every sampled prefix, of all shards.
        keep: the setting `prefixes.keep`.
        batching: how prefixes are cut into blocks and batches.
        shard: which part of the sample.
        attributes: what the file says of itself.
    Raises:
        UserError: states overflow, or a file cannot be written.
    """
    work = blocks(len(sample[0]), batching.block_sentences, shard)
    own = {**attributes, "identity": identity("sampled_prefixes", attributes, loaded.device)}
    files = {block: block_folder(path) / f"{block.start}.h5" for block in work}
    complete = {block for block in work if _is_complete(files[block], own)}
    tokens = {block: int(sample[1][block.start : block.stop].sum()) for block in work}
    with progress(sum(tokens.values()), "tokens", "prefixes", sum(tokens[block] for block in complete)) as bar:
        for block in work:
            if block in complete:
                continue
            sentence, position = (column[block.start : block.stop] for column in sample)
            states = run_prefixes(loaded, corpus, sentence, position, keep, batching.batch_tokens)
            with hdf5.create(files[block], KIND, own) as file:
                datasets.write(file, states, sizes(loaded.anatomy, len(block)))
            bar.update(tokens[block])
    if work:
        write_linked(path, list(files.values()), attributes)
    else:
        with hdf5.create(path, KIND, attributes) as file:
            datasets.allocate(file, SampledPrefixes, sizes(loaded.anatomy, 0), absent(loaded.anatomy, keep))
            file["layer_offset"][...] = loaded.anatomy.layer_offset
    _remove_others(block_folder(path), set(files.values()))


def run_prefixes(
    loaded: LoadedModel,
    corpus: Corpus,
    sentence: np.ndarray,
    position: np.ndarray,
    keep: Sequence[str],
    batch_tokens: int,
) -> SampledPrefixes:
    """The states at the last token of each prefix.

    Args:
        loaded: the proven model.
        corpus: the corpus of the prefixes.
        sentence: sentence of each prefix [prefix].
        position: length of each prefix [prefix].
        keep: the setting `prefixes.keep`.
        batch_tokens: the most tokens per batch.
    Raises:
        UserError: states overflow.
    """
    anatomy = loaded.anatomy
    rows = [np.concatenate([corpus.bos, corpus.ids(s)[:p]]) for s, p in zip(sentence, position, strict=True)]
    states = _empty(loaded, len(rows), keep)
    places = {QUANTITIES[name]: (name, array) for name, array in states.items()}

    def on_tensor(numbers: np.ndarray, layer: Layer, quantity: str, values: Tensor) -> None:
        name, array = places[quantity]
        found = values.float().cpu().numpy()
        if name == "m":
            start, stop = anatomy.layer_offset[layer.index : layer.index + 2]
            array[numbers, start:stop] = found
        elif name == "end":
            array[numbers] = found
        else:
            array[layer.index][numbers] = found[:, 0] if name == "factor" else found

    for_each_last_token(loaded, anatomy.layers, "".join(places), rows, batch_tokens, on_tensor)
    if not all(np.isfinite(array).all() for array in states.values()):
        raise UserError(
            f"States of {anatomy.checkpoint} are not finite: the model overflows in {anatomy.dtype}."
            " Use model.dtype float32."
        )
    return SampledPrefixes(
        layer_offset=np.asarray(anatomy.layer_offset),
        sentence=sentence,
        position=position,
        next_token=corpus.next_token(sentence, position),
        **states,
    )


def _empty(loaded: LoadedModel, prefixes: int, keep: Sequence[str]) -> dict[str, np.ndarray]:
    """Arrays for the states that are kept, by dataset. The factor is 1 unless a norm follows the layer."""
    lengths, without = sizes(loaded.anatomy, prefixes), absent(loaded.anatomy, keep)
    parts = datasets.datasets_of(SampledPrefixes, without)
    return {
        name: np.full(parts[name][0].shape(lengths), 1 if name == "factor" else 0, np.float32)
        for name in QUANTITIES
        if name in parts
    }


def _is_complete(path: Path, attributes: dict[str, Any]) -> bool:
    """Whether an earlier process wrote this block of the same pass, and it is not damaged."""
    if not path.exists():
        return False
    try:
        with hdf5.open(path, KIND) as file:
            if not has_identity(file, attributes["identity"]):
                return False
        hdf5.verify(path)
    except UserError as error:
        say(f"a block is made again: {error}", error=True)
        return False
    return True


def _remove_others(folder: Path, files: set[Path]) -> None:
    """Removes blocks that an earlier pass, with other settings, left."""
    kept = files | {sum_path(file) for file in files}
    for path in folder.iterdir() if folder.exists() else ():
        if path not in kept:
            remove(path)
