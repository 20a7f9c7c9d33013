"""`ffkv refinement`: `measure`, `summarize`."""

from pathlib import Path

import click

from ffkv.base.options import CORPUS, MODEL, PREFIXES, READABLE, measures_layers, output_option, seed_option, setting
from ffkv.base.parts import Part
from ffkv.base.settings import Refinement


@click.group()
def refinement() -> None:
    """Refinement: how predictions are refined from layer to layer."""


@refinement.command()
@MODEL
@PREFIXES
@measures_layers
@output_option("Table to write, refinement/by_prefix/<group>.parquet.")
def measure(model_folder: Path, prefixes_file: Path, device: str, layer_group: Part, output: Path) -> None:
    """Read the predictions of r, y and o on each sampled prefix: of the residual, the FF output and the block output."""
    from ffkv.base.files import tables
    from ffkv.branches.refinement.step import measure_refinement

    tables.write(measure_refinement(model_folder, prefixes_file, device, layer_group), output)


@refinement.command()
@click.argument("by_prefix", nargs=-1, required=True, type=READABLE)
@MODEL
@PREFIXES
@CORPUS
@setting(Refinement, "changes")
@seed_option
@output_option("Folder to write into, refinement/.")
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
    from ffkv.base.files import tables
    from ffkv.branches.refinement.step import summarize_refinement

    files, settings = (model_folder, prefixes_file, corpus_file), Refinement(changes=changes)
    tables.write_all(summarize_refinement(by_prefix, *files, settings, seed), output)
