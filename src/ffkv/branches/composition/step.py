"""Measures the memories on each sampled prefix, and summarizes them over prefixes."""

from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from ffkv.activations.prefix_file import read_layer
from ffkv.base.files import hdf5, tables
from ffkv.base.intervals import boxes
from ffkv.base.process.progress import progress
from ffkv.base.settings import Composition
from ffkv.base.steps import Work
from ffkv.branches.composition import summaries
from ffkv.branches.composition.by_prefix import describe_memories, describe_prefixes
from ffkv.branches.composition.tables import BY_PREFIX
from ffkv.branches.values.projections import read_projections
from ffkv.corpus.corpus_file import read_corpus
from ffkv.model.anatomy import read_anatomy
from ffkv.model.head.head_file import load_head
from ffkv.model.head.topk import predictions


def measure_composition(
    model: Path | str,
    prefixes: Path | str,
    projections: Path | str,
    validation: Path | str,
    settings: Composition = Composition(),
    work: Work = Work(),
) -> pd.DataFrame:
    """Measures on each sampled prefix how the memories of a group of layers compose (paper section 5.1).

    The layers' outputs y go through the head. The values have gone through it before: top(v_i), ‖v_i‖ and the kind of
    projection come from the file of projections.

    Args:
        model: folder of the model step.
        prefixes: file `sampled_prefixes.h5`.
        projections: file `values/projections/<group>.h5` of the same layer group.
        validation: file `corpus/validation.h5`.
        settings: `mass` is used.
        work: the device and the layers to measure.
    Returns:
        The table `BY_PREFIX` of `ffkv.branches.composition.tables`.
    Raises:
        UserError: a file is missing or damaged, or belongs to another model or corpus; the file of projections is of
            another layer group; the layer group does not exist.
    Examples:
        >>> projections = [f"results/tiny/values/projections/{group}.h5" for group in (0, 1)]
        >>> table = ffkv.measure_composition(
        ...     "results/tiny/model",
        ...     "results/tiny/sampled_prefixes.h5",
        ...     projections[1],
        ...     "results/tiny/corpus/validation.h5",
        ...     work=ffkv.Work(part=ffkv.Part(1, 2)),  # the second of two groups of layers
        ... )
        >>> table["layer"].unique()
        array([1])
    """
    anatomy = read_anatomy(Path(model))
    layers = work.part.of(len(anatomy.layers))
    values = read_projections(projections, anatomy.identity, layers)
    head = load_head(Path(model), work.device, str(values.attributes["projection"]))
    by_layer = []
    with (
        hdf5.open(prefixes, "sampled prefixes", anatomy.identity) as file,
        progress(len(layers), "layers", "composition") as bar,
    ):
        attributes = dict(file.attrs)
        split = read_corpus(Path(validation), attributes)
        described = describe_prefixes(split, file["sentence"][...], file["position"][...])
        for layer in layers:
            states, of_layer = read_layer(file, layer, "ym"), values.layer == layer
            top_y = predictions(head, states.y, layer).ids
            memories = describe_memories(states.m, values.top[of_layer], top_y, values.norm[of_layer], settings.mass)
            by_layer.append(pd.concat([described.assign(layer=layer), memories], axis=1)[BY_PREFIX.names])
            bar.update()
    table = pd.concat(by_layer, ignore_index=True) if by_layer else BY_PREFIX.frame([])
    return tables.identify(table, attributes)


def summarize_composition(
    by_prefix: Iterable[Path | str], model: Path | str, settings: Composition = Composition()
) -> dict[str, pd.DataFrame]:
    """Summarizes the tables of all layer groups into the tables of figures 7 and 8.

    Args:
        by_prefix: the tables `composition/by_prefix/<group>.parquet`, each once.
        model: folder of the model step.
        settings: `short_prefix` is used.
    Returns:
        The tables by the stem of their file.
    Raises:
        UserError: a file is missing or damaged, or belongs to another model; a layer is missing or repeated.
    Examples:
        >>> by_prefix = [f"results/tiny/composition/by_prefix/{group}.parquet" for group in (0, 1)]
        >>> tables = ffkv.summarize_composition(by_prefix, "results/tiny/model")
        >>> list(tables["figure_8_no_agreement"]["reading"].unique())
        ['active', 'all']
    """
    anatomy = read_anatomy(Path(model))
    table = tables.read_all(by_prefix, anatomy.identity)
    tables.check_layers(table, ["layer", "prefix"], set(range(len(anatomy.layers))), "--by-prefix")
    memories = {layer.index: layer.memories for layer in anatomy.layers}
    return {
        "figure_7_active_memories": boxes(table, "share", "prefixes"),
        "figure_7_effective_number": summaries.summarize_effective(table, memories),
        "figure_8_no_agreement": summaries.summarize_no_agreement(table),
        "figure_8_agreement_cases": summaries.summarize_cases(table, settings.short_prefix),
    }
