"""Reads a file of prompts: pairs, prompts with an answer, or two lists."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ffkv.base.errors import UserError
from ffkv.base.files.fault import unreadable
from ffkv.corpus.chat import Message
from ffkv.corpus.row_files import json_rows

PAIRS, PROMPTS, LISTS = "pairs", "prompts", "lists"  # kinds of files
# The fields of a line, by kind: all of them must be there, of lists one.
FIELDS = {
    PAIRS: ("clean_prefix", "patch_prefix", "clean_answer", "patch_answer"),
    PROMPTS: ("prompt", "answer", "wrong"),
    LISTS: ("positive", "negative"),
}
TEXTS = ("clean_prefix", "patch_prefix", "prompt", "positive", "negative")  # fields that may hold a chat
LABELS = ("label", "case")  # where a label may be
LINES = (
    'Write one object per line: {"clean_prefix": ..., "patch_prefix": ..., "clean_answer": ..., "patch_answer": ...}, or'
    ' {"prompt": ..., "answer": ..., "wrong": ...}, or {"positive": ...} and {"negative": ...}.'
)

Said = str | list[Message]  # a text, or a chat


class Prompt(NamedTuple):
    """A line of a file of prompts."""

    line: str  # where it is, such as "line 3"
    clean: Said  # what the behaviour is about
    patch: Said | None  # the other prompt of a pair; None without one
    answer: str  # "" in lists
    wrong: str  # the answer on the other prompt, or a wrong one; "" in lists
    label: str  # "" without one
    positive: bool  # whether it is of the first of two lists; True in other files


def read_prompts(path: Path | str) -> tuple[str, list[Prompt]]:
    """Reads a file of prompts.

    Returns:
        The kind of the file, and its prompts.
    Raises:
        UserError: there is no such file; a line is no JSON object, lacks a field, or is of another kind than the first one; or
            there is no line.
    """
    prompts: list[Prompt] = []
    kind = ""
    for place, row in _rows(Path(path)):
        where = f"{path}, {place}"
        if not isinstance(row, dict):
            raise UserError(f"{where}: contains {type(row).__name__}, not an object with fields. {LINES}")
        own = _kind_of(row, where)
        kind = kind or own
        if own != kind:
            raise UserError(f"{where}: has the fields of {own}, and the first line those of {kind}. Make two files.")
        prompts += _prompts(row, kind, place, where)
    if not prompts:
        raise UserError(f"{path} has no prompt. {LINES}")
    return kind, prompts


def _rows(path: Path) -> Iterator[tuple[str, Any]]:
    try:
        with path.open("rb") as file:
            yield from json_rows(str(path), file, numbers=True)
    except FileNotFoundError:
        raise UserError(f"There is no file of prompts {path}. Set `prompts` of the behaviour to a file.") from None
    except OSError as error:
        raise unreadable(path, error) from error


def _kind_of(row: dict[str, Any], where: str) -> str:
    for kind, fields in FIELDS.items():
        if any(name in row for name in fields):
            missing = [name for name in fields if name not in row]
            if missing and kind != LISTS:
                raise UserError(f"{where}: lacks {', '.join(missing)}. {LINES}")
            return kind
    raise UserError(f"{where}: has the fields {', '.join(row)[:200] or 'none'}. {LINES}")


def _prompts(row: dict[str, Any], kind: str, place: str, where: str) -> list[Prompt]:
    for name in FIELDS[kind]:
        if name in row:
            _check(row[name], name, where)
    label = next((str(row[name]) for name in LABELS if row.get(name) is not None), "")
    if kind == LISTS:
        named = [name for name in FIELDS[LISTS] if name in row]
        return [Prompt(place, row[name], None, "", "", label, name == "positive") for name in named]
    if kind == PROMPTS:
        return [Prompt(place, row["prompt"], None, row["answer"], row["wrong"], label, True)]
    clean, patch, answer, wrong = (row[name] for name in FIELDS[PAIRS])
    return [Prompt(place, clean, patch, answer, wrong, label, True)]


def _check(value: Any, name: str, where: str) -> None:
    """Refuses what is no text, and no chat where one may be."""
    if isinstance(value, str) and value:
        return
    chat = name in TEXTS and isinstance(value, list) and value
    if chat and all(isinstance(each, dict) and isinstance(each.get("role"), str) for each in value):
        return
    kind = "nothing" if not value else type(value).__name__
    also = ", or a list of messages, each with role and content" if name in TEXTS else ""
    raise UserError(f"{where}: field {name!r} contains {kind}. Write text{also}.")
