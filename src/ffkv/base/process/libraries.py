"""What libraries say becomes remarks, and something of ffkv takes the place of what they use.

A remark is what a person should know of files that were read, such as what they hold and nothing uses. What a library drops
it tells in a warning. `listening` turns warnings into remarks, so that none is lost in a log.
"""

import contextlib
import importlib
import logging.handlers
import re
import sys
import tomllib
import warnings
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from ffkv.base.terminal import say

# Warnings that are no remarks: a part of their words, and why.
KNOWN = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
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


@contextlib.contextmanager
def listening(*libraries: str) -> Iterator[None]:
    """Turns the warnings of libraries within into remarks, but those of `KNOWN`. They print nothing by themselves.

    `libraries`: names of their packages, which are imported: some set up their logger then.
    """
    for library in libraries:
        importlib.import_module(library)
    ear, loggers = logging.handlers.BufferingHandler(sys.maxsize), [logging.getLogger(name) for name in libraries]
    ear.setLevel(logging.WARNING)
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
    heard = [(record.name.partition(".")[0], record.getMessage()) for record in ear.buffer]
    for each in caught:
        if not issubclass(each.category, (DeprecationWarning, FutureWarning)):  # for the authors of libraries
            parts = Path(each.filename).parts
            in_package = "site-packages" in parts[:-1]
            library = parts[parts.index("site-packages") + 1] if in_package else Path(each.filename).stem
            heard.append((library, str(each.message)))
    for library, words in heard:
        if not any(known in words for known in KNOWN):
            remark(f"{library} says: {' '.join(ANSI.sub('', words).split())[:500]}")


@contextlib.contextmanager
def replaced(*places: tuple[Any, str, Any]) -> Iterator[None]:
    """Inside the `with` statement, attributes of objects have other values. `places`: object, attribute and value of each."""
    from unittest import mock  # takes time to import, unless torch is there

    with contextlib.ExitStack() as stack:
        for place in places:
            stack.enter_context(mock.patch.object(*place))
        yield
