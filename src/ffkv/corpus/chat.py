"""Chats, which the chat template of the tokenizer turns into text."""

import random
import re
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, tzinfo
from typing import TYPE_CHECKING, Any

from ffkv.base.errors import UserError, one_line
from ffkv.base.process.libraries import replaced
from ffkv.base.settings import Corpus
from ffkv.base.terminal import say

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Message = dict[str, Any]
Render = Callable[[list[Message]], str]

ANSWERING = ("assistant", "model")  # roles whose last message goes on, in place of being answered
MARK, ANSWER = "ffkvprompt", "ffkvanswer"  # words that show where a template puts what is said
# What opens or closes thoughts: <think>, [/THINK], <|START_THINKING|>, <|channel|>analysis
THOUGHTS = re.compile(
    r"[<\[◁][^<>\[\]◁▷]*(?:think|thought|reason)[^<>\[\]◁▷]*[>\]▷]|>(?:analysis|think|thought|reason)\w*", re.I
)
WHOSE = "The chat template of the tokenizer"
FILLED = (
    'A chat may end with words of the assistant, also empty ones, {"role": "assistant", "content": ""}: its answer is then'
    " what goes on behind them."
)
REMEDY = "Mend the data, name another field (corpus.text_field), or switch corpus.chat_template off."


def check_messages(value: Any, place: str, remedy: str = REMEDY) -> None:
    """Refuses what is no list of messages, each with a role and a content that is text, or one part of the type "text".

    Of several parts nobody knows what is between them: templates put a line break there, a blank or nothing.

    Raises:
        UserError: with the `place` in front and the `remedy` behind.
    """
    if not isinstance(value, list):
        raise UserError(f"{place} contains {type(value).__name__}, not a list of messages. {remedy}")
    for number, message in enumerate(value):
        if not isinstance(message, dict):
            raise UserError(
                f"{place}, message {number}: it is {type(message).__name__}, not an object with fields. {remedy}"
            )
        if not isinstance(message.get("role"), str):
            raise UserError(
                f"{place}, message {number}: it has no role, such as 'user'. Its fields:"
                f" {', '.join(map(repr, message)) or 'none'}. {remedy}"
            )
        content = message.get("content")
        fits, what = isinstance(content, str | None), type(content).__name__
        if isinstance(content, list):
            kinds = [part.get("type") if isinstance(part, dict) else type(part).__name__ for part in content]
            fits, what = kinds == ["text"] and isinstance(content[0].get("text"), str), str(kinds)[:200]
        if not fits:
            raise UserError(f"{place}, message {number}: its content is {what}, not one text. {remedy}")


def chat_renderer(tokenizer: "PreTrainedTokenizerBase", settings: Corpus, answer: bool = False) -> Render | None:
    """Returns the function that turns a chat into text; None if the corpus contains text.

    The same chat is always the same text: for templates it is always 26 July 2024, and what they draw is the same.

    `answer`: whether the text goes on to where the model's answer begins. It then ends inside of the last message if the
    assistant says it, as with `continue_final_message` of transformers.

    The function raises UserError if the template refuses the chat or, with `answer`, does not lead to an answer. This raises
    it if the tokenizer has no chat template, or it does not work.
    """
    if not settings.chat_template:
        return None
    template = _template(tokenizer)

    def apply(messages: list[Message], opened: bool = False) -> str:
        from transformers.utils import chat_template_utils as library

        given: Any = {"chat_template": template, "tokenize": False, "add_generation_prompt": opened}
        drawn = random.getstate()
        try:
            random.seed(0)
            with replaced((library, "datetime", _Then)):
                return str(tokenizer.apply_chat_template(messages, **given))
        except Exception as error:  # a template is code, and may do anything
            raise UserError(f"{WHOSE} refuses these messages: {one_line(error).removesuffix('.')}.") from error
        finally:
            random.setstate(drawn)

    told: set[str] = set()

    def render(messages: list[Message]) -> str:
        plain = [
            {**each, "content": each["content"][0]["text"]} if isinstance(each.get("content"), list) else each
            for each in messages
        ]
        if not answer:
            return apply(plain)
        if not plain:
            raise UserError("The chat has no message.")
        if plain[-1]["role"] in ANSWERING:
            return _continued(plain, apply)
        if (missing := _missing(plain, apply)) and missing not in told:
            told.add(missing)
            say(
                f"{WHOSE} writes {missing!r} in front of an answer. Chats end before it, where a model begins to write. {FILLED}"
            )
        return apply(plain, opened=True)

    if MARK not in render_one(apply):
        raise UserError(f"{WHOSE} leaves out a text that a user says.")
    return render


