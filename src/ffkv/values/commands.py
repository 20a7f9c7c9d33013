"""`ffkv values`: `measure`, `summarize`."""

from pathlib import Path

import click

from ffkv.options import (
    MEMORIES,
    MODEL,
    READABLE,
    TRIGGERS,
    WRITABLE,
    part_options,
    seed_option,
    setting,
    threads_option,
)
from ffkv.parts import Part
from ffkv.settings import Model, Values


@click.group()
def values() -> None:
    """Values: projections, agreement, rank, top probability."""


@values.command()
@MODEL
@MEMORIES
@TRIGGERS
@setting(Values, "projection", "top_tokens")
@setting(Model, "device")
@part_options("layer_group")
@threads_option
@click.option(
    "--projections",
    "projections_file",
    type=WRITABLE,
    required=True,
    help="The file to write, values/projections/<group>.h5.",
)
@click.option("--output", type=WRITABLE, required=True, help="The table to write, values/memories/<group>.parquet.")
def measure(
    model_folder: Path,
    memories_file: Path,
    triggers_file: Path,
    projection: str,
    top_tokens: int,
    device: str,
    layer_group: int,
    layer_groups: int,
    threads: int,
    projections_file: Path,
    output: Path,
) -> None:
    """Project the values of a group of layers onto the vocabulary and compare them with what follows their keys' triggers."""
    from dataclasses import replace

    from ffkv.process.runtime import torch_with

    torch_with(threads)
    from ffkv.activations.trigger_file import read_triggers
    from ffkv.files import tables
    from ffkv.model.anatomy import read_anatomy
    from ffkv.model.head.head_file import load_head
    from ffkv.model.values_file import read_values
    from ffkv.values.compare import compare, first_next
    from ffkv.values.projections import project, write_projections

    anatomy = read_anatomy(model_folder)
    memories = read_values(memories_file, Part(layer_group, layer_groups).of(len(anatomy.layers)), anatomy.identity)
    triggers = read_triggers(triggers_file, anatomy.identity)
    head = load_head(model_folder, device, projection)
    projections, ranks = project(head, memories, top_tokens, first_next(memories, triggers))
    attributes = {**anatomy.identity, "projection": projection}
    write_projections(projections_file, replace(projections, attributes=attributes))
    tables.write(compare(projections, ranks, triggers), output)


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
    from ffkv.activations.trigger_file import read_triggers
    from ffkv.corpus.corpus_file import read_corpus
    from ffkv.files import tables
    from ffkv.model.checkpoint.vocabulary import read_vocabulary
    from ffkv.values import summaries

    triggers = read_triggers(triggers_file)
    corpus = read_corpus(corpus_file, triggers.attributes)
    table = tables.read_all(memory_tables)
    tables.check_layers(table, ["layer", "memory"], set(range(triggers.layers)), "MEMORY_TABLES")
    chosen = summaries.predictive(table, predictive)
    per_key = triggers.coefficient.shape[1]
    for name, summary in {
        "agreement": summaries.agreement(table, corpus.unigram, seed),
        "rank": summaries.ranks(table),
        "probability": summaries.by_probability(table, bins),
        "predictive": summaries.examples(chosen, triggers, corpus, read_vocabulary(model_folder), per_key),
        "predictive_layers": summaries.predictive_layers(chosen, triggers.layers),
    }.items():
        tables.write(summary, output / f"{name}.csv")
