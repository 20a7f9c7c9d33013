"""`ffkv trace`."""

from pathlib import Path

import click

from ffkv.base.options import FOLDER, setting, takes, threads_option
from ffkv.base.settings import Model
from ffkv.base.terminal import announce, say
from ffkv.run.trace.settings import TraceOptions


@click.command(context_settings={"default_map": {"top": 5, "memories": 5}})  # as much as a person reads in a terminal
@click.argument("results", type=FOLDER)
@click.argument("text")
@takes(TraceOptions, argument="options")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON instead of tables.")
@setting(Model, "device")
@threads_option
def trace(results: Path, text: str, options: TraceOptions, as_json: bool, device: str, threads: int) -> None:
    """Run one prompt through the model of a finished run, and show which memories make its prediction.

    RESULTS is the folder of the run, such as results/demo. TEXT is the prompt. docs/trace.md says what each number
    means.
    """
    announce(f"Loading the model of {results}")
    from ffkv.base.process.runtime import torch_with

    torch_with(threads)
    from ffkv.run.results.run import open
    from ffkv.run.trace.step import trace as trace_prompt
    from ffkv.run.trace.text import as_text

    found = trace_prompt(open(results), text, device=device, **options.model_dump())
    say(found.to_json() if as_json else as_text(found))
