"""Corpus text and numbers, as a page or a notebook shows them; and the pieces of a summary in a notebook."""

import math
import statistics
from collections.abc import Iterable, Sequence

import pandas as pd
from markupsafe import Markup, escape

from ffkv.base.characters import last_characters
from ffkv.base.terminal import plain, spell

BLANK = "␣"
MOST_DECIMALS = 6  # of a number in a column
LONGEST_TOKEN = 200  # characters of a token that a page shows
LONGEST_TITLE = 40  # characters of a document's title: a line of a narrow column holds half of it
LONGEST_TEXT = 120  # characters of a text that a summary shows; of a longer text its end
NO_BREAK_SPACE = "\N{NO-BREAK SPACE}"
MINUS = "\N{MINUS SIGN}"


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


def percent(share: float, digits: int = 2) -> str:
    """Returns a share as a percentage, see `rounded`. Less than all is less than 100 %; a dash for NaN."""
    return "–" if pd.isna(share) else f"{_percentage(100 * share, digits)}{NO_BREAK_SPACE}%"


def _percentage(value: float, digits: int = 2) -> str:
    if 99.5 <= abs(value) < 100:
        return f"{math.copysign(math.floor(10 * abs(value)) / 10, value):.1f}".replace("-", MINUS)
    return rounded(value, digits)


def rounded(value: float, significant: int = 2) -> str:
    """Returns a number with two significant digits, or so many, or all of those before its point; a dash for NaN."""
    if pd.isna(value):
        return "–"
    if not value or math.isinf(value):
        return number(value)
    exponent = int(f"{value:.{significant - 1}e}".partition("e")[2])  # of the rounded number: 0.0999 is 0.10
    digits = max(0, significant - 1 - exponent)
    written = f"{value:,.{digits}f}" if digits <= MOST_DECIMALS + 1 else f"{value:.1e}"
    return written.removesuffix(".0").replace("-", MINUS)


def points(difference: float) -> str:
    """Returns a difference of shares in percentage points, with its sign, as exactly as `percent`; a dash for NaN."""
    if pd.isna(difference):
        return "–"
    sign = "+" if difference > 0 else MINUS if difference < 0 else ""
    return f"{sign}{percent(abs(difference)).removesuffix('%')}points"


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


def signed(value: float) -> str:
    """Returns a number that can be negative, with the minus sign of printed text."""
    return number(value).replace("-", MINUS)


def decimals(value: float) -> str:
    """Returns a number that can be negative with two decimals; a dash for NaN."""
    return "–" if pd.isna(value) else f"{value:.2f}".replace("-", MINUS)


def column(values: Iterable[float], like: Iterable[float] | None = None, places: int | None = None) -> list[str]:
    """Writes the numbers of a column with equally many decimals, so that their points stand below each other.

    Counts have none. Else the number in the middle has three digits. What is too small for that is "<0.001".

    Args:
        like: numbers of this column and of others, if several columns are to have the same decimals.
        places: the number of decimals, if it is known.
    """
    values = [*values]
    if places is None:
        sizes = [abs(value) for value in (values if like is None else like) if value and math.isfinite(value)]
        whole = all(float(size).is_integer() for size in sizes)
        places = 0 if whole else min(max(2 - math.floor(math.log10(statistics.median(sizes))), 0), MOST_DECIMALS)
    return [_with_places(value, places) for value in values]


def _with_places(value: float, places: int) -> str:
    if not math.isfinite(value):
        return number(value)
    text = f"{value:,.{places}f}".replace("-", MINUS)
    if value and not text.strip(f"{MINUS}0."):
        return f"{'<' if value > 0 else '>' + MINUS}{10.0**-places:.{places}f}"
    return text


def percents(shares: Iterable[float]) -> list[str]:
    """Writes the shares of a column as percentages, as `column` writes numbers."""
    written = column(100 * float(share) for share in shares)
    return [text if text == "–" else f"{text}{NO_BREAK_SPACE}%" for text in written]


def change(value: float) -> str:
    """Returns a change in per cent, with its sign, as exactly as `percent`; a dash for NaN."""
    return "–" if pd.isna(value) else f"{'+' if value > 0 else ''}{_percentage(value)}{NO_BREAK_SPACE}%"


def duration(seconds: float) -> str:
    """Returns a time for a person: "41 s", "12 min 5 s", "3 h 20 min"."""
    whole = round(seconds)
    hours, minutes, rest = whole // 3600, whole % 3600 // 60, whole % 60
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{whole} s" if whole else "under 1 s"


def summary(title: str, facts: Sequence[Markup | str], *blocks: Markup) -> Markup:
    """Returns a title, a line of facts, and what belongs to them."""
    head = Markup("<div><h4>{}</h4><p>{}</p>").format(visible(title), Markup(" · ").join(facts))
    return head + Markup("").join(blocks) + Markup("</div>")


def table(heading: str, names: Sequence[str], rows: Iterable[Sequence[Markup | str]]) -> Markup:
    """Returns a table under a heading; nothing where there are no rows. Cells that are `str` are escaped."""
    cells = [
        Markup("<tr>{}</tr>").format(Markup("").join(Markup("<td>{}</td>").format(cell) for cell in row))
        for row in rows
    ]
    if not cells:
        return Markup("")
    head = Markup("").join(Markup("<th>{}</th>").format(name) for name in names)
    return Markup("<table><caption>{}</caption><thead><tr>{}</tr></thead><tbody>{}</tbody></table>").format(
        heading, head, Markup("").join(cells)
    )


def examples_table(heading: str, examples: pd.DataFrame) -> Markup:
    """Trigger examples: the coefficient, the text before its last token, that token, the next token, and titles, if there are any."""
    titled, name = any(examples["title"]), Markup('<span title="{}">{}</span>')
    rows = [
        [number(row.coefficient), prefix(row.text, row.last_token, LONGEST_TEXT), token(row.next_token)]
        + [name.format(plain(row.title), visible(shortened(row.title, LONGEST_TITLE)))] * titled
        for row in examples.itertuples()
    ]
    return table(heading, ["coefficient", "text", "next token", *["from"] * titled], rows)


def tokens_table(heading: str, predictions: pd.DataFrame) -> Markup:
    """Returns tokens with their probabilities."""
    rows = [[token(row.token), percent(row.probability)] for row in predictions.itertuples()]
    return table(heading, ["token", "probability"], rows)
