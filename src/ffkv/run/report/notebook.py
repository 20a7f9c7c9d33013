"""Figures and the page of a run for a notebook."""

import importlib
from pathlib import Path

import matplotlib
from markupsafe import Markup
from matplotlib.figure import Figure

from ffkv.base.errors import UserError
from ffkv.base.lookup import is_file
from ffkv.run.report import drawing
from ffkv.run.report.control import draw_control, open_control
from ffkv.run.report.registry import FIGURES, has_figure, load_figure
from ffkv.run.report.sections import paper_numbers
from ffkv.run.results.run import Run, check_run
from ffkv.run.results.run_files import unknown

FRAME = Markup('<iframe srcdoc="{}" style="width: 100%; height: 90vh; border: 0"></iframe>')


def figure(run: Run, name: str) -> Figure:
    """Draws a figure of the report. A notebook shows it, and `figure.savefig` saves it in any format.

    Args:
        run: a finished run.
        name: the figure's name, such as "figure_4", that of its file in `reports/<run>/figures`.
    Raises:
        UserError: the run has no such figure; lists those that it has. Or a file of the run is missing or damaged.
    Examples:
        >>> figure = ffkv.figure(ffkv.open("results/tiny"), "figure_4")
        >>> figure.axes[0].get_xlabel()
        'layer'
        >>> figure.savefig("figure_4.png")
    """
    check_run(run)
    names = [each for each in FIGURES if has_figure(run, each)]
    if name not in names:
        raise unknown(f"figure of {run.name} called", name, names)
    importlib.import_module("matplotlib.pyplot")  # only then do notebooks show figures
    paper, control = paper_numbers() if run.settings.report.paper_curves else {}, open_control(run)
    with drawing.look():
        drawn = load_figure(name).draw(run, paper.get(name))
        if control is not None and has_figure(control, name):
            draw_control(drawn, load_figure(name).curves, control)
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
