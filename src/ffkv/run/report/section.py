"""The sections of the page: what each is made of, and how they are put together, beside numbers of the control.

The section of the run itself, with the training of the embedded model, is here, too.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from markupsafe import Markup
from matplotlib.figure import Figure as Drawing

from ffkv.base.errors import UserError
from ffkv.base.lookup import is_dir
from ffkv.base.settings import EMBEDDED
from ffkv.branches.branch import Branch
from ffkv.branches.settings import AUTO, NONE
from ffkv.run.report import drawing, svg
from ffkv.run.report.curve import Curve, Panel, draw_control
from ffkv.run.report.page_tables import PageTable, data_table
from ffkv.run.report.registry import FIGURES, branches_of, excused, has_figure, load_figure, load_section
from ffkv.run.report.wording import note, short_name, written
from ffkv.run.results.run import Run
from ffkv.run.results.run import open as open_run
from ffkv.run.results.text import number

LOSS = "training"  # the table of the training curve of the embedded model


@dataclass(frozen=True)
class Caption:
    """The words of a figure."""

    # one sentence: what the figure shows, in the run's numbers; "" if the text alone says it
    shows: str
    text: str  # how it was measured and drawn. It can be understood without the rest of the page.
    description: str  # what there is to see, for readers who do not see it
    more: str = ""  # details of the method, so that the text has 80 words or less; "" if there are none


def caption(
    package: str, name: str, values: Callable[[Run], dict[str, Any]] = lambda run: {}
) -> Callable[[Run], Caption]:
    """Returns what writes the caption of a figure, see `texts.toml` of a package. values: what its template needs beside tables."""
    return lambda run: Caption(**written(package, name, run, **values(run)))


def numbers(package: str, **values: Any) -> Callable[[Run], dict[str, str]]:
    """Returns what writes the main numbers of a run, by what they are: `summary` in `texts.toml` of a package."""
    return lambda run: written(package, "summary", run, **values)


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


def figure_of_lines(
    panels: Sequence[Panel],
    caption: Callable[[Run], Caption],
    more_tables: tuple[str, ...] = (),
    one_axis: bool = False,
) -> Figure:
    """Returns a figure of panels side by side, with the legend of the first one, and the curves of all.

    more_tables: tables that the page offers beside those of the lines.
    one_axis: whether the panels share their vertical axis, which ends where the points do.
    """

    def draw(run: Run, paper: Any) -> Drawing:
        figure, axes = drawing.canvas(len(panels), sharey=one_axis)
        for panel, its_axes in zip(panels, axes, strict=True):
            panel.draw(its_axes, run, paper)
        if one_axis:
            drawing.end_at_points(*axes)
        drawing.legend(figure, axes[0])
        return figure

    shown = [(place, line) for place, panel in enumerate(panels) for line in panel.lines if line.curve]
    tables = dict.fromkeys(line.table for _, line in shown)
    curves = [Curve(each.curve, each.points, share=each.share, panel=at, units=each.units) for at, each in shown]
    return Figure((*tables, *more_tables), draw, caption, curves)


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
        return Markup(svg.in_colours_of_page(self.svg))


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
    more: str = ""  # details of the text, which the reader opens; "" where there are none


@dataclass(frozen=True)
class Section:
    """What a branch shows and says on the page: the `SECTION` of its module `section`."""

    figures: Mapping[str, Figure]  # by their names, which the description of the branch has, too
    # the main numbers, by what they are; "" if there is nothing to say. The summary shows them beside those of a control.
    numbers: Callable[[Run], dict[str, str]] = lambda run: {}
    before: Callable[[Run], list[TableBlock]] = lambda run: []  # the tables above the figures
    after: Callable[[Run], list[TableBlock]] = lambda run: []  # the tables below the figures
    # what numbers alone do not say, in sentences, also about the run's control if it has one
    summary: Callable[[Run, Run | None], list[str]] = lambda run, control: []


@cache
def paper_numbers() -> dict[str, Any]:
    """Returns the numbers of the paper's own figures, by the name of the figure."""
    return json.loads(files("ffkv.run.report").joinpath("paper_figures.json").read_bytes())


def draw_exhibits(run: Run, control: Run | None = None, only: str = "") -> dict[str, Exhibit]:
    """Draws the figures that the run has, or `only` of one section, in the order of the registry. A control run is grey."""
    exhibits = {}
    with drawing.look():
        for name, entry in FIGURES.items():
            if only not in ("", entry.section):
                continue
            with excused(entry.section, f"the figure {name}") as failed:
                if has_figure(run, name):
                    exhibits[name] = draw_exhibit(run, name, control)
            if failed:
                exhibits[name] = _missing(name, failed[0])
    return exhibits


def draw_exhibit(run: Run, name: str, control: Run | None = None) -> Exhibit:
    """Draws a figure that the run has. A control run is grey."""
    figure, heading = load_figure(name), heading_of(name)
    words, (drawn, beside) = figure.caption(run), draw_beside(run, name, control)
    if beside is not None:
        its = f"Grey dashes: {name_control(beside)}. There: {figure.caption(beside).shows}"
        words = replace(words, more=f"{words.more} {its}".lstrip())
    element = svg.write_svg(drawn, name, heading, words.description)
    more = [table for table in figure.more_tables if table in run.tables]
    tables = [data_table(run, table) for table in [*figure.tables, *more]]
    of_paper = name.replace("_", " ") if name.startswith("figure_") else ""
    return Exhibit(name, heading, words, element, tables, f"figures/{name}.svg", of_paper)


