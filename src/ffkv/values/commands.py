"""`ffkv values`: `project`, `compare`, `summarize`."""

from pathlib import Path

import click

from ffkv.commands import MODEL, READABLE, TRIGGERS, WRITABLE, part, part_options, seed_option, setting, threads_option
from ffkv.settings import Model, Values

MEMORIES = click.option("--memories", "memories_file", type=READABLE, required=True, help="memories.h5")


@click.group()
def values() -> None:
    """Values: projections, agreement, rank, top probability."""


@values.command()
@MODEL
@MEMORIES
@setting(Values, "projection", "top_tokens")
@setting(Model, "device")
@part_options("layer_group")
@threads_option
@click.option("--output", type=WRITABLE, required=True, help="The file to write, values/projections/<group>.h5.")
def project(
    model_folder: Path,
    memories_file: Path,
    projection: str,
    top_tokens: int,
    device: str,
    layer_group: int,
    layer_groups: int,
    threads: int,
    output: Path,
) -> None:
    """Project the values of a group of layers onto the vocabulary."""
    from dataclasses import replace

    from ffkv.runtime import torch_with

    torch_with(threads)
    from ffkv.model.anatomy import read_anatomy
    from ffkv.model.emptied import load_head
    from ffkv.model.memories import read_memories
    from ffkv.values import projections

    anatomy = read_anatomy(model_folder)
    memories = read_memories(memories_file, part(len(anatomy.layers), layer_group, layer_groups), anatomy.identity)
    found = projections.project(load_head(model_folder, device, projection), memories, top_tokens)
    projections.write_projections(output, replace(found, attributes={**anatomy.identity, "projection": projection}))


@values.command()
@MODEL
@MEMORIES
@TRIGGERS
@click.option(
    "--projections",
    "projections_file",
    type=READABLE,
    required=True,
    help="values/projections/<group>.h5 of the same group.",
)
@setting(Model, "device")
@part_options("layer_group")
@threads_option
@click.option("--output", type=WRITABLE, required=True, help="The table to write, values/memories/<group>.parquet.")
def compare(
    model_folder: Path,
    memories_file: Path,
    triggers_file: Path,
    projections_file: Path,
    device: str,
    layer_group: int,
    layer_groups: int,
    threads: int,
    output: Path,
) -> None:
    """Compare what values predict with what follows their keys' triggers."""
    from ffkv.runtime import torch_with

    torch_with(threads)
    from ffkv import tables
    from ffkv.activations.data import read_triggers
    from ffkv.model.anatomy import read_anatomy
    from ffkv.model.emptied import load_head
    from ffkv.model.memories import read_memories
    from ffkv.values.compare import compare as compare_values
    from ffkv.values.projections import read_projections

    anatomy = read_anatomy(model_folder)
    layers = part(len(anatomy.layers), layer_group, layer_groups)
    memories = read_memories(memories_file, layers, anatomy.identity)
    projections, triggers = (
        read_projections(projections_file, anatomy.identity, layers),
        read_triggers(triggers_file, anatomy.identity),
    )
    head = load_head(model_folder, device, projections.attributes["projection"])
    tables.write(compare_values(head, memories, projections, triggers), output)


@values.command()
@click.argument("memory_tables", nargs=-1, required=True, type=READABLE)
@MODEL
@TRIGGERS
@click.option("--corpus", "corpus_file", type=READABLE, required=True, help="The train split, corpus/train.h5.")
@setting(Values, "predictive", "bins")
@seed_option
@click.option("--output", type=WRITABLE, required=True, help="The folder to write into, values/.")
def summarize(
    memory_tables: tuple[Path, ...],
    model_folder: Path,
    triggers_file: Path,
    corpus_file: Path,
    predictive: int,
    bins: int,
    seed: int,
    output: Path,
) -> None:
    """Summarize MEMORY_TABLES, those of all groups, into the tables of figures 4 to 6 and of table 2."""
    from ffkv import tables
    from ffkv.activations.data import read_triggers
    from ffkv.corpus import data
    from ffkv.model.vocabulary import read_vocabulary
    from ffkv.values import agreement

    triggers = read_triggers(triggers_file)
    corpus = data.read(corpus_file, triggers.attributes)
    table = tables.read_all(memory_tables)
    tables.check_layers(table, ["layer", "memory"], set(range(triggers.layers)), "MEMORY_TABLES")
    chosen = agreement.predictive(table, predictive)
    per_key = triggers.coefficient.shape[1]
    for name, summary in {
        "agreement": agreement.agreement(table, corpus.unigram, seed),
        "rank": agreement.ranks(table),
        "probability": agreement.by_probability(table, bins),
        "predictive": agreement.examples(chosen, triggers, corpus, read_vocabulary(model_folder), per_key),
        "predictive_layers": agreement.predictive_layers(chosen, triggers.layers),
    }.items():
        tables.write(summary, output / f"{name}.csv")
