"""What a section of the page is made of."""

from collections.abc import Callable
from dataclasses import dataclass, field

from markupsafe import Markup

from ffkv.run.report.figure import Caption
from ffkv.run.report.page_tables import PageTable
from ffkv.run.results.run import Run


@dataclass(frozen=True)
class Exhibit:
    """A figure with everything that belongs to it."""

    name: str  # the figure's name, such as "figure_4"
    # number and title, such as "Figure 4. Agreement ...". A figure that is not in the paper has no number.
    heading: str
    caption: Caption  # the words below the figure
    svg: Markup  # the drawing
    tables: list[PageTable]  # the tables that the figure shows


@dataclass(frozen=True)
class TableBlock:
    """Tables between the figures of a section."""

    anchor: str = ""  # id of the heading; "" where there is none
    heading: str = ""  # the heading; "" where there is none
    text: str = ""  # a paragraph; "" where there is none
    table: PageTable | None = None  # a table whose first rows are open; None where there is none
    # tables that the reader opens: what each of them shows, and the table
    folded: list[tuple[str, PageTable]] = field(default_factory=list)


@dataclass(frozen=True)
class Words:
    """What a branch says on the page beside its figures. The module `ffkv.run.report.section_<branch>` has it as
    `WORDS`.
    """

    # the main numbers in plain sentences, one paragraph per question
    summary: Callable[[Run], list[str]] = lambda run: []
    before: Callable[[Run], list[TableBlock]] = lambda run: []  # the tables above the figures
    after: Callable[[Run], list[TableBlock]] = lambda run: []  # the tables below the figures