def _template(tokenizer: "PreTrainedTokenizerBase") -> str:
    if not getattr(tokenizer, "chat_template", None):
        raise UserError(
            "The tokenizer has no chat template: its model reads plain text. Use a chat model, or write texts in place of chats"
            " and switch chat_template off."
        )
    try:
        return str(tokenizer.get_chat_template())
    except ValueError as error:  # it has several, and none of them is the default
        raise UserError(f"The tokenizer does not say which chat template is its own: {error}") from error


def _continued(messages: list[Message], apply: Callable[..., str]) -> str:
    """Returns the text of a chat up to the end of its last message, which goes on."""
    said = messages[-1].get("content") or ""
    text, found, _ = apply([*messages[:-1], {**messages[-1], "content": said + MARK}]).rpartition(MARK)
    if not found or not text.endswith(said.lstrip()):
        raise UserError(f"{WHOSE} changes or leaves out {said[-100:]!r}, with which the chat ends.")
    front = text.removesuffix(said.lstrip()).rstrip()
    if (tag := _open_thoughts(front)) and front.endswith(tag):
        raise UserError(f"{WHOSE} opens thoughts ({tag!r}) in front of {said[:100]!r}, with which the chat ends.")
    if tag := _open_thoughts(said):
        raise UserError(
            f"The chat ends inside of thoughts: {tag!r} in {said[-100:]!r}. Close them, so that an answer follows."
        )
    return text


def _missing(messages: list[Message], apply: Callable[..., str]) -> str:
    """Returns what the template writes in front of an answer, and not at the end of a chat that waits for one; "" for nothing.

    Raises UserError if the chat ends inside of thoughts, or before the turn of the assistant.
    """
    said = messages[-1].get("content")
    if said is None:
        raise UserError("The last message has no content.")
    asked = [*messages[:-1], {**messages[-1], "content": f"{said} {MARK}"}]
    (_, _, closed), (_, found, opened) = (apply(asked, opened=opened).rpartition(MARK) for opened in (False, True))
    if not found:
        raise UserError(f"{WHOSE} leaves out the last message.")
    if tag := _open_thoughts(opened):
        raise UserError(f"{WHOSE} opens thoughts ({tag!r}) where the answer would begin. {FILLED}")
    front, end = "", opened.rstrip()
    with suppress(UserError):  # a template may know no answers
        answered = apply([*asked, {"role": ANSWERING[0], "content": ANSWER}])
        front = answered.rpartition(MARK)[2].rpartition(ANSWER)[0]
        if front.strip() == end.strip():
            return ""
    if opened == closed:
        raise UserError(
            f"{WHOSE} opens no turn of the assistant. A chat ends with {end[-100:]!r}, and an answer begins behind"
            f" {front[-100:]!r}. {FILLED}"
        )
    return front[len(end) :] if front.startswith(end) else ""


def _open_thoughts(text: str) -> str:
    """Returns the last mark of thoughts in a text, such as <think>, if it opens them; else ""."""
    *_, last = "", *(found[0] for found in THOUGHTS.finditer(text))
    return "" if re.search(r"/|end|no.?think", last, re.I) else last


class _Then(datetime):
    """A clock that stands still: templates that write today's date would make another corpus tomorrow."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> "_Then":
        return cls(2024, 7, 26, tzinfo=tz)


def render_one(render: Render) -> str:
    """Returns a chat of one message, as the template has it."""
    return render([{"role": "user", "content": MARK}])
