"""`ffkv export`."""

from pathlib import Path

import click

from ffkv.apps.export.settings import FORMATS, Export
from ffkv.base.options import FOLDER, output_option, setting, takes, threads_option
from ffkv.base.settings import Model
from ffkv.base.terminal import say


@click.command()
@click.argument("results", type=FOLDER)
@click.option(
    "--format", "format_name", type=click.Choice([*FORMATS]), required=True, help="The format of the other tool."
)
@output_option("The folder to write.")
@takes(Export, argument="wanted")
@setting(Model, "device")
@threads_option
def export(results: Path, format_name: str, output: Path, wanted: Export, device: str, threads: int) -> None:
    """Write memories of a finished run in the format of another tool.

    RESULTS is the folder of the run, such as results/demo. The file ffkv-export.json in the folder says what the
    numbers are. The same command goes on after an interruption. docs/exports.md describes the formats.
    """
    from ffkv.base.process.runtime import torch_with

    torch_with(threads)
    from ffkv.apps.export.step import export as export_memories
    from ffkv.run.results.run import open

    left_out = export_memories(open(results), format_name, output, wanted, device)
    without = f" {len(left_out):,} memories are left out, because the format cannot hold them." if left_out else ""
    say(f"{output}: written in the format {format_name}.{without}")
