"""`ffkv composition`: `measure`, `summarize`."""

from pathlib import Path

import click

from ffkv.options import (
    CORPUS,
    MODEL,
    PREFIXES,
    PROJECTIONS,
    READABLE,
    WRITABLE,
    part_options,
    setting,
    threads_option,
)
from ffkv.parts import Part
from ffkv.settings import Composition, Model


@click.group()
def composition() -> None:
    """Composition: how the memories of a layer compose its output."""


@composition.command()
@MODEL
@PREFIXES
@PROJECTIONS
@CORPUS
@setting(Composition, "mass")
@setting(Model, "device")
@part_options("layer_group")
@threads_option
@click.option("--output", type=WRITABLE, required=True, help="Table to write, composition/by_prefix/<group>.parquet.")
def measure(
    model_folder: Path,
    prefixes_file: Path,
    projections_file: Path,
    corpus_file: Path,
    mass: float,
    device: str,
    layer_group: int,
    layer_groups: int,
    threads: int,
    output: Path,
) -> None:
    """Measure how memories compose the output of their layer, on each sampled prefix.

    The projections are those of the same layer group. The corpus is the validation split.
    """
    from ffkv.process.runtime import torch_with

    torch_with(threads)
    from ffkv.composition.step import measure_composition
    from ffkv.files import tables

    group, settings = Part(layer_group, layer_groups), Composition(mass=mass)
    by_prefix = measure_composition(model_folder, prefixes_file, projections_file, corpus_file, settings, device, group)
    tables.write(by_prefix, output)


@composition.command()
@click.argument("by_prefix", nargs=-1, required=True, type=READABLE)
@MODEL
@setting(Composition, "short_prefix")
@click.option("--output", type=WRITABLE, required=True, help="Folder to write into, composition/.")
def summarize(by_prefix: tuple[Path, ...], model_folder: Path, short_prefix: int, output: Path) -> None:
    """Write the tables of figures 7 and 8. BY_PREFIX are the tables of all layer groups."""
    from ffkv.composition.step import summarize_composition
    from ffkv.files import tables

    summaries = summarize_composition(by_prefix, model_folder, Composition(short_prefix=short_prefix))
    for name, table in summaries.items():
        tables.write(table, output / f"{name}.csv")
