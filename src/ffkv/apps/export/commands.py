"""`ffkv export`."""

from pathlib import Path

import click

from ffkv.base.options import FOLDER, output_option, setting, threads_option
from ffkv.base.settings import Model
from ffkv.base.terminal import say

FORMATS = ("neuron-record", "neuronpedia", "saedashboard", "delphi", "transluce", "circuit-tracer", "parquet")


@click.command()
@click.argument("results", type=FOLDER)
@click.option(
    "--format", "format_name", type=click.Choice(FORMATS), required=True, help="The format of the other tool."
)
@output_option("The folder to write.")
@click.option(
    "--memories",
    multiple=True,
    metavar="L3.17",
    help="Export these memories: L3.17 for one, L3.17-40 for some, L3 for a layer. Repeat it, or put commas between."
    "  [default: all]",
)
@click.option(
    "--examples",
    type=click.IntRange(0),
    help="Sentences of trigger examples of each sign per memory.  [default: as many as the format wants]",
)
@click.option(
    "--sentences",
    type=click.IntRange(0),
    help="Random sentences that all memories share.  [default: as many as the format wants]",
)
@click.option(
    "--model-id", help="The model's name in the other tool.  [default: the last part of the checkpoint's name]"
)
@click.option(
    "--set", "set_name", default="ffkv", show_default=True, help="The name of the set of memories in the other tool."
)
@setting(Model, "device")
@threads_option
def export(
    results: Path,
    format_name: str,
    output: Path,
    memories: tuple[str, ...],
    examples: int | None,
    sentences: int | None,
    model_id: str | None,
    set_name: str,
    device: str,
    threads: int,
) -> None:
    """Write memories of a finished run in the format of another tool.

    RESULTS is the folder of the run, such as results/demo. The file ffkv-export.json in the folder says what the numbers are. The
    same command goes on after an interruption. docs/exports.md describes the formats.
    """
    from ffkv.base.process.runtime import torch_with

    torch_with(threads)
    from ffkv.apps.export.step import export as export_memories
    from ffkv.run.results.run import open

    left_out = export_memories(
        open(results),
        format_name,
        output,
        memories=memories,
        examples=examples,
        sentences=sentences,
        model_id=model_id,
        set_name=set_name,
        device=device,
    )
    without = f" {len(left_out):,} memories are left out, because the format cannot hold them." if left_out else ""
    say(f"{output}: written in the format {format_name}.{without}")
