"""`ffkv values`: `project`, `summarize`."""

from pathlib import Path
from typing import Literal

import click

from ffkv.options import (
    CORPUS,
    MODEL,
    READABLE,
    TRIGGERS,
    VALUES,
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
@VALUES
@TRIGGERS
@setting(Values, "projection", "top_tokens")
@setting(Model, "device")
@part_options("layer_group")
@threads_option
@click.option(
    "--output-projections", type=WRITABLE, required=True, help="File to write, values/projections/<group>.h5."
)
@click.option(
    "--output-by-memory", type=WRITABLE, required=True, help="Table to write, values/by_memory/<group>.parquet."
)
def project(
    model_folder: Path,
    values_file: Path,
    triggers_file: Path,
    projection: Literal["head", "unembedding"],
    top_tokens: int,
    device: str,
    layer_group: int,
    layer_groups: int,
    threads: int,
    output_projections: Path,
    output_by_memory: Path,
) -> None:
    """Project values onto the vocabulary, for one layer group. Compare them with their keys' trigger examples."""
    from ffkv.process.runtime import torch_with

    torch_with(threads)
    from ffkv.files import tables
    from ffkv.values.projections import write_projections
    from ffkv.values.step import project_values

    settings = Values(projection=projection, top_tokens=top_tokens)
    group = Part(layer_group, layer_groups)
    projections, by_memory = project_values(model_folder, values_file, triggers_file, settings, device, group)
    write_projections(output_projections, projections)
    tables.write(by_memory, output_by_memory)


@values.command()
@click.argument("by_memory", nargs=-1, required=True, type=READABLE)
@MODEL
@TRIGGERS
@CORPUS
@setting(Values, "predictive", "bins")
@seed_option
@click.option("--output", type=WRITABLE, required=True, help="Folder to write into, values/.")
def summarize(
    by_memory: tuple[Path, ...],
    model_folder: Path,
    triggers_file: Path,
    corpus_file: Path,
    predictive: int,
    bins: int,
    seed: int,
    output: Path,
) -> None:
    """Write the tables of figures 4 to 6 and of table 2. BY_MEMORY are the tables of all layer groups.

    The corpus is the train split.
    """
    from ffkv.files import tables
    from ffkv.values.step import summarize_values

    settings = Values(predictive=predictive, bins=bins)
    summaries = summarize_values(by_memory, model_folder, triggers_file, corpus_file, settings, seed)
    for name, table in summaries.items():
        tables.write(table, output / f"{name}.csv")
