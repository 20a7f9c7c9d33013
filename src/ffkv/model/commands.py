"""`ffkv model` and `ffkv inspect`."""

from pathlib import Path

import click

from ffkv.base.options import COMMIT, FOLDER, also_argument, output_option, takes, threads_option
from ffkv.base.process.runtime import torch_with
from ffkv.base.settings import Dictionary, Model
from ffkv.base.terminal import announce, say

# Proofs run on the CPU. The workflow alone asks a cluster for GPUs.
CHECKPOINT = takes(Model, *(name for name in Model.model_fields if name not in ("device", "gpus")), argument="settings")


@click.command()
@CHECKPOINT
@takes(Dictionary)
@COMMIT
@click.option("--unpacked", type=FOLDER, help="Folder of `ffkv unpack`, to read in the place of the GGUF file.")
@threads_option
@output_option("Folder to write: anatomy, tokenizer, vocabulary, head.")
@output_option("File to write: the values, values.h5.", "--output-values")
def model(
    settings: Model,
    dictionary: Dictionary,
    commit_file: Path | None,
    unpacked: Path | None,
    threads: int,
    output: Path,
    output_values: Path,
) -> None:
    """Prove a checkpoint's feed-forward layers, and write its values and its head."""
    from ffkv.base.files.atomic import atomic
    from ffkv.base.hub.commit import read_commit
    from ffkv.model.step import prove

    torch_with(threads)
    commit = read_commit(commit_file) if commit_file else None
    # Both, or neither. The folder is the inner one: it is named if one of its files does not fit on the disk.
    with atomic(output_values) as values_file, atomic(output) as folder:
        folder.mkdir()
        anatomy = prove(settings, commit, unpacked, dictionary).write(folder, values_file)
    for remark in anatomy.remarks:
        say(remark)
    errors = ", ".join(f"{identity} {error:.0e}" for identity, error in anatomy.errors.items())
    say(f"{anatomy.architecture}: {len(anatomy.layers)} layers proven; largest relative errors: {errors}")


@click.command()
@also_argument("checkpoint", "--checkpoint", "CHECKPOINT")
@CHECKPOINT
@takes(Dictionary)
@threads_option
def inspect(settings: Model, dictionary: Dictionary, threads: int) -> None:
    """Show how a checkpoint's feed-forward layers are built, and how exactly they decompose into memories."""
    announce(f"Loading {settings.checkpoint}")
    import tempfile

    from ffkv.model.step import describe, prove

    torch_with(threads)
    with tempfile.TemporaryDirectory() as folder:
        anatomy = prove(settings, dictionary=dictionary).write(folder)
    say(describe(anatomy))
