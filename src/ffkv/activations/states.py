"""Draws prefixes of the validation split, runs them and keeps y, o and m of each (paper sections 4 and 5)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from torch import Tensor

from ffkv.activations.batches import Batching, blocks, check_longest
from ffkv.activations.last_token import for_each_last_token
from ffkv.activations.prefix_file import KIND, SampledPrefixes, Storage, storage_of, write_linked
from ffkv.activations.resume import has_identity, identity
from ffkv.base.batching import to_host
from ffkv.base.errors import UserError
from ffkv.base.files import datasets, hdf5
from ffkv.base.files.atomic import remove
from ffkv.base.files.stored import block_folder, sum_path
from ffkv.base.lookup import exists, find
from ffkv.base.process.progress import progress
from ffkv.base.steps import Part
from ffkv.base.streams import Purpose, random_stream
from ffkv.base.terminal import say
from ffkv.corpus.corpus_file import Corpus
from ffkv.model.anatomy import Layer
from ffkv.model.checkpoint.load import LoadedModel

QUANTITIES = {"y": "y", "o": "o", "m": "m", "x": "x", "factor": "s", "end": "e"}  # dataset: quantity of the tap
BEFORE = {"factor": 1}  # of a layer without a norm after it, for which the tap gives none


def draw_prefixes(lengths: np.ndarray, count: int, how: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draws proper prefixes (1 <= position < length) of sentences, given by their lengths, none twice.

    `count`: how many prefixes; if there are fewer, all are taken. `how`: "sentence": a random sentence, then a random position in
    it; a sentence is drawn again only after each has been drawn (the authors' code). "prefix": uniform over all prefixes (the
    paper's text). Returns sentence and position of each prefix, sorted by sentence and position [prefix].
    """
    generator = random_stream(seed, Purpose.SAMPLED_PREFIXES)
    sentence = np.repeat(np.arange(len(lengths)), lengths - 1)
    starts = np.cumsum(lengths - 1) - (lengths - 1)
    position = np.arange(len(sentence)) - starts[sentence] + 1
    order = generator.permutation(len(sentence))
    if how == "sentence":
        # Shuffled prefixes are shuffled positions within each sentence. Round n consists of the n-th of each sentence.
        shuffled = order[np.argsort(sentence[order], kind="stable")]
        rounds = np.arange(len(sentence)) - starts[sentence[shuffled]]
        turn = generator.permutation(len(lengths))[sentence[shuffled]]
        order = shuffled[np.lexsort((turn, rounds))]
    chosen = np.sort(order[:count])
    return sentence[chosen].astype(np.int32), position[chosen].astype(np.int32)


def write_shard(
    path: Path,
    loaded: LoadedModel,
    corpus: Corpus,
    sample: tuple[np.ndarray, np.ndarray],
    keep: Sequence[str],
    batching: Batching,
    shard: Part,
    attributes: dict[str, Any],
) -> None:
    """Runs one shard of the sampled prefixes and writes their states, each once.

    Each block is a file of its own, in the folder beside `path`. An interrupted shard continues after its last complete
    block, if its batches are equal. `sample`: sentence and position of every sampled prefix of all shards. `keep`: the
    datasets that are stored beside o. `attributes`: what the file says of itself. Raises UserError if states overflow, or a
    file cannot be written.
    """
    work = blocks(len(sample[0]), batching.block_sentences, shard)
    storage = storage_of(loaded.anatomy, keep, min(batching.block_sentences, len(sample[0])))
    known = {**attributes, "batches": batching}  # perhaps with half as many tokens as the settings say
    of_block = {**attributes, "identity": identity("sampled_prefixes", known, loaded.device)}
    files = {block: block_folder(path) / f"{block.start}.h5" for block in work}
    complete = {block for block in work if _is_complete(files[block], of_block)}
    if len(complete) < len(work):
        check_longest(loaded, corpus, batching)
    tokens = {block: int(sample[1][block.start : block.stop].sum()) for block in work}
    with progress(sum(tokens.values()), "tokens", "prefixes", sum(tokens[block] for block in complete)) as bar:
        for block in work:
            if block in complete:
                continue
            sentence, position = (column[block.start : block.stop] for column in sample)
            write_block(files[block], of_block, loaded, corpus, sentence, position, storage, batching.tokens)
            bar.update(tokens[block])
    if work:
        write_linked(path, list(files.values()), attributes)
    else:
        with hdf5.create(path, KIND, attributes) as file:
            datasets.allocate(file, SampledPrefixes, {**storage.sizes, "prefix": 0}, storage.without)
            file["layer_offset"][...] = loaded.anatomy.layer_offset
    # An earlier pass, with other settings, may have left other blocks.
    written = {*files.values(), *map(sum_path, files.values())}
    for other in set(find(block_folder(path), "*")) - written:
        remove(other)


