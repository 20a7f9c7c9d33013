"""`ffkv annotate machine`."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ffkv.base.options import takes
from ffkv_annotation.commands import of_run
from ffkv_machines.settings import Machine, Task

if TYPE_CHECKING:
    from ffkv.run.results.run import Run


@click.command()
@of_run
@takes(Machine)
@takes(Task)
@click.option("--dry-run", is_flag=True, help="Say what would be asked and how many tokens it takes. Ask nothing.")
@click.option("--replay", is_flag=True, help="Use kept answers only. Nothing is sent.")
def machine(run: "Run", annotations: Path, machine: Machine, task: Task, dry_run: bool, replay: bool) -> None:
    """Let a language model explain keys, and score its explanations.

    RESULTS is the folder of a finished run, such as results/demo. Every answer is kept: the same command asks nothing
    twice, and goes on after a stop. packages/ffkv-machines/README.md says what each score means.
    """
    from ffkv_machines.explain import ask_machine

    ask_machine(run, annotations, machine, task, dry_run=dry_run, replay=replay)
