"""What a file says of itself: the model, tokenizer and corpus that it belongs to, and the versions that made it."""

import functools
import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import ffkv
from ffkv.base.errors import UserError

HASHES = ("model_hash", "tokenizer_hash", "corpus_hash", "sample_hash")


class Foreign(UserError):
    """A file is of another model, tokenizer, corpus or version than what it is read with."""


def check_identities(path: Path | str, attributes: Mapping[str, Any], belongs_to: Mapping[str, Any]) -> None:
    """Refuses a file that belongs to another model, tokenizer, corpus or sample than the file with `belongs_to`.

    Raises UserError if an identity that both files have differs.
    """
    for name in HASHES:
        if name in attributes and name in belongs_to and attributes[name] != belongs_to[name]:
            what = name.removesuffix("_hash")
            raise Foreign(
                f"{path} belongs to another {what} ({attributes[name]}, expected {belongs_to[name]})."
                f" Make it again with this {what}."
            )


def versions() -> dict[str, str]:
    """Returns the versions of ffkv, Python and the libraries that numbers depend on."""
    return {
        "ffkv": ffkv.__version__,
        "python": platform.python_version(),
        **{name: _version(name) for name in ("torch", "transformers", "tokenizers")},
    }


_version = functools.cache(version)  # it searches the installed packages, which takes milliseconds
