"""The list of the report's figures. It imports nothing heavy, because the workflow reads it at every start.

A new figure stands in the section of its branch, and in the description of the branch.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from ffkv.base import doors
from ffkv.base.errors import UserError, one_line
from ffkv.base.terminal import plain, say
from ffkv.branches.branch import Branch, load
from ffkv.branches.registry import BRANCHES

if TYPE_CHECKING:
    from ffkv.run.report.section import Figure, Section
    from ffkv.run.results.run import Run


LACKS = "The page lacks"  # begins what the terminal is told of a part of a section that fails
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


@contextmanager
def excused(section: str, what: str) -> Iterator[list[str]]:
    """Lets `what` of a section of a package of others fail alone. The terminal is told, and the list that it yields has a sentence for the page.

    What a person can mend, such as a damaged file, is raised, and so is what fails in a section of ffkv.
    """
    failed: list[str] = []
    try:
        with doors.inside("branches", section, what):
            yield failed
    except Exception as error:
        from ffkv.base.fault import EXIT_CODE, explain  # only a fault needs it

        package, broken = doors.brought_by("branches", section), isinstance(error, doors.Unusable)
        if not package or (isinstance(error, UserError) and not broken):
            raise
        told, code = explain(error)
        if code != EXIT_CODE and not broken:  # the disk, the memory or the system failed, and not the package
            raise
        say(f"{LACKS} {what} of {section!r}. {told}", error=True)
        why = str(error) if broken else f"{type(error).__name__}: {one_line(error)}"
        failed.append(plain(f"The package {package} cannot make {what} of {section!r}. {why}"))


def load_figure(name: str) -> "Figure":
    """Loads a figure of the list."""
    with doors.inside("branches", FIGURES[name].section):
        if name not in (figures := load_section(FIGURES[name].section).figures):
            raise LookupError(f"its SECTION has no figure {name}, which its Branch names")
        return figures[name]


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
