"""What a section of the page is made of: figures with their captions, sentences and tables."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup
from matplotlib.figure import Figure as Drawing

from ffkv.run.report.curve import Curve
from ffkv.run.report.page_tables import PageTable
from ffkv.run.report.svg import in_colours_of_page
from ffkv.run.results.run import Run


@dataclass(frozen=True)
class Caption:
    """The words of a figure."""

    # one sentence: what the figure shows, in the run's numbers; "" if the text alone says it
    shows: str
    text: str  # how it was measured and drawn. It can be understood without the rest of the page.
    description: str  # what there is to see, for readers who do not see it


@dataclass(frozen=True)
class Figure:
    """A figure of the report. `ffkv.run.report.registry` has its name, its section and its title."""

    tables: tuple[str, ...]  # names of the run's tables that the figure shows. The page offers each of them as a file.
    # draws the figure from a run and from the paper's own numbers, or None where these are not wanted
    draw: Callable[[Run, Any], Drawing]
    caption: Callable[[Run], Caption]  # writes the caption of a run's figure
    # the lines that other runs can draw over it. All but those of the training have one.
    curves: Sequence[Curve] = ()
    more_tables: tuple[str, ...] = ()  # names of tables that it shows of runs that have them
    applies: Callable[[Run], bool] = lambda run: True  # whether a run has this figure


@dataclass(frozen=True)
class Exhibit:
    """A figure with everything that belongs to it."""

    name: str  # the figure's name, such as "figure_4"
    # number and title, such as "Figure 4. Agreement ...". A figure that is not in the paper has no number.
    heading: str
    caption: Caption  # the words below the figure
    svg: str  # the drawing
    tables: list[PageTable]  # the tables that the figure shows
    file: str = ""  # the drawing's own file, beside the page; "" where it has none
    of_paper: str = ""  # the paper's figure that it repeats, such as "figure 4"; "" where there is none

    @property
    def inline(self) -> Markup:
        """The drawing as the page shows it, in the page's own colours."""
        return Markup(in_colours_of_page(self.svg))


@dataclass(frozen=True)
class TableBlock:
    """Tables between the figures of a section."""

    anchor: str = ""  # id of the heading; "" where there is none
    heading: str = ""  # the heading; "" where there is none
    text: str = ""  # a paragraph; "" where there is none
    table: PageTable | None = None  # a table whose first rows are open; None where there is none
    # tables that the reader opens: what each of them shows, and the table
    folded: list[tuple[str, PageTable]] = field(default_factory=list)
    # an `svg` element in the colours of the page, above the tables; None where there is none
    drawing: Markup | None = None


@dataclass(frozen=True)
class Section:
    """What a branch shows and says on the page: the `SECTION` of the module `ffkv.run.report.section_<branch>`."""

    figures: Mapping[str, Figure]  # by their names, which the description of the branch has, too
    # the main numbers in plain sentences, one paragraph per question, beside those of the run's control if it has one
    summary: Callable[[Run, Run | None], list[str]] = lambda run, control: []
    before: Callable[[Run], list[TableBlock]] = lambda run: []  # the tables above the figures
    after: Callable[[Run], list[TableBlock]] = lambda run: []  # the tables below the figures
