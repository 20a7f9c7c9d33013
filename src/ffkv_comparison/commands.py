"""`ffkv comparison`: `measure`, `report`."""

from pathlib import Path
from typing import Any

import click

from ffkv.base.options import FOLDER, output_option, seed_option, setting, threads_option
from ffkv.base.settings import Comparison, Model, section
from ffkv.base.terminal import say

SETTINGS = [name for name in Comparison.model_fields if name != "runs"]


@click.group()
def comparison() -> None:
    """Comparison: several finished runs over each other."""


@comparison.command()
@click.argument("runs", nargs=-1, required=True, type=FOLDER)
@click.option("--name", default="comparison", show_default=True, help="Name of the comparison.")
@setting(Comparison, *SETTINGS)
@setting(Model, "trust_remote_code")
@seed_option
@threads_option
@output_option("Folder to write, results/comparisons/<name>/tables.")
def measure(
    runs: tuple[Path, ...], name: str, seed: int, trust_remote_code: bool, threads: int, output: Path, **options: Any
) -> None:
    """Measure what finished runs have in common, and what they differ by.

    RUNS are the folders of the runs. The first one is what the others are compared with.
    """
    settings = section(Comparison, runs=[run.resolve().name for run in runs], **options)
    from ffkv.base.process.runtime import torch_with

    torch_with(threads)
    from ffkv_comparison.comparison_file import write_comparison
    from ffkv_comparison.step import compare_runs

    write_comparison(compare_runs(runs, settings, name, seed, trust_remote_code), output)


@comparison.command()
@click.argument("tables", type=FOLDER)
@output_option("The HTML file to write, reports/comparisons/<name>/index.html.")
def report(tables: Path, output: Path) -> None:
    """Write the HTML report of a comparison. TABLES is the folder that `ffkv comparison measure` wrote."""
    from ffkv_comparison.comparison_file import read_comparison
    from ffkv_comparison.page import write_page

    write_page(read_comparison(tables), output)
    say(f"{output}: open it in a browser.")
