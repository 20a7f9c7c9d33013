"""`ffkv plan`."""

import json
import sys
from pathlib import Path

import click

from ffkv.base.options import WRITABLE, also_argument
from ffkv.base.process.runtime import allowed_cores, configure
from ffkv.base.terminal import announce, emit, say


@click.command()
@also_argument("configfile", "--configfile", "FILE")
@click.option("--configfile", type=WRITABLE, default="config.yaml", show_default=True, help="The settings file.")
@click.option("--cores", type=click.IntRange(1), show_default="all", help="Cores that snakemake may use.")
@click.option("--train-tokens", type=click.IntRange(2), help="Tokens of the train split, if its size is unknown.")
@click.option(
    "--teraflops",
    type=click.FloatRange(0, min_open=True),
    help="Plan for a GPU that reaches so many operations per second in float32, in 10^12.",
)
@click.option("--rules", is_flag=True, help="Also show every rule of each run.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with sizes in bytes and times in seconds.")
def plan(
    configfile: Path, cores: int | None, train_tokens: int | None, teraflops: float | None, rules: bool, as_json: bool
) -> None:
    """Predict text, disk, memory and time of the runs of a settings file, and which settings would save most time.

    Start it on the machine and in the folder where snakemake will run. It asks Snakemake what is left to do and runs a
    small copy of each run in a temporary folder. It reads no weights and keeps no files. If the disk or the memory does
    not suffice, it prints a warning, and the exit code is 3.
    """
    announce(f"Asking what is left to do of {configfile}, then trying a small copy of each run")
    from ffkv.base.settings.yaml_file import read_settings
    from ffkv.workflow.jobs import ask_snakemake, import_libraries
    from ffkv.workflow.runs import resolve

    runs, cores = resolve(read_settings(configfile)), cores or allowed_cores()
    snakemake = ask_snakemake(configfile, cores)  # beside the imports
    configure(1)  # no thread pool starts here: forks of this process run the trial with the threads of the jobs
    import_libraries()
    from ffkv.plan.step import as_text, make_plan

    found = make_plan(runs, snakemake, cores, train_tokens, 1e12 * (teraflops or 0))
    emit(json.dumps(found, indent=1)) if as_json else say(as_text(found, rules))
    for warning in found["warnings"]:
        say(warning, error=True)
    if found["warnings"]:
        sys.exit(3)