def write_block(
    path: Path,
    attributes: dict[str, Any],
    loaded: LoadedModel,
    corpus: Corpus,
    sentence: np.ndarray,
    position: np.ndarray,
    storage: Storage,
    batch_tokens: int,
) -> None:
    """Runs some prefixes, given by sentence and length [prefix], and writes the states at the last token of each.

    How they are stored changes no number. Raises UserError if states overflow, or the file cannot be written.
    """
    rows = [corpus.prefix_ids(s, p) for s, p in zip(sentence, position, strict=True)]
    sizes = {**storage.sizes, "prefix": len(rows)}
    known = {
        "layer_offset": np.asarray(loaded.anatomy.layer_offset),
        "sentence": sentence,
        "position": position,
        "next_token": corpus.next_token(sentence, position),
    }
    if storage.in_memory:
        parts = datasets.datasets_of(SampledPrefixes, [*storage.without, *known])
        arrays = {name: np.full(part.shape(sizes), BEFORE.get(name, 0), np.float32) for name, (part,) in parts.items()}
        _run(loaded, rows, batch_tokens, arrays)
        with hdf5.create(path, KIND, attributes) as file:
            datasets.write(file, SampledPrefixes(**known, **arrays), sizes, storage.compressed)
        return
    with hdf5.create(path, KIND, attributes) as file:
        datasets.allocate(file, SampledPrefixes, sizes, storage.without, storage.compressed)
        for name, values in {**known, **BEFORE}.items():
            if name in file:
                file[name][...] = values
        _run(loaded, rows, batch_tokens, {name: file[name] for name in QUANTITIES if name in file})


def _run(
    loaded: LoadedModel, rows: Sequence[np.ndarray], batch_tokens: int, places: Mapping[str, np.ndarray | h5py.Dataset]
) -> None:
    """Runs prefixes, given as token ids, and writes their states into `places`, by dataset."""
    anatomy = loaded.anatomy
    names = {quantity: name for name, quantity in QUANTITIES.items() if name in places}
    read = list[tuple[np.ndarray, Layer, str, Tensor]]()  # of a batch

    def on_tensor(numbers: np.ndarray, layer: Layer, quantity: str, values: Tensor) -> None:
        read.append((numbers, layer, quantity, values.float()))

    def on_batch() -> None:
        for (numbers, layer, quantity, _), found in zip(read, to_host([values for *_, values in read]), strict=True):
            if not np.isfinite(found).all():
                raise anatomy.overflow()
            name = names[quantity]
            place = places[name]
            before = () if name in ("m", "end") else (layer.index,)  # the axis of layers, where there is one
            first = anatomy.layer_offset[layer.index] if name == "m" else 0  # column at which the rows begin
            if not isinstance(place, np.ndarray):
                after = () if name == "factor" else (first,)
                hdf5.write_rows(place, [(*before, number, *after) for number in numbers.tolist()], found)
            elif name == "factor":
                place[layer.index, numbers] = found[:, 0]
            else:
                place[*before, numbers, first : first + found.shape[1]] = found
        read.clear()

    for_each_last_token(loaded, anatomy.layers, "".join(names), rows, batch_tokens, on_tensor, on_batch=on_batch)


def _is_complete(path: Path, attributes: dict[str, Any]) -> bool:
    """Tells whether an earlier process wrote this block of the same pass, and it is not damaged."""
    if not exists(path):
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
