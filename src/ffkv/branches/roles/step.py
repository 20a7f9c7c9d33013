"""Measures the roles of memories, a layer at a time."""

import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ffkv.activations.trigger_file import Triggers, read_triggers
from ffkv.base.files import tables
from ffkv.base.process.progress import progress
from ffkv.base.settings import Roles
from ffkv.base.steps import Work
from ffkv.base.streams import Purpose, random_stream
from ffkv.branches.roles.cosines import compare, name_types
from ffkv.branches.roles.examples import shares_in_ends, sign_cases, tokens_seen
from ffkv.branches.roles.readout import Readout, ignores_mean, make_readout, measure, read_matrix
from ffkv.branches.roles.summaries import count_types, describe_cases, summarize_columns
from ffkv.branches.roles.tables import BY_LAYER, BY_MEMORY, COSINES, MOMENTS, SIGN_CASES, TYPES_BY_LAYER
from ffkv.branches.values.projections import Projections, read_projections
from ffkv.corpus.competing import CompetingPrefixes
from ffkv.corpus.corpus_file import Corpus, read_corpus
from ffkv.model.anatomy import Anatomy
from ffkv.model.checkpoint.load import LoadedModel, load
from ffkv.model.checkpoint.vocabulary import read_vocabulary
from ffkv.model.head.head import Head
from ffkv.model.head.head_file import load_head
from ffkv.model.key_vectors import factors
from ffkv.model.values_file import read_values

SHARP = 10  # kurtosis of the logits of a value that promotes or demotes few tokens (Gurnee et al. 2024)


