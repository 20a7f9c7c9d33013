"""`ffkv unpack`."""

from pathlib import Path

import click

from ffkv.base.options import COMMIT, output_option, takes, threads_option
from ffkv.base.process.runtime import torch_with
from ffkv.base.settings import Model
from ffkv.base.terminal import say
from ffkv.model.steps import UNPACKED


@click.command()
@takes(Model, "checkpoint", *UNPACKED, argument="settings")
@COMMIT
@threads_option
@output_option("Folder to write: weights, config, tokenizer.")
def unpack(settings: Model, commit_file: Path | None, threads: int, output: Path) -> None:
    """Unpack a GGUF file into a checkpoint folder, once for all later steps."""
    from ffkv.base.hub.commit import read_commit
    from ffkv_gguf.unpack import unpack

    torch_with(threads)
    for remark in unpack(settings, output, read_commit(commit_file) if commit_file else None):
        say(remark)
