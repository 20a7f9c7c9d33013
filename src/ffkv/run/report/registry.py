"""The list of the report's figures. It imports nothing heavy, because the workflow reads it at every start.

A new figure stands in the module of its section, and in the description of its branch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from ffkv.branches.branch import Branch
from ffkv.branches.registry import BRANCHES

if TYPE_CHECKING:
    from ffkv.run.report.section import Figure, Section
    from ffkv.run.results.run import Run


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
    return import_module(f"ffkv.run.report.section_{name}").SECTION


def load_figure(name: str) -> "Figure":
    """Loads a figure of the list."""
    return load_section(FIGURES[name].section).figures[name]


def branches_of(run: "Run") -> list[Branch]:
    """Returns the branches that a run has, in the order of the report."""
    return [branch for branch in BRANCHES.values() if branch.is_in(run.settings)]


def has_figure(run: "Run", name: str) -> bool:
    """Tells whether a run has a figure: it has its branch, and the figure applies to it."""
    section = FIGURES[name].section
    in_branch = section not in BRANCHES or BRANCHES[section].is_in(run.settings)
    return in_branch and load_figure(name).applies(run)
