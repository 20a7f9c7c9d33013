"""Unpacks a GGUF file once, into a checkpoint of transformers that all later jobs of a run read."""

import json
from pathlib import Path

from ffkv.base.errors import UserError
from ffkv.base.files.atomic import atomic
from ffkv.base.hub.commit import Commit, check_commit, resolve_model
from ffkv.base.lookup import files_in, save_pretrained, unchanged
from ffkv.base.process.libraries import collected, listening
from ffkv.base.settings import Model
from ffkv.model.checkpoint.checks import check_checkpoint
from ffkv.model.checkpoint.load import NOTE, load_checkpoint, source_of
from ffkv.model.checkpoint.tokenizer import load_tokenizer
from ffkv_gguf.gguf_file import read_once


def unpack(settings: Model, output: Path | str, commit: Commit | None = None) -> list[str]:
    """Writes the model of a GGUF file as a checkpoint of transformers: weights, config and tokenizer.

    The weights have the type that the settings name. An adapter is merged into them.

    Args:
        settings: name the file.
        output: folder to write.
        commit: the commit of a checkpoint on the hub to read; None for the one that the hub names now.
    Returns:
        Remarks: what the file holds and the model does not use.
    Raises:
        UserError: the settings name no GGUF file; it cannot be read, or it holds what changes the computation and
            transformers leaves out; or see `files.atomic`.
    """
    given, settings = settings, settings.located()
    if not given.gguf:
        raise UserError(
            f"model.gguf is empty: the checkpoint {given.checkpoint} is read as it is. Nothing is unpacked."
        )
    check_checkpoint(settings.checkpoint, settings.gguf)
    commit = check_commit(commit, settings) if commit else resolve_model(settings)
    with atomic(output) as folder, unchanged(files_in(settings.checkpoint)), collected() as remarks, read_once():
        model = load_checkpoint(settings, commit)
        tokenizer = load_tokenizer(settings.checkpoint, commit, settings.trust_remote_code, settings.gguf)
        with listening("transformers"):
            save_pretrained(folder, model, tokenizer)
        (folder / NOTE).write_text(json.dumps({"source": source_of(given, commit), "remarks": remarks}, indent=1))
    return remarks
