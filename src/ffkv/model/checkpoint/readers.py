"""Readers: forms of checkpoints that packages beside the core read: folders (door `ffkv.readers`), or a file (`ffkv.files`)."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ffkv.base.doors import entries, in_package, inside, load, load_all
from ffkv.base.errors import UserError
from ffkv.base.lookup import exists, is_file
from ffkv.base.terminal import say

FAIRSEQ_FILES, FAIRSEQ_CLASS = ("model.pt", "dict.txt"), "FairseqForCausalLM"


@dataclass(frozen=True)
class Reader:
    """A form of checkpoints in local folders.

    Its functions import torch and transformers when they are called: a tokenizer is loaded without the code of models.
    """

    files: str  # the files of such a folder, and the name of the form, for messages: "model.pt and dict.txt (fairseq)"
    reads: Callable[[Path], bool]  # whether a folder is of this form, perhaps an incomplete one
    # `load_model(settings, with_weights=True)`, with the section `model` of the settings: the model as one of transformers,
    # on the CPU, of the type that `settings.dtype` says. Without weights, it is on torch's meta device. Raises UserError if
    # the checkpoint cannot be read
    load_model: Callable[..., Any]
    load_tokenizer: Callable[[Path], Any]  # a fast tokenizer of transformers. Raises UserError if there is none
    # the model's classes that are not of transformers, by their names: functions that return them
    classes: Mapping[str, Callable[[], type]] = field(default_factory=dict)


@dataclass(frozen=True)
class FileReader:
    """A form of files that hold a whole model: weights, config and tokenizer. transformers makes these; this compares and mends them."""

    read_once: Callable[[], AbstractContextManager[None]]  # within it, all that opens such a file reads it once
    # `finish_model(path, model)`, with a model that transformers made from the file. Raises UserError if it is not the file's
    finish_model: Callable[[Path, Any], None]
    # What a file says of its tokenizer. Raises UserError if nobody knows what that means
    read_entries: Callable[[Path], Mapping[str, Any]]
    # `finish_tokenizer(name, entries, tokenizer)`: makes the tokenizer do what the file of this name says. Raises UserError if it cannot
    finish_tokenizer: Callable[[str, Mapping[str, Any], Any], None]
    unpacking_seconds: Callable[[Path, int], float]  # of the processor, for a file with so many parameters


def file_reader() -> FileReader:
    """Returns what reads files in the GGUF form. Raises UserError if its package is not installed."""
    return load("files", "gguf")


def read_once(gguf: str) -> AbstractContextManager[None]:
    """Lets all that reads the file of `model.gguf` within read it once; does nothing if it is "". Raises: see `file_reader`."""
    return file_reader().read_once() if gguf else nullcontext()


def readers() -> dict[str, Reader]:
    """Returns all readers by name. One whose package is broken is left out."""
    return load_all("readers")[0]


def is_fairseq(checkpoint: Path | str) -> bool:
    """Tells whether a checkpoint is a folder of fairseq, perhaps an incomplete one."""
    folder = Path(checkpoint)
    return not exists(folder / "config.json") and any(is_file(folder / name) for name in FAIRSEQ_FILES)


def reader_named(checkpoint: Path | str) -> str:
    """Returns the name of the reader that reads a checkpoint; "" if none does. One that fails on it is left out, and told."""
    for name, reader in readers().items():
        try:
            with inside("readers", name):
                if reader.reads(Path(checkpoint)):
                    return name
        except UserError:
            raise
        except Exception as error:  # whatever goes wrong in a package of others
            say(f"The reader {name!r} fails on {checkpoint}, and is left out ({error!r}).", error=True)
    return ""


def reader_of(checkpoint: Path | str) -> Reader | None:
    """Returns what reads a checkpoint; None if transformers does. Raises UserError if its package is not installed."""
    if name := reader_named(checkpoint):
        reader, its = readers()[name], inside("readers", name)
        return replace(reader, load_model=its(reader.load_model), load_tokenizer=its(reader.load_tokenizer))
    if is_fairseq(checkpoint):
        _refuse_without_package(f"checkpoint {checkpoint}")
    return None


def known_class(name: str) -> Any:
    """Returns a model's class by its name, from what a reader brings; None if none brings it. Raises: see `reader_of`."""
    if name == FAIRSEQ_CLASS:
        _refuse_without_package(f"model {name}")
    return next((each.classes[name]() for each in readers().values() if name in each.classes), None)


def _refuse_without_package(what: str) -> None:
    if "fairseq" not in entries("readers"):
        raise UserError(in_package(f"What reads the {what}, which is of fairseq,", "ffkv-fairseq"))
