"""Corpus text and numbers, as a page or a notebook shows them."""

import math

import pandas as pd
from markupsafe import Markup, escape

from ffkv.base.characters import last_characters
from ffkv.base.terminal import spell

BLANK = "␣"
LONGEST_TOKEN = 200  # characters of a token that a page shows
NO_BREAK_SPACE = "\N{NO-BREAK SPACE}"


def visible(text: str) -> Markup:
    """Writes corpus text as HTML: escaped, separate from the text around it, with invisible characters spelled out.

    Control characters, marks that reverse the writing direction and blanks other than the plain one become escapes such
    as `\\u202e`. The escapes are marked, so that nobody takes them for the text's own characters.
    """
    if text.isprintable():
        return Markup(f"<bdi>{escape(text)}</bdi>")
    spelled = Markup('<span class="escape">{}</span>')
    shown = Markup("").join(one if one.isprintable() else spelled.format(spell(one)) for one in text)
    return Markup(f"<bdi>{shown}</bdi>")


def token(text: str) -> Markup:
    """Writes a token as HTML: as `visible`, with its blanks, and at most its first `LONGEST_TOKEN` characters."""
    return visible(shortened(text, LONGEST_TOKEN).replace(" ", BLANK))


def shortened(text: str, longest: int) -> str:
    """Returns the first `longest` characters of a text, with an ellipsis if there are more."""
    return f"{text[:longest]}…" if len(text) > longest else text


def ending(text: str, longest: int) -> Markup:
    """Writes the last `longest` characters of a text as HTML, as `visible`."""
    return visible(f"…{text[-longest:]}" if len(text) > longest else text)


def prefix(text: str, last_token: str, longest: int) -> Markup:
    """Writes the end of a prefix as HTML. What its last token wrote is marked; if it ended a character, the whole one."""
    start = len(text) - last_characters(text, last_token)
    return Markup("{}<mark>{}</mark>").format(
        ending(text[:start], longest), visible(shortened(text[start:], LONGEST_TOKEN))
    )


def percent(share: float) -> str:
    """Returns a share as a percentage: one decimal at most, or two digits below 1 %; a dash for NaN."""
    if pd.isna(share):
        return "–"
    written = f"{100 * share:.1f}" if abs(share) >= 0.01 or share == 0 else f"{100 * share:.2g}"
    return f"{written.removesuffix('.0')}{NO_BREAK_SPACE}%"


def number(value: float) -> str:
    """Returns a number with thousands separated and four digits or more; a dash for NaN."""
    if pd.isna(value):
        return "–"
    if math.isinf(value):
        return f"{'-' if value < 0 else ''}∞"
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    digits = max(0, 3 - math.floor(math.log10(abs(value))))
    return f"{value:,.{digits}f}" if digits <= 7 else f"{value:.3g}"
