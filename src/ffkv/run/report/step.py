"""The report of a run: one HTML file that opens from disk, without network, and a file per figure. Its script may be off.

A notebook shows both.
"""

import importlib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ffkv.base.errors import UserError
from ffkv.base.files.atomic import write_text
from ffkv.base.lookup import find, is_file
from ffkv.run.report import drawing, section, svg
from ffkv.run.report.cards import Leads, cards_of, make_cards
from ffkv.run.report.claims import Judged, as_table, judge_claims
from ffkv.run.report.facts import facts
from ffkv.run.report.overview import model_name, overview_svg, read_line, rows_of_claims, sum_of_claims
from ffkv.run.report.registry import FIGURES, branches_of, excused, has_figure
from ffkv.run.report.wording import make_environment, short_name
from ffkv.run.results.expected import expected_files
from ffkv.run.results.run import Run, check_run
from ffkv.run.results.run_files import unknown

STYLES = ("report", "own")
FRAME = Markup('<iframe srcdoc="{}" style="width: 100%; height: 90vh; border: 0"></iframe>')


def write_report(run: Run, output: Path | str) -> None:
    """Writes the page of a run, and beside it `verdicts.csv` and each figure as an SVG file in the folder `figures`.

    A memory in a table leads to its card, or else to its page, if `ffkv explore --export` wrote one into the folder
    `memories` beside the page, or else to a line about it. The control run of the setting `report.control` is drawn in
    grey; its folder is beside that of the run.

    Args:
        run: the run, from `ffkv.open`.
        output: the HTML file to write.
    Raises:
        UserError: a file of the run is missing, damaged, or of another model, tokenizer or corpus. Nothing is written.
    Examples:
        >>> ffkv.write_report(ffkv.open("results/tiny"), "reports/index.html")
    """
    check_run(run)
    control = section.open_control(run)
    for each in (run, control) if control else (run,):
        needed = [Path(name) for name in expected_files(each.settings) if name.endswith(".csv")]
        lacking = [str(table) for table in needed if table.stem not in each.tables]
        if missing := [table for table in lacking if table not in each.files.unmeasured]:
            raise UserError(
                f"{each.folder} has no {', '.join(missing)}, which the report shows. The run was made before ffkv wrote"
                " this, or is not finished. Run `snakemake` again, with the options of the run: it makes what is missing."
            )
    exhibits, judged = section.draw_exhibits(run, control), judge_claims(run, control)
    page = render(run, exhibits, judged, control, [page.stem for page in find(Path(output).parent, "memories/*.html")])
    for name, exhibit in exhibits.items():
        drawn = f'<?xml version="1.0" encoding="utf-8"?>\n{exhibit.svg}'
        write_text(Path(output).parent / "figures" / f"{name}.svg", drawn)
    write_text(Path(output).parent / "verdicts.csv", as_table(judged).to_csv(index=False))
    write_text(output, page)


def render(
    run: Run,
    exhibits: dict[str, section.Exhibit],
    judged: Sequence[Judged],
    control: Run | None = None,
    pages: Collection[str] = (),
) -> str:
    """Writes the page of a run with its figures, from `draw_exhibits`, and claims, from `judge_claims`, as HTML.

    control: the control run, with which the summary compares the run.
    pages: names of the memories that have a page of their own in the folder `memories` beside this one.
    """
    environment = make_environment(("ffkv.run.report", "."))
    sections = [section.arrange(run, branch, exhibits) for branch in branches_of(run)]
    cards = make_cards(run)
    tables = [each.table for one in sections for each in one["before"] + one["after"] if each.table]
    named = cards_of(run, [name for table in tables for name in table.named], cards)
    names = {card.memory.name for card in [*cards, *named]}
    environment.filters["linked"] = leads = Leads(run, names, pages)
    return environment.get_template("page.html").render(
        run=run,
        model=model_name(run),
        read=read_line(run),
        claims=rows_of_claims(judged, run),
        overview=Markup(svg.in_colours_of_page(overview_svg(judged, run, control))),
        sections=sections,
        run_exhibits=section.of_section("run", exhibits),
        facts=facts(run),
        summary=section.summary(run, control),
        told=section.told(run, control),
        control=short_name(control) if control else "",
        found=sum_of_claims(judged),
        cards=cards,
        named=named,
        leads=leads,
        pages=pages,
        settings=run.settings.model_dump_json(indent=2).splitlines(),
    )


