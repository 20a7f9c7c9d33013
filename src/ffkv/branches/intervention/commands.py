"""`ffkv intervention`: `measure`, `summarize`."""

from pathlib import Path
from typing import Any

import click

from ffkv.base.options import (
    MODEL,
    PREFIXES,
    PROJECTIONS,
    READABLE,
    TRIGGERS,
    measures_layers,
    output_option,
    seed_option,
    setting,
)
from ffkv.base.parts import Part
from ffkv.base.settings import Activations, Intervention, Model, section


def _split(name: str) -> Any:
    return click.option(f"--{name}", type=READABLE, required=True, help=f"The {name} split, corpus/{name}.h5.")


@click.group()
def intervention() -> None:
    """Interventions: what changes when memory coefficients are changed while the model runs."""


@intervention.command()
@MODEL
@TRIGGERS
@PROJECTIONS
@PREFIXES
@_split("train")
@_split("validation")
@setting(Intervention, *Intervention.model_fields)
@setting(Activations, "batch_tokens")
@setting(Model, "max_memory")
@seed_option
@measures_layers
@output_option("Table to write, intervention/by_prefix/<group>.parquet.", "--output-by-prefix")
@output_option("Table to write, intervention/by_memory/<group>.parquet.", "--output-by-memory")
@output_option("Table to write, intervention/kept/<group>.parquet.", "--output-kept")
def measure(
    model_folder: Path,
    triggers_file: Path,
    projections_file: Path,
    prefixes_file: Path,
    train: Path,
    validation: Path,
    batch_tokens: int,
    max_memory: dict[str, str],
    seed: int,
    device: str,
    layer_group: Part,
    output_by_prefix: Path,
    output_by_memory: Path,
    output_kept: Path,
    **options: Any,
) -> None:
    """Change the coefficients of random memories on their trigger examples, beside controls; keep a few memories alone.

    The projections are those of the same layer group.
    """
    from ffkv.base.files import tables
    from ffkv.branches.intervention.step import measure_interventions

    files = (model_folder, triggers_file, projections_file, prefixes_file, train, validation)
    settings = section(Intervention, **options)
    found = measure_interventions(*files, settings, batch_tokens, device, seed, layer_group, max_memory)
    tables.write(found.by_prefix, output_by_prefix)
    tables.write(found.by_memory, output_by_memory)
    tables.write(found.kept, output_kept)


def _tables_option(flag: str, about: str) -> Any:
    return click.option(flag, type=READABLE, multiple=True, required=True, help=f"{about}; repeat it.")


@intervention.command()
@MODEL
@_tables_option("--by-prefix", "Table intervention/by_prefix/<group>.parquet")
@_tables_option("--by-memory", "Table intervention/by_memory/<group>.parquet")
@_tables_option("--kept", "Table intervention/kept/<group>.parquet")
@_tables_option("--projections", "File values/projections/<group>.h5")
@seed_option
@output_option("Folder to write into, intervention/.")
def summarize(
    model_folder: Path,
    by_prefix: tuple[Path, ...],
    by_memory: tuple[Path, ...],
    kept: tuple[Path, ...],
    projections: tuple[Path, ...],
    seed: int,
    output: Path,
) -> None:
    """Write the tables of the report's section of interventions. The inputs are those of all layer groups."""
    from ffkv.base.files import tables
    from ffkv.branches.intervention.step import summarize_interventions

    files = (by_prefix, by_memory, kept, model_folder, projections)
    tables.write_all(summarize_interventions(*files, seed), output)
