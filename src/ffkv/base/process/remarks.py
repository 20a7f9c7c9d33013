"""Remarks: what a person should know of files that were read, such as what they hold and nothing uses.

What a library drops it tells in a warning. `listening` turns warnings into remarks, so that none is lost in a log.
"""

import contextlib
import importlib
import logging
import re
import warnings
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path

from ffkv.base.terminal import say

# Warnings that are no remarks: a part of their words, and why.
KNOWN = {
    "LOAD REPORT": "`ffkv.model.checkpoint.leftovers` refuses or names each of its lines",
    "but both are present in the checkpoints with different values": "`leftovers` names it",
    "Found missing adapter keys": "`ffkv.model.checkpoint.adapter` refuses them by name",
    "Unexpected keyword arguments": "`adapter` refuses or names them",
    "Special tokens have been added in the vocabulary": "nothing is trained here",
    "as a standalone, add `is_decoder=True.`": "the proof refuses a model that sees later tokens",
    "fast path is not available": "slower code gives the same numbers",
    "on the meta device because they were offloaded": "`model.max_memory` asks for it",
    "`torch_dtype` is deprecated": "a name in a config that means the same",
    "to instantiate a model of type ``": "the system denied a first look at the config; it was read afterwards",
    "loading `TokenizersBackend`": "the tokenizer that tokenizer.json describes",
}
ANSI = re.compile(r"\x1b\[[0-9;]*m")  # colours
_collected: ContextVar[list[str] | None] = ContextVar("remarks", default=None)


def remark(sentence: str) -> None:
    """Adds a remark to those that somebody collects; prints it if nobody does."""
    found = _collected.get()
    if found is None:
        say(sentence, error=True, name=False)
    elif sentence not in found:
        found.append(sentence)


@contextlib.contextmanager
def collected() -> Iterator[list[str]]:
    """Collects the remarks that are made within, in their order."""
    found: list[str] = []
    token = _collected.set(found)
    try:
        yield found
    finally:
        _collected.reset(token)


class _Ear(logging.Handler):
    """Keeps the name of the library and the words of each record."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.heard: list[tuple[str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.heard.append((record.name.partition(".")[0], record.getMessage()))


@contextlib.contextmanager
def listening(*libraries: str) -> Iterator[None]:
    """Turns the warnings of libraries within into remarks, but those of `KNOWN`. They print nothing by themselves.

    Args:
        libraries: names of their packages, which are imported: some set up their logger then.
    """
    for library in libraries:
        importlib.import_module(library)
    ear, loggers = _Ear(), [logging.getLogger(library) for library in libraries]
    before = [(logger, logger.handlers, logger.level, logger.propagate) for logger in loggers]
    try:
        for logger in loggers:
            logger.handlers, logger.propagate = [ear], False
            logger.setLevel(logging.WARNING)
        with warnings.catch_warnings(record=True) as caught:
            yield
    finally:
        for logger, handlers, level, propagate in before:
            logger.handlers, logger.propagate = handlers, propagate
            logger.setLevel(level)
    # Words about old names in code are for the authors of libraries.
    told = [each for each in caught if not issubclass(each.category, (DeprecationWarning, FutureWarning))]
    for each in told:
        parts = Path(each.filename).parts
        in_package = "site-packages" in parts[:-1]
        library = parts[parts.index("site-packages") + 1] if in_package else Path(each.filename).stem
        ear.heard.append((library, str(each.message)))
    for library, words in ear.heard:
        if not any(known in words for known in KNOWN):
            remark(f"{library} says: {' '.join(ANSI.sub('', words).split())[:500]}")