def measure_roles(
    model: Path | str,
    values: Path | str,
    projections: Path | str,
    triggers: Path | str,
    train: Path | str,
    settings: Roles = Roles(),
    seed: int = 0,
    work: Work = Work(),
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Measures what the weights of memories say of their roles, for a group of layers (docs/roles.md).

    The weights are read on the CPU, in float32. No text is read but that of trigger examples.

    Args:
        model: folder of the model step.
        values: file `values.h5`.
        projections: file `values/projections/<group>.h5` of the same layers.
        triggers: file `triggers.h5`.
        train: file `corpus/train.h5`.
        settings: all are used.
        seed: seed of the permutations.
        work: the layers to read, and the setting `model.max_memory`.
    Returns:
        The tables `BY_MEMORY`, `BY_LAYER`, `TYPES_BY_LAYER` and `SIGN_CASES` of `ffkv.branches.roles.tables`.
    Raises:
        UserError: a file is missing or damaged, or belongs to another model or corpus; the checkpoint has changed; there is no
            such layer group.
    Examples:
        >>> files = [f"results/tiny/{name}" for name in ("values.h5", "values/projections/0.h5")]
        >>> more = ["results/tiny/triggers.h5", "results/tiny/corpus/train.h5"]
        >>> group = ffkv.Work(part=ffkv.Part(0, 2))
        >>> by_memory, *_ = ffkv.measure_roles("results/tiny/model", *files, *more, work=group)
        >>> len(by_memory), "key_value_cosine" in by_memory
        (128, True)
    """
    loaded = load(model, "cpu", work.max_memory)
    anatomy, corpus, tokens = loaded.anatomy, read_corpus(Path(train)), read_vocabulary(Path(model))
    layers, identity = work.part.of(len(anatomy.layers)), {**corpus.attributes, **anatomy.identity}
    predicted = read_projections(projections, anatomy.identity, layers)
    readout_of = _readouts(load_head(model, "cpu", predicted.attributes["projection"]), anatomy, corpus, settings)
    parts = []
    with progress(len(layers), "layers", "roles") as bar:
        for layer in layers:
            examples = read_triggers(triggers, identity, slice(*anatomy.layer_offset[layer : layer + 2]))
            v = torch.from_numpy(read_values(values, range(layer, layer + 1), anatomy.identity).value)
            stream = random_stream(seed, Purpose.PERMUTED_ROLES, layer)
            table, summary = _measure_layer(
                loaded, layer, v, predicted, examples, corpus, readout_of(layer), settings, stream
            )
            parts.append((table, summary, count_types(table, layer), describe_cases(examples, layer, corpus, tokens)))
            bar.update()
    described = (BY_MEMORY, BY_LAYER, TYPES_BY_LAYER, SIGN_CASES)
    frames = zip(*parts, strict=True) if parts else ([each.frame([])] for each in described)
    by_memory, *by_layer = (tables.identify(pd.concat(each, ignore_index=True), identity) for each in frames)
    return by_memory, *by_layer


def _measure_layer(
    loaded: LoadedModel,
    layer: int,
    v: Tensor,
    predicted: Projections,
    examples: Triggers,
    corpus: Corpus,
    readout: Readout | None,
    settings: Roles,
    stream: np.random.Generator,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Returns the rows of `BY_MEMORY` and of `BY_LAYER` of one layer.

    `v`: its values [memory, d]. `predicted`: projections of the group of layers. `examples`: triggers of the layer alone.
    """
    anatomy, part = loaded.anatomy, predicted.layer == layer
    key, gate = factors(loaded.model, anatomy.layers[layer], anatomy.width)
    pairs = zip(COSINES, ((key, v), (gate, v), (gate, key)), strict=True)
    cosines = {name: compare(*pair, stream) for name, pair in pairs}
    ends = predicted.top_token[part, : settings.tokens], predicted.bottom_token[part, : settings.tokens]
    seen = tokens_seen(examples, np.asarray(corpus.tokens), corpus.offsets)
    columns = {
        "layer": layer,
        "memory": np.arange(len(v)),
        **{f"{name}{end}": column for name, found in cosines.items() for end, column in found.columns.items()},
        "role": name_types(settings.threshold, *(found.own for found in cosines.values())),
        **measure(readout, v),
        **{each.name: getattr(predicted, each.name)[part] for each in MOMENTS},
        **shares_in_ends(seen, *ends),
        **(sign_cases(examples) if any(each.gated for each in anatomy.layers) else {}),
    }
    columns["output_role"] = name_outputs(columns["logit_skewness"], columns["logit_kurtosis"])
    table = BY_MEMORY.frame(pd.DataFrame(columns))
    order = stream.permutation(len(v))
    permuted = shares_in_ends(seen, *(end[order] for end in ends))
    chance = {name: float(pd.Series(shares).mean()) for name, shares in permuted.items()}
    chance["ignored_share"] = np.nan if readout is None else readout.ignored.shape[1] / anatomy.width
    return table, summarize_columns(table, layer, cosines, chance)


def _readouts(head: Head, anatomy: Anatomy, corpus: Corpus, settings: Roles) -> Callable[[int], Readout | None]:
    """Returns a function that gives the readout of a layer's vectors: the same one of all but the layers of post-norm blocks."""
    counts = CompetingPrefixes(corpus, False).count_next_tokens(head.vocabulary)

    @functools.cache
    def of_head(layer: int) -> Readout | None:
        matrix = read_matrix(head, anatomy.width, layer)
        if matrix is None:
            return None
        return make_readout(matrix, counts, settings.ignored, ignores_mean(head, anatomy.width, layer))

    return lambda layer: of_head(layer if anatomy.layers[layer].post_norm else len(anatomy.layers) - 1)


def name_outputs(skewness: np.ndarray, kurtosis: np.ndarray) -> np.ndarray:
    """Names what values do to the logits [memory] (Gurnee et al. 2024): a sharp top, a sharp bottom, or neither."""
    sharp = kurtosis > SHARP
    named = np.select([sharp & (skewness > 0), sharp & (skewness < 0)], ["prediction", "suppression"], "other")
    return np.where(np.isfinite(kurtosis), named, "").astype(object)
