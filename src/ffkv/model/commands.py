"""`ffkv model` and `ffkv inspect`."""

from pathlib import Path
from typing import Any

import click

from ffkv.base.options import COMMIT, output_option, setting, threads_option
from ffkv.base.settings import Model, section
from ffkv.base.terminal import say

# Proofs run on the CPU. The workflow alone asks a cluster for GPUs.
CHECKPOINT = [name for name in Model.model_fields if name not in ("device", "gpus")]


@click.command()
@setting(Model, *CHECKPOINT)
@COMMIT
@threads_option
@output_option("Folder to write: anatomy, tokenizer, vocabulary, head.")
@output_option("File to write: the values, values.h5.", "--output-values")
def model(commit_file: Path | None, threads: int, output: Path, output_values: Path, **options: Any) -> None:
    """Prove a checkpoint's feed-forward layers, and write its values and its head."""
    from ffkv.base.files.atomic import atomic
    from ffkv.base.hub.commit import read_commit
    from ffkv.base.process.runtime import torch_with
    from ffkv.model.step import prove

    torch_with(threads)
    commit = read_commit(commit_file) if commit_file else None
    # Both, or neither. The folder is the inner one: it is named if one of its files does not fit on the disk.
    with atomic(output_values) as values_file, atomic(output) as folder:
        folder.mkdir()
        anatomy = prove(section(Model, **options), commit).write(folder, values_file)
    errors = ", ".join(f"{identity} {error:.0e}" for identity, error in anatomy.errors.items())
    say(f"{anatomy.architecture}: {len(anatomy.layers)} layers proven; largest relative errors: {errors}")


@click.command()
@setting(Model, *CHECKPOINT)
@threads_option
def inspect(threads: int, **options: Any) -> None:
    """Show how a checkpoint's feed-forward layers are built, and how exactly they decompose into memories."""
    import tempfile

    from ffkv.base.process.runtime import torch_with
    from ffkv.model.step import describe, prove

    torch_with(threads)
    with tempfile.TemporaryDirectory() as folder:
        anatomy = prove(section(Model, **options)).write(folder)
    say(describe(anatomy))
