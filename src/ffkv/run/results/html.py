"""Pieces of the summaries that a notebook shows. They are small, escaped, and need nothing from outside."""

from collections.abc import Iterable, Sequence

import pandas as pd
from markupsafe import Markup

from ffkv.run.results.text import number, percent, prefix, token, visible

LONGEST = 120  # characters of a text that a summary shows; of a longer text its end


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
    """Trigger examples: the coefficient, the text before its last token, that token, and the next token."""
    rows = [
        [
            number(row.coefficient),
            prefix(row.text, row.last_token, LONGEST),
            token(row.next_token),
        ]
        for row in examples.itertuples()
    ]
    return table(heading, ["coefficient", "text", "next token"], rows)


def tokens_table(heading: str, predictions: pd.DataFrame) -> Markup:
    """Returns tokens with their probabilities."""
    rows = [[token(row.token), percent(row.probability)] for row in predictions.itertuples()]
    return table(heading, ["token", "probability"], rows)
