"""The list of the report's figures. It imports nothing heavy, because the workflow reads it at every start.

A new figure stands in the section of its branch, and in the description of the branch.
"""

from typing import TYPE_CHECKING, NamedTuple

from ffkv.base import doors
from ffkv.branches.branch import Branch, load
from ffkv.branches.registry import BRANCHES

if TYPE_CHECKING:
    from ffkv.run.report.section import Figure, Section
    from ffkv.run.results.run import Run


OF_RUN = "ffkv.run.report.section:SECTION"


class Entry(NamedTuple):
    """One line of the list."""

    section: str  # name of the page's section that shows the figure, which is also the name of its branch
    title: str  # the figure's heading
    every_run: bool = True  # whether each run has the figure, so that the rule `report` promises its file


FIGURES = {
    "training": Entry("run", "Training of the embedded model", every_run=False),
    **{
        name: Entry(branch.name, title, every_run=branch.applies is None)
        for branch in BRANCHES.values()
        for name, title in branch.figures.items()
    },
}


def load_section(name: str) -> "Section":
    """Loads the section of a branch, or of the run itself ("run")."""
    if name in doors.entries("branches") and name in BRANCHES:
        return doors.load("branches", name, BRANCHES[name].section, "ffkv.run.report.section:Section")
    return load(BRANCHES[name].section if name in BRANCHES else OF_RUN)


def load_figure(name: str) -> "Figure":
    """Loads a figure of the list."""
    with doors.inside("branches", FIGURES[name].section):
        return load_section(FIGURES[name].section).figures[name]


def branches_of(run: "Run") -> list[Branch]:
    """Returns the branches of a run that have a section, in the order of the report."""
    return [branch for branch in BRANCHES.values() if branch.section and branch.is_in(run.settings)]


def has_figure(run: "Run", name: str) -> bool:
    """Tells whether a run has a figure: it has its branch and its tables, and the figure applies to it."""
    section = FIGURES[name].section
    if section in BRANCHES and not BRANCHES[section].is_in(run.settings):
        return False
    figure = load_figure(name)
    absent = [table for table in figure.tables if table not in run.tables] if run.files.unmeasured else []
    return figure.applies(run) and not absent
