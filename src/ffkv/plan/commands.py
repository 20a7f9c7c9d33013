"""`ffkv plan`."""

import json
import sys
from pathlib import Path

import click

UNFIT = 3  # exit code where the disk or the memory will not do


@click.command()
@click.option(
    "--configfile",
    type=click.Path(path_type=Path),
    default="config.yaml",
    show_default=True,
    help="The settings file, as for snakemake.",
)
@click.option("--cores", type=click.IntRange(1), show_default="all", help="Cores that snakemake will be given.")
@click.option(
    "--train-tokens", type=click.IntRange(2), help="Tokens of the train split, where its size is not known here."
)
@click.option("--validation-tokens", type=click.IntRange(2), help="The same for the validation split.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables: bytes, seconds, operations.")
def plan(
    configfile: Path, cores: int | None, train_tokens: int | None, validation_tokens: int | None, as_json: bool
) -> None:
    """Say what a settings file's runs will take: tokens, operations, disk, memory and time, rule by rule.

    No weight is read and nothing is written. Rates are measured on this machine for a few seconds. Exit code 3 and a
    warning say that the disk or the memory will not do. Run it where snakemake will run.
    """
    from ffkv.process.runtime import configure

    configure(1)  # as jobs are; torch's threads are set by each measurement
    from ffkv.architectures.coverage import cores as cores_here
    from ffkv.plan.costs import costs
    from ffkv.plan.machine import disk_left, measure, memory_left
    from ffkv.plan.outlook import outlook, total_seconds, warnings
    from ffkv.plan.shape import shape_of_run
    from ffkv.plan.show import as_data, as_text
    from ffkv.plan.text import text_of_run
    from ffkv.plan.work import Run
    from ffkv.settings.runs import resolve
    from ffkv.settings.yaml_file import read_settings

    given = {"train": train_tokens, "validation": validation_tokens}
    given = {split: tokens for split, tokens in given.items() if tokens is not None}
    runs, rows, machines = {}, {}, {}
    for name, settings in resolve(read_settings(configfile)).items():
        shape = shape_of_run(settings)
        runs[name] = Run(settings, shape, **text_of_run(name, settings, shape, given))
        like = (shape, settings.model.device, settings.activations.batch_tokens)
        if like not in machines:
            machines[like] = measure(*like, cores or cores_here())
        rows[name] = outlook(name, settings, costs(runs[name]), machines[like])
    machine = next(iter(machines.values()))
    left = disk_left(Path("results")), memory_left()
    seconds = total_seconds(rows, machine.cores, machine)
    found = warnings(rows, *left, Path("results"))
    click.echo(
        json.dumps(as_data(runs, rows, seconds, left, machine, found), indent=1)
        if as_json
        else as_text(runs, rows, seconds, left, machine)
    )
    for warning in found:
        click.echo(click.style("ffkv: ", fg="red", bold=True, reset=True) + warning, err=True)
    if found:
        sys.exit(UNFIT)
