"""Fits the maps of layers, reads values and states through them, and summarizes what they say."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

import h5py
import numpy as np
import pandas as pd

from ffkv.activations.prefix_file import KIND, read_layer
from ffkv.activations.step import sample_prefixes
from ffkv.activations.trigger_file import read_triggers
from ffkv.base.files import hdf5, tables
from ffkv.base.intervals import mean_interval
from ffkv.base.process.progress import progress
from ffkv.base.settings import Batches, Prefixes, Translation
from ffkv.base.steps import Work
from ffkv.base.streams import Purpose, random_stream
from ffkv.branches.translation import summaries
from ffkv.branches.translation.descent import descend
from ffkv.branches.translation.maps import Maps, TranslatedHead, head_of, read_maps
from ffkv.branches.translation.readings import apply, divergences, explained_variance, read_prefixes
from ffkv.branches.translation.ridge import Ridge, fit, fold_of
from ffkv.branches.translation.tables import BY_MEMORY, BY_PREFIX, FIT, FIT_BY_LAYER, READINGS
from ffkv.branches.values.compare import compare
from ffkv.branches.values.projections import Projections, read_projections
from ffkv.branches.values.step import project
from ffkv.corpus.competing import CompetingPrefixes
from ffkv.corpus.corpus_file import read_corpus
from ffkv.model.anatomy import Anatomy, read_anatomy
from ffkv.model.head.head import Head
from ffkv.model.head.head_file import load_head
from ffkv.model.head.topk import predictions
from ffkv.model.values_file import read_values

COMPARED = 500  # sampled prefixes, at most, on which predictions are compared


def read_states(
    model: Path | str,
    train: Path | str,
    settings: Translation = Translation(),
    prefixes: Prefixes = Prefixes(),
    batches: Batches = Batches(),
    seed: int = 0,
    work: Work = Work(),
) -> Callable[[Path], None]:
    """Returns what writes the block outputs of one shard of random train prefixes, as `sample_prefixes` does.

    Args:
        model: folder of the model step.
        train: file `corpus/train.h5`.
        settings: `prefixes`, how many there are of all shards.
        prefixes: `sample`, how they are drawn.
        batches: how they are cut into batches.
        seed: seed of the sample.
        work: the device, and which shard of the sample.
    Raises:
        UserError: see `sample_prefixes`.
    Examples:
        >>> files, settings = ["results/tiny/model", "results/tiny/corpus/train.h5"], ffkv.settings.Translation(prefixes=50)
        >>> ffkv.read_states(*files, settings)("states.h5")  # writes the states of 50 prefixes
    """
    chosen = Prefixes(count=settings.prefixes, sample=prefixes.sample)
    return partial(sample_prefixes, model, train, settings=chosen, batching=batches, seed=seed, work=work, states=())


def write_states(path: Path, write: Callable[[Path], None]) -> None:
    """Writes `translation/states/<shard>.h5`, and the folder of its blocks."""
    write(path)


def fit_maps(
    model: Path | str,
    states: Iterable[Path | str],
    prefixes: Path | str,
    settings: Translation = Translation(),
    seed: int = 0,
    work: Work = Work(),
) -> tuple[Maps, pd.DataFrame]:
    """Fits the maps of a group of layers on states of train prefixes, and judges them on validation prefixes.

    Args:
        model: folder of the model step.
        states: the files `translation/states/<shard>.h5`, each once.
        prefixes: file `sampled_prefixes.h5`.
        settings: `fit`, how they are fitted.
        seed: seed of the shuffled pairs, and of batches.
        work: the device of the head, and the layers.
    Returns:
        The maps, and a row per layer and reading: how well it gives what the head reads (`translation/fit`, docs/formats.md).
    Raises:
        UserError: a file is missing or damaged, or belongs to another model; the layer group does not exist.
    Examples:
        >>> states = [f"results/tiny/translation/states/{shard}.h5" for shard in (0, 1)]
        >>> maps, fit = ffkv.fit_maps("results/tiny/model", states, "results/tiny/sampled_prefixes.h5")
        >>> maps.weight.shape  # [layer, reading, d, d]: fitted on pairs of states, and on shuffled pairs
        (2, 2, 32, 32)
        >>> fit["reading"].unique().tolist()
        ['translated', 'shuffled', 'head']
    """
    anatomy = read_anatomy(Path(model))
    layers = work.part.of(len(anatomy.layers))
    head, paths = load_head(Path(model), work.device), list(states)
    sentence, target = _read(paths, anatomy, lambda file: file["sentence"][...]), _read(paths, anatomy, _end)
    fold, shuffled = fold_of(sentence), random_stream(seed, Purpose.SHUFFLED_PAIRS).permutation(len(target))
    shape = (len(layers), len(READINGS), anatomy.width)
    weight, offset = np.zeros((*shape, anatomy.width), np.float32), np.zeros(shape, np.float32)
    rows = []
    with hdf5.open(prefixes, KIND, anatomy.identity) as file, progress(len(layers), "layers", "maps") as bar:
        attributes, final = dict(file.attrs), _end(file)
        for row, layer in enumerate(layers):
            o = _read(paths, anatomy, partial(_output, layer=layer))
            fitted = dict(zip(READINGS, fit(o, target, fold, shuffled), strict=True))
            if settings.fit == "divergence":
                pairs = dict(zip(READINGS, (target, target[shuffled]), strict=True))
                for reading, start in fitted.items():
                    batches = random_stream(seed, Purpose.DESCENT, layer)
                    fitted[reading] = descend(head, anatomy.read_as, start, o, pairs[reading], fold, batches)
            for which, ridge in enumerate(fitted.values()):
                weight[row, which], offset[row, which] = ridge.weight, ridge.offset
            rows += judge(head, anatomy, layer, fitted, _output(file, layer), final)
            bar.update()
    maps = Maps(layer=np.array(layers, np.int32), weight=weight, offset=offset, attributes=anatomy.identity)
    return maps, tables.identify(FIT.frame(rows), attributes)


def judge(
    head: Head, anatomy: Anatomy, layer: int, ridges: dict[str, Ridge], o: np.ndarray, final: np.ndarray
) -> list[tuple]:
    """Returns the rows of `FIT` of a layer. `o`: its block outputs; `final`: what the head reads, both [prefix, d]."""
    every = slice(None, None, max(1, -(-len(o) // COMPARED)))
    readers: dict[str, Head] = {
        name: TranslatedHead(head, ridge.weight.astype(np.float32), ridge.offset.astype(np.float32), anatomy.read_as)
        for name, ridge in ridges.items()
    }
    readers["head"] = head
    found = divergences(head, final[every], anatomy.read_as, readers, o[every], layer)
    rows = []
    for name, sample in found.items():
        reading = apply(ridges[name], o) if name in ridges else o
        penalty = ridges[name].penalty if name in ridges else np.nan
        mean = sample.mean() if len(sample) else np.nan
        variance = explained_variance(final, reading)
        steps = ridges[name].steps if name in ridges else 0
        rows.append((layer, name, penalty, steps, variance, len(sample), mean, *mean_interval(sample, 0)))
    return rows


def measure_translation(
    model: Path | str,
    maps: Path | str,
    values: Path | str,
    triggers: Path | str,
    projections: Path | str,
    prefixes: Path | str,
    work: Work = Work(),
) -> tuple[Projections, pd.DataFrame, pd.DataFrame]:
    """Reads the values, and r and y of the sampled prefixes, of a group of layers through their maps.

    Args:
        model: folder of the model step.
        maps: file `translation/maps/<group>.h5` of the same layer group.
        values: file `values.h5`.
        triggers: file `triggers.h5`.
        projections: file `values/projections/<group>.h5` of the same layer group: the head's own reading.
        prefixes: file `sampled_prefixes.h5`.
        work: the device and the layers.
    Returns:
        The translated projections; a row per memory and reading, and a row per sampled prefix, layer and reading
        (`translation/by_memory` and `translation/by_prefix`, docs/formats.md).
    Raises:
        UserError: a file is missing or damaged, or belongs to another model; a file is of another layer group.
    Examples:
        >>> of_group = [f"results/tiny/{folder}/0.h5" for folder in ("translation/maps", "values/projections")]
        >>> of_run = [f"results/tiny/{name}.h5" for name in ("values", "triggers", "sampled_prefixes")]
        >>> files = ["results/tiny/model", of_group[0], *of_run[:2], of_group[1], of_run[2]]
        >>> _, by_memory, _ = ffkv.measure_translation(*files, ffkv.Work(part=ffkv.Part(0, 2)))
        >>> by_memory.groupby("reading").size().to_dict()
        {'shuffled': 128, 'translated': 128}
    """
    anatomy = read_anatomy(Path(model))
    layers = work.part.of(len(anatomy.layers))
    fitted, plain = read_maps(maps, anatomy.identity, layers), read_projections(projections, anatomy.identity, layers)
    stored, examples = (
        read_values(Path(values), layers, anatomy.identity),
        read_triggers(Path(triggers), anatomy.identity),
    )
    kind, count = str(plain.attributes["projection"]), plain.top_token.shape[1]
    head, of_values = load_head(Path(model), work.device), load_head(Path(model), work.device, kind)
    found: list[Projections] = []
    by_memory, by_prefix = [], []
    with hdf5.open(prefixes, KIND, anatomy.identity) as file, progress(len(layers), "layers", "translation") as bar:
        attributes, final = dict(file.attrs), predictions(head, _end(file), anatomy.read_as).ids
        number = np.arange(len(final), dtype=np.int32)
        for layer in layers:
            states, own = read_layer(file, layer, "yrm"), stored.of_layer(layer)
            w = examples.next_token[examples.layer_offset[layer] + own.memory, 0]
            top = plain.top[plain.layer == layer]
            for reading in READINGS:
                of_change = head_of(of_values, fitted, layer, reading, anatomy.read_as, state=False)
                of_state = head_of(head, fitted, layer, reading, anatomy.read_as, state=True)
                projected, ranks = project(of_change, own, count, w)
                table = compare(projected, ranks, examples)
                agrees = (top == w) & (w >= 0)
                by_memory.append(table.assign(reading=reading, head_top_token=top, head_agrees=agrees))
                read = read_prefixes(states, final, projected.top, of_state, of_change)
                by_prefix.append(read.assign(reading=reading, layer=layer, prefix=number)[BY_PREFIX.names])
                found += [projected] if reading == READINGS[0] else []
            bar.update()
    names = {field for field in vars(plain) if field != "attributes"}
    joined = {name: np.concatenate([getattr(each, name) for each in found]) for name in names if found}
    about = {**anatomy.identity, "projection": kind, "readout": "translated"}
    return (
        replace(plain, **joined, attributes=about),
        tables.identify(BY_MEMORY.frame(pd.concat(by_memory) if by_memory else []), examples.attributes),
        tables.identify(BY_PREFIX.frame(pd.concat(by_prefix) if by_prefix else []), attributes),
    )


def summarize_translation(
    fit: Iterable[Path | str],
    by_memory: Iterable[Path | str],
    by_prefix: Iterable[Path | str],
    model: Path | str,
    triggers: Path | str,
    train: Path | str,
    seed: int = 0,
) -> dict[str, pd.DataFrame]:
    """Summarizes the tables of all layer groups as figures 4, 5 and 8 to 10 do, and compares the readings.

    Args:
        fit: the tables `translation/fit/<group>.parquet`, each once.
        by_memory: the tables `translation/by_memory/<group>.parquet`.
        by_prefix: the tables `translation/by_prefix/<group>.parquet`.
        model: folder of the model step.
        triggers: file `triggers.h5`.
        train: file `corpus/train.h5`.
        seed: seed of the permutations.
    Returns:
        The tables by the stem of their file.
    Raises:
        UserError: a file is missing or damaged, or belongs to another model or corpus; a layer is missing or repeated.
    Examples:
        >>> parts = [[f"results/tiny/translation/{name}/{group}.parquet" for group in (0, 1)]
        ...          for name in ("fit", "by_memory", "by_prefix")]
        >>> files = ["results/tiny/model", "results/tiny/triggers.h5", "results/tiny/corpus/train.h5"]
        >>> ffkv.summarize_translation(*parts, *files)["translation_differences"]["half"].unique().tolist()
        ['lower', 'upper', 'all']
    """
    anatomy = read_anatomy(Path(model))
    examples = read_triggers(Path(triggers), anatomy.identity)
    competing = CompetingPrefixes(
        read_corpus(Path(train), examples.attributes),
        examples.settings.shared_prefixes_compete == "once",
        examples.settings.include_empty_prefix,
    )
    layers = set(range(len(anatomy.layers)))
    memories = tables.read_all(by_memory, examples.attributes)
    read, judged = (tables.read_all(paths, anatomy.identity) for paths in (by_prefix, fit))
    keys = {"--by-memory": ["memory"], "--by-prefix": ["prefix"], "--fit": []}
    for (option, unit), table in zip(keys.items(), (memories, read, judged), strict=True):
        tables.check_layers(table, ["layer", "reading", *unit], layers, option)
    unigram = competing.count_next_tokens(anatomy.vocabulary)
    return {
        **summaries.summarize_values(memories, unigram, seed),
        **summaries.summarize_prefixes(read),
        "translation_fit": FIT_BY_LAYER.frame(judged.sort_values("layer", kind="stable", ignore_index=True)),
        "translation_differences": summaries.summarize_differences(memories, len(anatomy.layers)),
    }


def _output(file: h5py.File, layer: int) -> np.ndarray:
    """Returns the block outputs of a layer [prefix, d]."""
    return read_layer(file, layer, "o").o


def _end(file: h5py.File) -> np.ndarray:
    """Returns what the head reads on the prefixes of a file [prefix, d]."""
    return file["end"][...] if "end" in file else _output(file, len(file["layer_offset"]) - 2)


def _read(paths: list[Path | str], anatomy: Anatomy, read: Callable[[h5py.File], np.ndarray]) -> np.ndarray:
    """Reads an array of the prefixes of all shards [prefix, ...]."""
    parts = []
    for path in paths:
        with hdf5.open(path, KIND, anatomy.identity) as file:
            parts.append(read(file))
    return np.concatenate(parts)
