"""What a row of a data set says: its text, or a chat that the tokenizer's template turns into text."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ffkv.base.errors import UserError
from ffkv.base.settings import Corpus
from ffkv.corpus.where import MISSING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Message = dict[str, Any]
Render = Callable[[list[Message]], str]

# Some templates write today's date. The same corpus would be another one tomorrow.
DATE = datetime(2024, 7, 26)
REMEDY = "Mend the data, name another field (corpus.text_field), or switch corpus.chat_template off."


def row_text(value: Any, field: str, place: str, render: Render | None) -> str:
    """Returns the text of a row, from the value in its field (`MISSING` without one); "" if it has none.

    `render` turns a chat into text, see `chat_renderer`; None if rows contain text. `place`: file and row, for
    messages. Raises UserError if the value is of another kind, or the template refuses the chat.
    """
    if value is None or value is MISSING:
        return ""
    if render is None:
        if not isinstance(value, str):
            remedy = " or corpus.chat_template" if isinstance(value, list) else ""
            raise UserError(
                f"{place}: field {field!r} contains {type(value).__name__}, not text. Set corpus.text_field{remedy}."
            )
        return value
    _check_messages(value, f"{place}: field {field!r}")
    try:
        return render(value) if value else ""
    except UserError as error:
        raise UserError(f"{place}: {error}") from error


def _check_messages(value: Any, place: str) -> None:
    if not isinstance(value, list):
        raise UserError(f"{place} contains {type(value).__name__}, not a list of messages. {REMEDY}")
    for number, message in enumerate(value):
        if not isinstance(message, dict):
            raise UserError(
                f"{place}, message {number}: it is {type(message).__name__}, not an object with fields. {REMEDY}"
            )
        if not isinstance(message.get("role"), str):
            raise UserError(
                f"{place}, message {number}: it has no role, such as 'user'. Its fields:"
                f" {', '.join(map(repr, message)) or 'none'}. {REMEDY}"
            )
        if not isinstance(message.get("content"), str | None):
            kind = type(message["content"]).__name__
            raise UserError(f"{place}, message {number}: its content is {kind}, not text. {REMEDY}")


def chat_renderer(tokenizer: PreTrainedTokenizerBase, settings: Corpus, answer: bool = False) -> Render | None:
    """Returns the function that turns a chat into text; None if the corpus contains text.

    `answer`: whether the text goes on to where the model's answer begins.

    The function raises UserError if the template refuses the chat. This raises it if the tokenizer has no chat
    template, or it does not work.
    """
    if not settings.chat_template:
        return None
    if not getattr(tokenizer, "chat_template", None):
        raise UserError(
            "The tokenizer has no chat template: its model reads plain text. Use a chat model, or switch"
            " corpus.chat_template off."
        )
    try:
        template = _with_fixed_date(tokenizer.get_chat_template())
    except ValueError as error:  # it has several, and none of them is the default
        raise UserError(f"The tokenizer does not say which chat template is its own: {error}") from error

    def render(messages: list[Message]) -> str:
        try:
            given: Any = {"chat_template": template, "tokenize": False, "add_generation_prompt": answer}
            return str(tokenizer.apply_chat_template(messages, **given))
        except Exception as error:  # a template is code, and may do anything
            reason = (" ".join(str(error).split()) or type(error).__name__)[:300].removesuffix(".")
            raise UserError(f"The chat template of the tokenizer refuses these messages: {reason}.") from error

    render_one(render)
    return render


def _with_fixed_date(template: str) -> str:
    """Returns the template, for which it is always `DATE`: a macro takes the place of the function that tells the date.

    The line break behind the macro is not part of the text, and the template begins on a line of its own.
    """
    if "strftime_now" not in template:
        return template
    codes = [f"%{sign}{code}" for sign in ("-", "") for code in "aAbBcdHIjmMpSuUVwWxXyY"]
    replaced = "".join(f" | replace({code!r}, {DATE.strftime(code)!r})" for code in codes)
    return f"{{% macro strftime_now(format) %}}{{{{ format{replaced} }}}}{{% endmacro %}}\n{template}"


def render_one(render: Render) -> str:
    """Returns a chat of one message, as the template has it."""
    return render([{"role": "user", "content": "a"}])
