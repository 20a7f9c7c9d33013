"""A GGUF file is unpacked once, into a checkpoint of transformers that all later jobs of a run read."""

import json
from pathlib import Path
from typing import Any, NamedTuple

from ffkv.base.errors import UserError
from ffkv.base.files.atomic import atomic
from ffkv.base.files.bounded import read_json
from ffkv.base.files.fault import unreadable
from ffkv.base.files.looks import save_pretrained
from ffkv.base.files.steady import files_in, unchanged
from ffkv.base.hub.commit import Commit, check_commit, resolve_model
from ffkv.base.process.remarks import collected, listening
from ffkv.base.settings import Model
from ffkv.model.checkpoint.checks import check_checkpoint
from ffkv.model.checkpoint.gguf_file import read_once
from ffkv.model.checkpoint.read import load_checkpoint
from ffkv.model.checkpoint.tokenizer import load_tokenizer

NOTE = "unpacked.json"  # what the folder was made from, and the remarks about it
NO_FILE: dict[str, Any] = {"gguf": "", "revision": "main", "adapter": "", "adapter_revision": "main"}


class Unpacked(NamedTuple):
    """What is read in the place of a GGUF file."""

    settings: Model  # name the folder
    commit: Commit  # that of a local folder
    remarks: list[str]  # what the unpacking said about the file


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
        (folder / NOTE).write_text(json.dumps({"source": _source(given, commit), "remarks": remarks}, indent=1))
    return remarks


def _source(settings: Model, commit: Commit) -> dict[str, str]:
    """Returns what the weights of an unpacked folder follow from."""
    named = settings.model_dump(include={"checkpoint", "dtype", *NO_FILE})
    return named | {"commit": commit.commit, "adapter_commit": commit.adapter_commit}


def read_unpacked(folder: Path | str, settings: Model, commit: Commit) -> Unpacked:
    """Returns what is read in the place of the file that the settings name.

    Args:
        folder: what `unpack` wrote.
        settings: as they were given to `unpack`.
        commit: the commit of the hub that was read.
    Raises:
        UserError: the folder was not written by `unpack`, or it was made from another file.
    """
    path = Path(folder) / NOTE
    try:
        note = read_json(path)
        source, remarks = dict(note["source"]), list(note["remarks"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise unreadable(path, error) from error
    if source != (wanted := _source(settings, commit)):
        differ = [
            f"{name} is {source.get(name)!r}, not {value!r}"
            for name, value in wanted.items()
            if source.get(name) != value
        ]
        raise UserError(f"{folder} was unpacked from something else: {'; '.join(differ)}. Unpack again: `ffkv unpack`.")
    return Unpacked(*in_place(settings, folder), remarks)


def in_place(settings: Model, folder: Path | str) -> tuple[Model, Commit]:
    """Returns settings and commit that name an unpacked folder in the place of the file and its adapter."""
    return settings.model_copy(update={**NO_FILE, "checkpoint": str(folder)}), Commit("model", str(folder), "main")
