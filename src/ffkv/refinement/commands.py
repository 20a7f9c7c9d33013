"""`ffkv refinement`: `measure`, `summarize`."""

from pathlib import Path

import click

from ffkv.options import (
    CORPUS,
    MODEL,
    PREFIXES,
    READABLE,
    WRITABLE,
    part_options,
    seed_option,
    setting,
    threads_option,
)
from ffkv.parts import Part
from ffkv.settings import Model, Refinement


@click.group()
def refinement() -> None:
    """Refinement: how predictions are refined from layer to layer."""


@refinement.command()
@MODEL
@PREFIXES
@setting(Model, "device")
@part_options("layer_group")
@threads_option
@click.option("--output", type=WRITABLE, required=True, help="Table to write, refinement/by_prefix/<group>.parquet.")
def measure(
    model_folder: Path,
    prefixes_file: Path,
    device: str,
    layer_group: int,
    layer_groups: int,
    threads: int,
    output: Path,
) -> None:
    """Read the predictions of r, y and o on each sampled prefix: of the residual, the FF output and the block output."""
    from ffkv.process.runtime import torch_with

    torch_with(threads)
    from ffkv.files import tables
    from ffkv.refinement.step import measure_refinement

    by_prefix = measure_refinement(model_folder, prefixes_file, device, Part(layer_group, layer_groups))
    tables.write(by_prefix, output)


@refinement.command()
@click.argument("by_prefix", nargs=-1, required=True, type=READABLE)
@MODEL
@PREFIXES
@CORPUS
@setting(Refinement, "changes")
@seed_option
@click.option("--output", type=WRITABLE, required=True, help="Folder to write into, refinement/.")
def summarize(
    by_prefix: tuple[Path, ...],
    model_folder: Path,
    prefixes_file: Path,
    corpus_file: Path,
    changes: int,
    seed: int,
    output: Path,
) -> None:
    """Write the tables of figures 9 to 11, and prediction_changes.csv. BY_PREFIX are the tables of all layer groups.

    The corpus is the validation split.
    """
    from ffkv.files import tables
    from ffkv.refinement.step import summarize_refinement

    settings = Refinement(changes=changes)
    summaries = summarize_refinement(by_prefix, model_folder, prefixes_file, corpus_file, settings, seed)
    for name, table in summaries.items():
        tables.write(table, output / f"{name}.csv")
