"""`ffkv model` and `ffkv inspect`."""

from pathlib import Path

import click

from ffkv.options import WRITABLE, setting, threads_option
from ffkv.settings import Model, section

# Proofs run on the CPU; what a cluster is asked for is the workflow's business.
CHECKPOINT = [name for name in Model.model_fields if name not in ("device", "gpus")]


@click.command()
@setting(Model, *CHECKPOINT)
@threads_option
@click.option(
    "--output", type=WRITABLE, required=True, help="The folder to write: anatomy, tokenizer, vocabulary, head."
)
@click.option("--memories", type=WRITABLE, required=True, help="The file of values to write, memories.h5.")
def model(threads: int, output: Path, memories: Path, **values) -> None:
    """Prove a checkpoint's feed-forward layers and write its values and head."""
    from ffkv.files.atomic import atomic
    from ffkv.model.step import examine, write_stage
    from ffkv.process.runtime import torch_with

    torch_with(threads)
    with atomic(output) as folder, atomic(memories) as values_file:  # both, or neither
        folder.mkdir()
        loaded, tokenizer, anatomy, proof = examine(section(Model, **values))
        anatomy = write_stage(folder, values_file, loaded, tokenizer, anatomy, proof)
    click.echo(
        f"{anatomy.architecture}: {len(anatomy.layers)} layers proven; largest relative errors {_errors(anatomy.errors)}"
    )


@click.command()
@setting(Model, *CHECKPOINT)
@threads_option
def inspect(threads: int, **values) -> None:
    """Show how a checkpoint's feed-forward layers are built, and how exactly the decomposition holds."""
    import tempfile

    from ffkv.model.step import describe, examine, write_stage
    from ffkv.process.runtime import torch_with

    torch_with(threads)
    with tempfile.TemporaryDirectory() as folder:
        loaded, tokenizer, anatomy, proof = examine(section(Model, **values))
        anatomy = write_stage(Path(folder), None, loaded, tokenizer, anatomy, proof)
    click.echo(describe(anatomy))


def _errors(errors: dict[str, float]) -> str:
    return ", ".join(f"{name} {error:.0e}" for name, error in errors.items())
