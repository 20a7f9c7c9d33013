"""`ffkv plan`."""

import json
import sys
from pathlib import Path

import click

from ffkv.base.options import WRITABLE
from ffkv.base.settings.section import memory_bytes
from ffkv.base.terminal import say

TOO_SMALL = 3  # exit code if the disk or the memory does not suffice


def _sizes(_context: click.Context, _option: click.Parameter, given: tuple[str, ...]) -> tuple[float, ...]:
    try:
        return tuple(map(memory_bytes, given))
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@click.command()
@click.option("--configfile", type=WRITABLE, default="config.yaml", show_default=True, help="The settings file.")
@click.option("--cores", type=click.IntRange(1), show_default="all", help="Cores that snakemake may use.")
@click.option(
    "--train-tokens", type=click.IntRange(2), help="Number of tokens of the train split, if its size is unknown."
)
@click.option("--validation-tokens", type=click.IntRange(2), help="The same for the validation split.")
@click.option(
    "--gpu",
    "gpus",
    multiple=True,
    metavar="SIZE",
    callback=_sizes,
    help="Memory of a GPU that each job will have, such as 80GiB. Repeat it for several. By default, those of this machine.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print JSON instead of tables. Sizes are in bytes, times in seconds."
)
def plan(
    configfile: Path,
    cores: int | None,
    train_tokens: int | None,
    validation_tokens: int | None,
    gpus: tuple[float, ...],
    as_json: bool,
) -> None:
    """Predict tokens, downloads, disk, memory and time of the runs and comparisons of a settings file, per rule.

    Start it on the machine and in the folder where snakemake will run. It asks Snakemake what is left to do and runs a small
    copy of each run in a temporary folder. It reads no weights and keeps no files. If the disk or the memory does
    not suffice, it prints a warning, and the exit code is 3.
    """
    from ffkv.base.process.runtime import configure
    from ffkv.base.settings.runs import resolve, resolve_comparisons
    from ffkv.base.settings.yaml_file import read_settings
    from ffkv.model.architectures.coverage import cores as available_cores
    from ffkv.workflow.jobs import ask_snakemake, import_libraries

    configuration, cores = read_settings(configfile), cores or available_cores()
    runs, comparisons = resolve(configuration), resolve_comparisons(configuration)
    snakemake = ask_snakemake(configfile, cores)  # beside the imports
    configure(1)  # no thread pool starts here: forks of this process run the trial with the threads of the jobs
    import_libraries()
    from ffkv.plan.step import make_plan
    from ffkv.plan.table import as_text

    given = {"train": train_tokens, "validation": validation_tokens}
    tokens = {split: count for split, count in given.items() if count is not None}
    found = make_plan(runs, snakemake, cores, tokens, gpus, comparisons)
    say(json.dumps(found, indent=1) if as_json else as_text(found))
    for warning in found["warnings"]:
        say(warning, error=True)
    if found["warnings"]:
        sys.exit(TOO_SMALL)
