"""`ffkv composition`: `measure`, `summarize`."""

from pathlib import Path

import click

from ffkv.base.options import CORPUS, MODEL, PREFIXES, PROJECTIONS, READABLE, measures_layers, output_option, setting
from ffkv.base.parts import Part
from ffkv.base.settings import Composition


@click.group()
def composition() -> None:
    """Composition: how the memories of a layer compose its output."""


@composition.command()
@MODEL
@PREFIXES
@PROJECTIONS
@CORPUS
@setting(Composition, "mass")
@measures_layers
@output_option("Table to write, composition/by_prefix/<group>.parquet.")
def measure(
    model_folder: Path,
    prefixes_file: Path,
    projections_file: Path,
    corpus_file: Path,
    mass: float,
    device: str,
    layer_group: Part,
    output: Path,
) -> None:
    """Measure how memories compose the output of their layer, on each sampled prefix.

    The projections are those of the same layer group. The corpus is the validation split.
    """
    from ffkv.base.files import tables
    from ffkv.branches.composition.step import measure_composition

    files = (model_folder, prefixes_file, projections_file, corpus_file)
    tables.write(measure_composition(*files, Composition(mass=mass), device, layer_group), output)


@composition.command()
@click.argument("by_prefix", nargs=-1, required=True, type=READABLE)
@MODEL
@setting(Composition, "short_prefix")
@output_option("Folder to write into, composition/.")
def summarize(by_prefix: tuple[Path, ...], model_folder: Path, short_prefix: int, output: Path) -> None:
    """Write the tables of figures 7 and 8. BY_PREFIX are the tables of all layer groups."""
    from ffkv.base.files import tables
    from ffkv.branches.composition.step import summarize_composition

    tables.write_all(summarize_composition(by_prefix, model_folder, Composition(short_prefix=short_prefix)), output)
