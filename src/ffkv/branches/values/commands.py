"""`ffkv values`: `project`, `summarize`."""

from pathlib import Path
from typing import Any

import click

from ffkv.base.options import (
    CORPUS,
    MODEL,
    READABLE,
    TRIGGERS,
    VALUES,
    measures_layers,
    output_option,
    seed_option,
    setting,
)
from ffkv.base.parts import Part
from ffkv.base.settings import Values, section


@click.group()
def values() -> None:
    """Values: projections, agreement, rank, top probability."""


@values.command()
@MODEL
@VALUES
@TRIGGERS
@setting(Values, "projection", "top_tokens")
@measures_layers
@output_option("File to write, values/projections/<group>.h5.", "--output-projections")
@output_option("Table to write, values/by_memory/<group>.parquet.", "--output-by-memory")
def project(
    model_folder: Path,
    values_file: Path,
    triggers_file: Path,
    device: str,
    layer_group: Part,
    output_projections: Path,
    output_by_memory: Path,
    **options: Any,
) -> None:
    """Project values onto the vocabulary, for one layer group. Compare them with their keys' trigger examples."""
    from ffkv.base.files import tables
    from ffkv.branches.values.projections import write_projections
    from ffkv.branches.values.step import project_values

    files, settings = (model_folder, values_file, triggers_file), section(Values, **options)
    projections, by_memory = project_values(*files, settings, device, layer_group)
    write_projections(output_projections, projections)
    tables.write(by_memory, output_by_memory)


@values.command()
@click.argument("by_memory", nargs=-1, required=True, type=READABLE)
@MODEL
@TRIGGERS
@CORPUS
@setting(Values, "predictive", "bins")
@seed_option
@output_option("Folder to write into, values/.")
def summarize(
    by_memory: tuple[Path, ...],
    model_folder: Path,
    triggers_file: Path,
    corpus_file: Path,
    seed: int,
    output: Path,
    **options: Any,
) -> None:
    """Write the tables of figures 4 to 6 and of table 2. BY_MEMORY are the tables of all layer groups.

    The corpus is the train split.
    """
    from ffkv.base.files import tables
    from ffkv.branches.values.step import summarize_values

    files, settings = (model_folder, triggers_file, corpus_file), section(Values, **options)
    tables.write_all(summarize_values(by_memory, *files, settings, seed), output)