def _missing(name: str, why: str) -> Exhibit:
    """Makes what stands in the place of a figure that cannot be drawn. The workflow waits for its file."""
    figure, (axes,) = drawing.canvas(height=0.6)
    axes.set_axis_off()
    axes.text(0.5, 0.5, "This figure cannot be drawn.", ha="center", va="center")
    element = svg.write_svg(figure, name, heading_of(name), why)
    return Exhibit(name, heading_of(name), Caption("", why, why), element, [], f"figures/{name}.svg")


def draw_beside(run: Run, name: str, control: Run | None) -> tuple[Drawing, Run | None]:
    """Draws a figure beside the paper's numbers and its control, if asked for. Returns also the control, if drawn."""
    figure, paper = load_figure(name), paper_numbers() if run.settings.report.paper_curves else {}
    drawn = figure.draw(run, paper.get(name))
    shown = control is not None and has_figure(control, name) and draw_control(drawn, figure.curves, control)
    return drawn, control if shown else None


def heading_of(name: str) -> str:
    """Number and title of a figure."""
    in_front = name.replace("figure_", "Figure ") + ". " if name.startswith("figure_") else ""
    return in_front + FIGURES[name].title


def arrange(run: Run, branch: Branch, exhibits: dict[str, Exhibit]) -> dict[str, Any]:
    """Returns the section of a branch: the branch, its figures, and the tables before and after."""
    blocks: dict[str, list[TableBlock]] = {"before": [], "after": []}
    with excused(branch.name, "the tables") as failed:
        section = load_section(branch.name)
        if unnamed := section.figures.keys() - branch.figures.keys():
            raise LookupError(f"its Branch does not name the figures {', '.join(unnamed)}")
        before, after = (_checked(made, TableBlock) for made in (section.before(run), section.after(run)))
        blocks = {"before": before, "after": after}
    blocks["after"] += [TableBlock(text=why) for why in failed]
    return {"branch": branch, "exhibits": of_section(branch.name, exhibits), **blocks}


def _checked(made: Any, kind: type) -> list[Any]:
    """Returns as a list what a section makes. Raises TypeError if it makes anything else, which the page could not show."""
    if not isinstance(made, list | tuple) or not all(isinstance(each, kind) for each in made):
        raise TypeError(f"its section should return a list of {kind.__name__}")
    return [*made]


def summary(run: Run, control: Run | None = None) -> list[tuple[str, str, str]]:
    """Returns the main numbers, in the order of the branches: what each is, the run's, and the control's, if it has it."""
    measured = []
    for branch in branches_of(run):
        with excused(branch.name, "the main numbers") as failed:
            tell = load_section(branch.name).numbers
            its = tell(control) if control is not None and branch in branches_of(control) else {}
            measured += [(what, own, its.get(what) or "–") for what, own in tell(run).items() if own]
        measured += [(why, "–", "–") for why in failed]
    return measured


def told(run: Run, control: Run | None = None) -> list[str]:
    """Returns what the summary says in sentences, in the order of the branches; and what the run is compared with."""
    said = []
    for branch in branches_of(run):
        with excused(branch.name, "the summary") as failed:
            said += _checked(load_section(branch.name).summary(run, control), str)
        said += failed
    if control is None:
        return [*said, note(__package__, "uncompared", run=run)]
    name = short_name(control)
    return [*said, f"{name[:1].upper()}{name[1:]}: {name_control(control)}.{about_text(run, control)}"]


def of_section(section: str, exhibits: dict[str, Exhibit]) -> list[Exhibit]:
    """Returns the figures of one section."""
    return [exhibit for name, exhibit in exhibits.items() if FIGURES[name].section == section]


def open_control(run: Run) -> Run | None:
    """Returns the run that a run is compared with, see `report.control`; None if there is none.

    Raises UserError if its folder is not beside that of the run, or its model has another number of layers.
    """
    name = run.settings.report.control
    if name in (AUTO, NONE):
        return None
    folder = Path(run.folder).parent / name
    if not is_dir(folder):
        raise UserError(
            f"{folder} is not there, with which the report compares {run.name}. Run `snakemake` again, with the options of"
            " the run, or copy the folder, too. With `report.control: none` in the settings the report compares nothing."
        )
    control = open_run(folder)
    own, its = len(run.anatomy.layers), len(control.anatomy.layers)
    if own != its:
        raise UserError(
            f"report.control of {run.name} is {name}, whose model has {its} layers, not {own}. Name a run of a model of the"
            " same shape."
        )
    return control


def name_control(control: Run) -> str:
    """Returns what a control is."""
    if control.anatomy.weights != "random":
        return f"the control run {control.name}, of {control.anatomy.checkpoint}"
    tokens = sum(int(about["tokens"]) for about in control.files.corpora.values())
    return f"the control run {control.name}, whose weights are random, on {number(tokens)} tokens of the same text"


def about_text(run: Run, control: Run) -> str:
    """Returns a sentence about a control that read a part of the run's text, with a space in front; else empty."""
    whole, part = (int(each.files.corpora["train"]["tokens"]) for each in (run, control))
    less = control.anatomy.weights == "random" and part < whole
    return " In more text, more of its trigger examples would be alike and have patterns." if less else ""


def draw_training(run: Run, paper: Any) -> Drawing:
    """Lines by training step: the loss on both splits."""
    figure, (axes,) = drawing.canvas()
    for (split, losses), (line, shade) in zip(run.table(LOSS).groupby("split"), [(":", 0), ("-o", 2)], strict=False):
        axes.plot(losses["step"], losses["loss"], line, color=drawing.colours(4)[shade], label=split, markersize=4)
    axes.set_xlabel("training step")
    axes.set_ylabel("loss (nats per token)")
    drawing.legend(figure, axes)
    return figure


TRAINING = caption(__package__, "training")
SECTION = Section(
    {
        "training": Figure(
            (LOSS,), draw_training, TRAINING, applies=lambda run: run.settings.model.checkpoint == EMBEDDED
        )
    }
)
