"""What a section of the page is made of."""

from collections.abc import Callable
from dataclasses import dataclass, field

from markupsafe import Markup

from ffkv.run.report.figure import Caption
from ffkv.run.report.page_tables import PageTable
from ffkv.run.results.run import Run


@dataclass(frozen=True)
class Exhibit:
    """A figure with everything that belongs to it.

    Attributes:
        name: the figure's name, such as "figure_4".
        heading: number and title, such as "Figure 4. Agreement ...". A figure that is not in the paper has no number.
        caption: the words below the figure.
        svg: the drawing.
        tables: the tables that the figure shows.
    """

    name: str
    heading: str
    caption: Caption
    svg: Markup
    tables: list[PageTable]


@dataclass(frozen=True)
class TableBlock:
    """Tables between the figures of a section.

    Attributes:
        anchor: id of the heading; "" where there is none.
        heading: the heading; "" where there is none.
        text: a paragraph; "" where there is none.
        table: a table whose first rows are open; None where there is none.
        folded: tables that the reader opens: what each of them shows, and the table.
    """

    anchor: str = ""
    heading: str = ""
    text: str = ""
    table: PageTable | None = None
    folded: list[tuple[str, PageTable]] = field(default_factory=list)


@dataclass(frozen=True)
class Words:
    """What a branch says on the page beside its figures. The module `ffkv.run.report.section_<branch>` has it as
    `WORDS`.

    Attributes:
        summary: the main numbers in plain sentences, one paragraph per question.
        before: the tables above the figures.
        after: the tables below the figures.
    """

    summary: Callable[[Run], list[str]] = lambda run: []
    before: Callable[[Run], list[TableBlock]] = lambda run: []
    after: Callable[[Run], list[TableBlock]] = lambda run: []
