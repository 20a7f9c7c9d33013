"""Reads the predictions of each layer, and summarizes how they are refined."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd

from ffkv.activations.prefix_file import PrefixLayer, read_layer
from ffkv.base.files import hdf5, tables
from ffkv.base.intervals import boxes
from ffkv.base.process.progress import progress
from ffkv.base.settings import Refinement
from ffkv.base.steps import Work
from ffkv.branches.refinement import summaries
from ffkv.branches.refinement.cases import classify
from ffkv.branches.refinement.changes import describe_changes, sample_changes
from ffkv.branches.refinement.tables import BY_PREFIX
from ffkv.corpus.corpus_file import read_corpus
from ffkv.model.anatomy import read_anatomy
from ffkv.model.checkpoint.vocabulary import read_vocabulary
from ffkv.model.head.head import Head
from ffkv.model.head.head_file import load_head, stored_output_embedding
from ffkv.model.head.topk import predictions


def measure_refinement(model: Path | str, prefixes: Path | str, work: Work = Work()) -> pd.DataFrame:
    """Reads the predictions of r, y and o on each sampled prefix in a group of layers (paper section 5.2).

    Args:
        model: folder of the model step.
        prefixes: file `sampled_prefixes.h5`.
        work: the device and the layers to measure.
    Returns:
        The table `BY_PREFIX` of `ffkv.branches.refinement.tables`.
    Raises:
        UserError: a file is missing or damaged, or belongs to another model; the layer group does not exist.
    Examples:
        >>> table = ffkv.measure_refinement("results/tiny/model", "results/tiny/sampled_prefixes.h5")
        >>> len(table)  # 200 prefixes in 2 layers
        400
    """
    anatomy = read_anatomy(Path(model))
    layers = work.part.of(len(anatomy.layers))
    head = load_head(Path(model), work.device)
    by_layer = []
    with (
        hdf5.open(prefixes, "sampled prefixes", anatomy.identity) as file,
        progress(len(layers), "layers", "refinement") as bar,
    ):
        attributes = dict(file.attrs)
        last = len(anatomy.layers) - 1
        vectors, of_layer = (file["end"][...], None) if "end" in file else (read_layer(file, last, "o").o, last)
        final = predictions(head, vectors, of_layer).ids
        number = np.arange(len(final), dtype=np.int32)
        for layer in layers:
            predicted = measure_layer(head, read_layer(file, layer, "ryo"), final, layer)
            by_layer.append(predicted.assign(layer=layer, prefix=number)[BY_PREFIX.names])
            bar.update()
    table = pd.concat(by_layer, ignore_index=True) if by_layer else BY_PREFIX.frame([])
    return tables.identify(table, attributes)


def measure_layer(head: Head, states: PrefixLayer, final: np.ndarray, layer: int) -> pd.DataFrame:
    """Reads the predictions of one layer from r, y and o of the sampled prefixes.

    `final`: the model's final prediction [prefix]. Returns the columns of `BY_PREFIX`, but for layer and prefix.
    """
    r = predictions(head, states.r, layer, final)
    y, o = (predictions(head, state, layer) for state in (states.y, states.o))
    return pd.DataFrame(
        {
            "top_residual": r.ids,
            "top_ffn": y.ids,
            "top_output": o.ids,
            "final": final,
            "probability": r.probability,
            "case": classify(r.ids, y.ids, o.ids),
            "tied": r.tied.astype(np.int8) + y.tied + o.tied,
        }
    )


def summarize_refinement(
    by_prefix: Iterable[Path | str],
    model: Path | str,
    prefixes: Path | str,
    validation: Path | str,
    settings: Refinement = Refinement(),
    seed: int = 0,
) -> dict[str, pd.DataFrame]:
    """Summarizes the tables of all layer groups into the tables of figures 9 to 11 and the prediction changes.

    Args:
        by_prefix: the tables `refinement/by_prefix/<group>.parquet`, each once.
        model: folder of the model step.
        prefixes: file `sampled_prefixes.h5`.
        validation: file `corpus/validation.h5`.
        settings: `changes` is used.
        seed: seed of the sample of changes.
    Returns:
        The tables by the stem of their file.
    Raises:
        UserError: a file is missing or damaged, or belongs to another model, corpus or sample of prefixes; a layer is
            missing or repeated.
    Examples:
        >>> by_prefix = [f"results/tiny/refinement/by_prefix/{group}.parquet" for group in (0, 1)]
        >>> files = ["results/tiny/model", "results/tiny/sampled_prefixes.h5", "results/tiny/corpus/validation.h5"]
        >>> len(ffkv.summarize_refinement(by_prefix, *files)["figure_9_residual_agreement"])  # one row per layer
        2
    """
    anatomy = read_anatomy(Path(model))
    last = len(anatomy.layers) - 1
    with hdf5.open(prefixes, "sampled prefixes", anatomy.identity) as file:
        attributes = dict(file.attrs)
        sentence, position = file["sentence"][...], file["position"][...]
    split = read_corpus(Path(validation), attributes)
    table = tables.read_all(by_prefix, attributes)
    tables.check_layers(table, ["layer", "prefix"], set(range(len(anatomy.layers))), "--by-prefix")
    changes = sample_changes(table[table["layer"] == last], settings.changes, seed)
    tokens, embedding = read_vocabulary(Path(model)), stored_output_embedding(Path(model))
    return {
        "figure_9_residual_agreement": summaries.summarize_residual_agreement(table),
        "figure_10_final_probability": boxes(table, "probability", "prefixes"),
        "figure_11_breakdown": summaries.summarize_breakdown(table),
        "prediction_changes": describe_changes(changes, split, sentence, position, tokens, embedding, seed),
    }
