"""Corpus text and numbers, as they stand in the page."""

import math

import pandas as pd
from markupsafe import Markup

BLANK = "␣"
MINUS = "\N{MINUS SIGN}"
NO_BREAK_SPACE = "\N{NO-BREAK SPACE}"
SHORT_ESCAPES = {"\n": r"\n", "\t": r"\t", "\r": r"\r"}


def visible(text: str) -> Markup:
    """Corpus text for the page: escaped, kept apart from the text around it, with invisible characters spelled out.

    Control characters, marks that reverse the writing direction, blanks other than the plain one are shown as escapes
    such as `\\u202e`, set off so that they cannot be taken for the text's own.
    """
    return Markup("<bdi>{}</bdi>").format(Markup("").join(map(_visible_character, text)))


def token(text: str) -> Markup:
    """A token for the page: as `visible`, and its blanks show."""
    return visible(text.replace(" ", BLANK))


def ending(text: str, longest: int) -> Markup:
    """The end of a long text for the page, as `visible`."""
    return visible(f"…{text[-longest:]}" if len(text) > longest else text)


def _visible_character(character: str) -> Markup | str:
    if character.isprintable():
        return character
    code = ord(character)
    spelled = f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    return Markup('<span class="escape">{}</span>').format(SHORT_ESCAPES.get(character, spelled))


def percent(share: float) -> str:
    """A share as a percentage: one decimal at most, or two digits below 1 %; a dash where there is none."""
    if pd.isna(share):
        return "–"
    written = f"{100 * share:.1f}" if abs(share) >= 0.01 or share == 0 else f"{100 * share:.2g}"
    return f"{written.removesuffix('.0')}{NO_BREAK_SPACE}%"


def change(value: float) -> str:
    """A change in per cent, with its sign."""
    return "–" if pd.isna(value) else f"{value:+.1f}{NO_BREAK_SPACE}%".replace("-", MINUS)


def number(value: float) -> str:
    """A number with thousands separated and four digits or more; a dash where there is none."""
    if pd.isna(value):
        return "–"
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    digits = max(0, 3 - math.floor(math.log10(abs(value))))
    return f"{value:,.{digits}f}" if digits <= 7 else f"{value:.3g}"


def duration(seconds: float) -> str:
    """A time that a person can read: "41 s", "12 min 5 s", "3 h 20 min"."""
    whole = round(seconds)
    hours, minutes, rest = whole // 3600, whole % 3600 // 60, whole % 60
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{whole} s" if whole else "under 1 s"
