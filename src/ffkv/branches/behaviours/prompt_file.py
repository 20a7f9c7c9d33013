"""Reads a file of prompts: pairs, prompts with an answer, or two lists."""

import functools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ffkv.base.errors import UserError
from ffkv.base.lookup import is_file
from ffkv.base.settings import Corpus
from ffkv.base.settings.messages import suggestion
from ffkv.base.terminal import say
from ffkv.branches.behaviours.settings import Behaviour
from ffkv.branches.behaviours.words import FIELDS, GROUP, LABEL_FIELDS, LISTS
from ffkv.corpus.chat import ANSWERING, Message, chat_renderer, check_messages
from ffkv.corpus.raw_file import check_text
from ffkv.corpus.rows import json_rows

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TEXTS = ("clean_prefix", "patch_prefix", "prompt", "positive", "negative")  # fields that may hold a chat
LONGEST = 1_000_000  # characters; a longer prompt would take gigabytes before it is too long for the model
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
    group: str = ""  # what the file says of which prompts are no independent draws of each other; "" if it says nothing


def read_prompts(path: Path | str, fields: Mapping[str, str] = {}) -> tuple[str, list[Prompt]]:
    """Reads a file of prompts.

    Args:
        fields: what the file calls fields, by ffkv's names of them.
    Returns:
        The kind of the file, and its prompts.
    Raises:
        UserError: there is no such file; a line is no JSON object, lacks a field, or is of another kind than the first one; or
            there is no line, or one list alone; or some lines have a group, and others have none.
    """
    prompts: list[Prompt] = []
    kind = ""
    for place, row in _rows(Path(path)):
        where = f"{path}, {place}"
        if not isinstance(row, dict):
            raise UserError(f"{where}: contains {type(row).__name__}, not an object with fields. {LINES}")
        row = _renamed(row, fields, where)
        own = next((each for each, names in FIELDS.items() if any(name in row for name in names)), "")
        if not own:
            raise UserError(f"{where}: has the fields {', '.join(row)[:200] or 'none'}. {LINES}")
        named = [name for name in FIELDS[own] if name in row]
        if own != LISTS and (missing := [name for name in FIELDS[own] if name not in named]):
            raise UserError(f"{where}: lacks {', '.join(missing)}. {LINES}")
        kind = kind or own
        if own != kind:
            raise UserError(f"{where}: has the fields of {own}, and the first line those of {kind}. Make two files.")
        for name in named:
            _check(row[name], name, where)
        label = next((_label(row[name], name, where) for name in LABEL_FIELDS if row.get(name) is not None), "")
        group = "" if row.get(GROUP) is None else _label(row[GROUP], GROUP, where)
        if kind == LISTS:
            prompts += [Prompt(place, row[name], None, "", "", label, name == "positive", group) for name in named]
        else:
            clean, *patch, answer, wrong = (row[name] for name in named)
            prompts.append(Prompt(place, clean, patch[0] if patch else None, answer, wrong, label, True, group))
        if bool(group) != bool(prompts[0].group):
            without = place if prompts[0].group else prompts[0].line
            raise UserError(
                f"{path}, {without}: lacks the field {GROUP!r}, which other lines have. Give it to each line, or to none."
            )
    if not prompts:
        raise UserError(f"{path} has no prompt. {LINES}")
    if kind == LISTS and len({prompt.positive for prompt in prompts}) == 1:
        other = "negative" if prompts[0].positive else "positive"
        raise UserError(f"{path} has one of two lists alone. Write {other} prompts, too.")
    return kind, prompts


def prompt_files(settings: Behaviour, read: bool = False) -> list[str]:
    """Returns the file of prompts of a behaviour, if it is there. With `read` it raises UserError, as `read_prompts`."""
    if read:
        read_prompts(settings.prompts, settings.fields)
    return [*filter(is_file, [settings.prompts])]


def write_chats(
    path: Path | str, prompts: Iterable[Prompt], tokenizer: "PreTrainedTokenizerBase", always: bool
) -> list[Prompt]:
    """Returns the prompts with texts in place of chats, each up to where the model's answer begins.

    Args:
        path: the file of prompts, for messages.
        tokenizer: its template makes texts of chats.
        always: whether a prompt that is text is what a user says in a chat.
    Raises:
        UserError: the tokenizer has no chat template, or it refuses a chat or leads to no answer, see `chat_renderer`.
    """

    @functools.cache
    def renderer() -> Any:
        return chat_renderer(tokenizer, Corpus(chat_template=True), answer=True)

    def text(said: Said | None, line: str) -> Any:
        if said is None or (isinstance(said, str) and not always):
            return said
        try:
            written = renderer()([{"role": "user", "content": said}] if isinstance(said, str) else said)
        except UserError as error:
            raise UserError(f"{path}, {line}: {error}") from error
        if len(written) > LONGEST:
            raise UserError(f"{path}, {line}: the chat has {len(written):,} characters. Write at most {LONGEST:,}.")
        return written

    prompts = [*prompts]
    chats = ((each.line, each.clean) for each in prompts if not isinstance(each.clean, str))
    if begun := [line for line, chat in chats if chat[-1]["role"] in ANSWERING]:
        say(
            f"{path}: {len(begun)} of {len(prompts)} prompts are chats that end with words of the assistant, {begun[0]} first. What is"
            " measured there goes on behind these words, also where the model would begin otherwise."
        )
    return [
        prompt._replace(clean=text(prompt.clean, prompt.line), patch=text(prompt.patch, prompt.line))
        for prompt in prompts
    ]


def _rows(path: Path) -> Iterator[tuple[str, Any]]:
    try:
        if not is_file(path):  # a pipe has no end
            raise UserError(f"There is no file of prompts {path}. Set `prompts` of the behaviour to a file.")
        with path.open("rb") as file:
            yield from json_rows(str(path), check_text(str(path), file), numbers=True)
    except OSError as error:
        raise UserError(f"The file of prompts {path} cannot be read: {error.strerror}. Check its rights.") from error


def _renamed(row: dict[str, Any], fields: Mapping[str, str], where: str) -> dict[str, Any]:
    """Returns a line whose fields have ffkv's names. A line of two lists may lack the field of the other list."""
    for own, theirs in fields.items():
        if theirs not in row and own not in FIELDS[LISTS]:
            raise UserError(
                f"{where}: lacks the field {theirs!r}, which the setting `fields` names for {own}.{suggestion(theirs, row)}"
                f" There are: {', '.join(row)[:200] or 'none'}."
            )
    others = {name: value for name, value in row.items() if name not in fields.values()}
    return others | {own: row[theirs] for own, theirs in fields.items() if theirs in row}


def _label(value: Any, name: str, where: str) -> str:
    if isinstance(value, str) or type(value) is int:
        return str(value)
    raise UserError(f"{where}: field {name!r} is {value!r}. A {name} is text or a whole number.")


def _check(value: Any, name: str, where: str) -> None:
    """Refuses what is no text, and no chat where one may be."""
    if isinstance(value, list) and value and name in TEXTS:
        check_messages(value, f"{where}: field {name!r}", "Write text, or messages, each with role and content.")
    elif not isinstance(value, str) or not value:
        kind = "nothing" if not value else type(value).__name__
        also = ", or a list of messages, each with role and content" if name in TEXTS else ""
        raise UserError(f"{where}: field {name!r} contains {kind}. Write text{also}.")
    elif len(value) > LONGEST:
        raise UserError(f"{where}: field {name!r} has {len(value):,} characters. Write at most {LONGEST:,}.")