def figure(run: Run, name: str, *, ax: Any = None, style: str = "report") -> Figure:
    """Draws a figure of the report. A notebook shows it, and `figure.savefig` saves it in any format.

    Each line and each point has a label: that of the legend. Labels of intervals and boxes begin with "_".

    Args:
        run: a finished run.
        name: the figure's name, such as "figure_4", that of its file in `reports/<run>/figures`.
        ax: Axes of your own figure to draw into, one for each panel, in your own style. By default a new figure.
        style: "report", or "own": sizes, fonts and colours are those that you set in matplotlib, as by `plt.style.use`.
    Returns:
        The figure; with `ax`, your own.
    Raises:
        UserError: the run has no such figure; lists those that it has. The figure has another number of panels. There is no such
            style. Or a file of the run is missing or damaged.
    Examples:
        >>> figure = ffkv.figure(ffkv.open("results/tiny"), "figure_4")
        >>> figure.axes[0].get_xlabel()
        'layer'
        >>> figure.savefig("figure_4.png")
        >>> import matplotlib.pyplot as plt
        >>> own, axes = plt.subplots(figsize=(4, 3))
        >>> ffkv.figure(ffkv.open("results/tiny"), "figure_4", ax=axes) is own
        True
    """
    check_run(run)
    if name not in [*FIGURES] or not has_figure(run, name):
        names = list[str]()
        for each, entry in FIGURES.items():
            with excused(entry.section, f"the figure {each}"):
                names += [each] * has_figure(run, each)
        raise unknown(f"figure of {run.name} called", name, names)
    if style not in STYLES:
        raise unknown("style", style, [*STYLES])
    panels = [] if ax is None else np.ravel(np.array(ax, object)).tolist()
    if ax is not None and not (panels and all(isinstance(each, Axes) for each in panels)):
        raise UserError(f"ax is {ax!r}. Give the Axes of your figure, such as plt.subplots()[1].")
    importlib.import_module("matplotlib.pyplot")  # only then do notebooks show figures
    with drawing.look(drawing.OfReader(panels) if panels or style == "own" else None):
        drawn, _ = section.draw_beside(run, name, section.open_control(run))
    if panels or style == "own":
        return panels[0].get_figure() if panels else drawn
    drawn.set_dpi(matplotlib.rcParamsDefault["figure.dpi"])  # the report's own is that of SVG, which has no pixels
    return drawn


class Page:
    """A page of HTML, which a notebook shows in a frame."""

    def __init__(self, path: Path):
        self.path = path

    def __repr__(self) -> str:
        return f"<Page {self.path}>"

    def _repr_html_(self) -> Markup:
        return FRAME.format(self.path.read_text(encoding="utf-8"))


def report(run: Run) -> Page:
    """Returns the report of a run for the last line of a notebook's cell. It is the page that `snakemake` wrote.

    Raises:
        UserError: there is none in `reports/<run>`, beside `results`.
    Examples:
        >>> run = ffkv.open("results/tiny")
        >>> ffkv.write_report(run, "reports/tiny/index.html")
        >>> ffkv.report(run)
        <Page reports/tiny/index.html>
    """
    check_run(run)
    page = run.folder.parent.parent / "reports" / run.name / "index.html"
    if not is_file(page):
        raise UserError(
            f"{page} does not exist. `snakemake` writes it, and so does ffkv.write_report(run, {str(page)!r})."
        )
    return Page(page)
