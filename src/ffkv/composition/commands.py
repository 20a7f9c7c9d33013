"""`ffkv composition`: `measure`, `summarize`."""

from pathlib import Path

import click

from ffkv.options import MEMORIES, MODEL, PREFIXES, READABLE, WRITABLE, part_options, setting, threads_option
from ffkv.parts import Part
from ffkv.settings import Composition, Model, Values

COLUMNS = [
    "layer",
    "prefix",
    "active",
    "share",
    "agreeing",
    "agreeing_all",
    "effective",
    "participation",
    "target_is_stop_word",
    "words",
]


@click.group()
def composition() -> None:
    """How memories of a layer compose."""


@composition.command()
@MODEL
@PREFIXES
@MEMORIES
@click.option(
    "--corpus", "corpus_file", type=READABLE, required=True, help="The validation split, corpus/validation.h5."
)
@setting(Values, "projection")
@setting(Composition, "mass")
@setting(Model, "device")
@part_options("layer_group")
@threads_option
@click.option(
    "--output", type=WRITABLE, required=True, help="The table to write, composition/prefixes/<group>.parquet."
)
def measure(
    model_folder: Path,
    prefixes_file: Path,
    memories_file: Path,
    corpus_file: Path,
    projection: str,
    mass: float,
    device: str,
    layer_group: int,
    layer_groups: int,
    threads: int,
    output: Path,
) -> None:
    """Measure, on every sampled prefix, what the memories of a group of layers do."""
    from ffkv.process.runtime import torch_with

    torch_with(threads)
    import pandas as pd

    from ffkv.activations.prefix_file import read_layer
    from ffkv.composition.composition import describe_prefixes
    from ffkv.composition.layer import read_out
    from ffkv.corpus.corpus_file import read_corpus
    from ffkv.files import hdf5, tables
    from ffkv.model.anatomy import read_anatomy
    from ffkv.model.head.head_file import load_head
    from ffkv.model.values_file import read_values

    anatomy = read_anatomy(model_folder)
    layers = Part(layer_group, layer_groups).of(len(anatomy.layers))
    memories = read_values(memories_file, layers, anatomy.identity)
    head = load_head(model_folder, device, projection)
    with hdf5.open(prefixes_file, "sampled prefixes", anatomy.identity) as file:
        corpus = read_corpus(corpus_file, file.attrs)
        facts = describe_prefixes(corpus, file["sentence"][...], file["position"][...])
        measured = []
        for layer in layers:
            at = read_layer(file, layer, "ym")
            composed = read_out(head, at, memories.of(layer), layer, mass)
            measured.append(pd.concat([facts.assign(layer=layer), composed], axis=1)[COLUMNS])
    tables.write(pd.concat(measured, ignore_index=True) if measured else pd.DataFrame(columns=COLUMNS), output)


@composition.command()
@click.argument("prefix_tables", nargs=-1, required=True, type=READABLE)
@MODEL
@setting(Composition, "short_prefix")
@click.option("--output", type=WRITABLE, required=True, help="The folder to write into, composition/.")
def summarize(prefix_tables: tuple[Path, ...], model_folder: Path, short_prefix: int, output: Path) -> None:
    """Summarize PREFIX_TABLES, those of all groups, into the tables of figures 7 and 8."""
    from ffkv.composition import composition
    from ffkv.files import tables
    from ffkv.model.anatomy import read_anatomy

    anatomy = read_anatomy(model_folder)
    table = tables.read_all(prefix_tables)
    tables.check_layers(table, ["layer", "prefix"], set(range(len(anatomy.layers))), "PREFIX_TABLES")
    memories = {layer.index: layer.memories for layer in anatomy.layers}
    for name, summary in {
        "active": composition.active(table),
        "agreement": composition.without_agreement(table),
        "cases": composition.cases(table, short_prefix),
        "effective": composition.effective(table, memories),
    }.items():
        tables.write(summary, output / f"{name}.csv")
