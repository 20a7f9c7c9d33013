"""`ffkv trace`."""

from pathlib import Path

import click

from ffkv.base.options import FOLDER, setting, threads_option
from ffkv.base.settings import Model
from ffkv.base.terminal import say


@click.command()
@click.argument("results", type=FOLDER)
@click.argument("text")
@click.option(
    "--position",
    type=int,
    help="The token to look at, from 0; negative numbers count from the end.  [default: the last one]",
)
@click.option("--off", multiple=True, metavar="L3.17", help="Switch a memory off. Repeat it for several.")
@click.option(
    "--scale", multiple=True, metavar="L3.17:2", help="Multiply the coefficient of a memory. Repeat it for several."
)
@click.option("--everywhere", is_flag=True, help="Change these memories at every token, not only at the one looked at.")
@click.option(
    "--token",
    help="The next token that contributions are measured on. Blanks count: ' Paris'.  [default: the prediction]",
)
@click.option("--token-id", type=int, help="The same token by its id.")
@click.option("--top", type=click.IntRange(1), default=5, show_default=True, help="Number of tokens per prediction.")
@click.option(
    "--memories",
    type=click.IntRange(0),
    default=5,
    show_default=True,
    help="Number of memories per layer with the largest contribution, and with the largest effect on the token.",
)
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON instead of tables.")
@setting(Model, "device")
@threads_option
def trace(
    results: Path,
    text: str,
    position: int | None,
    off: tuple[str, ...],
    scale: tuple[str, ...],
    everywhere: bool,
    token: str | None,
    token_id: int | None,
    top: int,
    memories: int,
    as_json: bool,
    device: str,
    threads: int,
) -> None:
    """Run one prompt through the model of a finished run, and show which memories make its prediction.

    RESULTS is the folder of the run, such as results/demo. TEXT is the prompt. docs/trace.md says what each number means.
    """
    if token is not None and token_id is not None:
        raise click.UsageError("--token and --token-id name one token. Give one of them.")
    from ffkv.base.process.runtime import torch_with

    torch_with(threads)
    from ffkv.run.results.run import open
    from ffkv.run.trace.step import trace as trace_prompt
    from ffkv.run.trace.text import as_text

    found = trace_prompt(
        open(results),
        text,
        position=position,
        off=off,
        scale=scale,
        everywhere=everywhere,
        token=token_id if token is None else token,
        top=top,
        memories=memories,
        device=device,
    )
    say(found.to_json() if as_json else as_text(found))
