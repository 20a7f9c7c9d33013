"""A command, and what `ffkv -h` says of it."""

from pathlib import Path

import click

from ffkv.base.doors import Command

COUNT = Command("Toys", "ffkv_toy.count:count", "Count the memories of a run.")


@click.command()
@click.argument("results", type=click.Path(path_type=Path))
def count(results: Path) -> None:
    """Count the memories of a finished run."""
    import ffkv

    click.echo(sum(layer.memories for layer in ffkv.open(results).anatomy.layers))
