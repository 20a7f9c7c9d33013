"""`ffkv refinement`: `measure`, `summarize`."""

from pathlib import Path

import click

from ffkv.options import MODEL, PREFIXES, READABLE, WRITABLE, part_options, seed_option, setting, threads_option
from ffkv.parts import Part
from ffkv.settings import Model, Refinement

COLUMNS = ["layer", "prefix", "top_residual", "top_ffn", "top_output", "final", "probability", "case", "tied"]


@click.group()
def refinement() -> None:
    """How predictions are refined over the layers."""


@refinement.command()
@MODEL
@PREFIXES
@setting(Model, "device")
@part_options("layer_group")
@threads_option
@click.option("--output", type=WRITABLE, required=True, help="The table to write, refinement/prefixes/<group>.parquet.")
def measure(
    model_folder: Path,
    prefixes_file: Path,
    device: str,
    layer_group: int,
    layer_groups: int,
    threads: int,
    output: Path,
) -> None:
    """Read out r, y and o of every sampled prefix in a group of layers."""
    from ffkv.process.runtime import torch_with

    torch_with(threads)
    import numpy as np
    import pandas as pd

    from ffkv.activations.prefix_file import read_layer
    from ffkv.files import hdf5, tables
    from ffkv.model.anatomy import read_anatomy
    from ffkv.model.head.head import predictions
    from ffkv.model.head.head_file import load_head
    from ffkv.refinement.layer import read_out

    anatomy = read_anatomy(model_folder)
    head, last = load_head(model_folder, device), len(anatomy.layers) - 1
    with hdf5.open(prefixes_file, "sampled prefixes", anatomy.identity) as file:
        if "end" in file:
            final = predictions(head, file["end"][...], None).ids
        else:
            final = predictions(head, read_layer(file, last, "o").o, last).ids
        number = np.arange(len(final), dtype=np.int32)
        measured = []
        for layer in Part(layer_group, layer_groups).of(len(anatomy.layers)):
            read = read_out(head, read_layer(file, layer, "ryo"), final, layer)
            measured.append(read.assign(layer=layer, prefix=number)[COLUMNS])
    tables.write(pd.concat(measured, ignore_index=True) if measured else pd.DataFrame(columns=COLUMNS), output)


@refinement.command()
@click.argument("prefix_tables", nargs=-1, required=True, type=READABLE)
@MODEL
@PREFIXES
@click.option(
    "--corpus", "corpus_file", type=READABLE, required=True, help="The validation split, corpus/validation.h5."
)
@setting(Refinement, "changes")
@seed_option
@click.option("--output", type=WRITABLE, required=True, help="The folder to write into, refinement/.")
def summarize(
    prefix_tables: tuple[Path, ...],
    model_folder: Path,
    prefixes_file: Path,
    corpus_file: Path,
    changes: int,
    seed: int,
    output: Path,
) -> None:
    """Summarize PREFIX_TABLES, those of all groups, into the tables of figures 9 to 11 and the changes to annotate."""
    from ffkv.corpus.corpus_file import read_corpus
    from ffkv.files import hdf5, tables
    from ffkv.model.anatomy import read_anatomy
    from ffkv.model.checkpoint.vocabulary import read_vocabulary
    from ffkv.model.head.head_file import stored_output_embedding
    from ffkv.refinement import refinement

    layers = len(read_anatomy(model_folder).layers)
    table = tables.read_all(prefix_tables)
    tables.check_layers(table, ["layer", "prefix"], set(range(layers)), "PREFIX_TABLES")
    with hdf5.open(prefixes_file, "sampled prefixes") as file:
        corpus, sentence, position = read_corpus(corpus_file, file.attrs), file["sentence"][...], file["position"][...]
    chosen = refinement.sample_changes(table[table["layer"] == layers - 1], changes, seed)
    for name, summary in {
        "residual": refinement.matches(table),
        "probability": refinement.probabilities(table),
        "breakdown": refinement.breakdown(table),
        "changes": refinement.changes(
            chosen,
            corpus,
            sentence,
            position,
            read_vocabulary(model_folder),
            stored_output_embedding(model_folder),
            seed,
        ),
    }.items():
        tables.write(summary, output / f"{name}.csv")
