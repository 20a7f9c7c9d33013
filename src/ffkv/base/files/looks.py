"""Tells what the system denied to look up: libraries take such a file for one that is not there, and go on without it."""

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ffkv.base.files.fault import DENIED
from ffkv.base.lookup import not_looked_up

_one_at_a_time = threading.RLock()


@contextlib.contextmanager
def looks_told(*folders: Path | str) -> Iterator[None]:
    """Notes which paths the system denies to look up within, and names the first one instead of whatever followed from it.

    Args:
        folders: only what is in them, and they themselves, count. What is no folder counts nothing.
    Raises:
        UserError: a path could not be looked up, by `os.stat`, as `os.path.exists` and `Path.is_file` do it.
    """
    places, denied = [Path(folder).absolute() for folder in folders if str(folder)], []
    with _one_at_a_time:
        original = os.stat

        def stat(path: Any, *given: Any, **more: Any) -> os.stat_result:
            try:
                return original(path, *given, **more)
            except OSError as error:
                if error.errno in DENIED and not isinstance(path, int) and _below(path, places):
                    denied.append(error)
                raise

        os.stat = stat
        try:
            yield
        except Exception as error:
            if denied:
                raise not_looked_up(denied[0]) from error
            raise
        finally:
            os.stat = original
    if denied:
        raise not_looked_up(denied[0])


def save_pretrained(folder: Path | str, *parts: Any) -> None:
    """Lets models, tokenizers and configs of transformers write themselves into a folder.

    They call a folder that they may not look up one that exists already.
    """
    with looks_told(folder):
        for part in parts:
            part.save_pretrained(folder)


def _below(path: Any, places: list[Path]) -> bool:
    """Tells whether a path is one of some places, or in one."""
    whole = Path(os.fsdecode(path)).absolute()
    return any(place in (whole, *whole.parents) for place in places)
