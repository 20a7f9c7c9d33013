"""The sections of the page: the words, the figures and the tables of each branch."""

import json
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import Any

from ffkv.run.report import drawing
from ffkv.run.report.control import about_control, about_text, describe_control, draw_control, name_control
from ffkv.run.report.page_tables import data_table
from ffkv.run.report.registry import FIGURES, branches_of, has_figure, load_figure, load_section
from ffkv.run.report.section import Exhibit
from ffkv.run.report.svg import write_svg
from ffkv.run.report.wording import short_name
from ffkv.run.results.run import Run


@cache
def paper_numbers() -> dict[str, Any]:
    """Returns the numbers of the paper's own figures, by the name of the figure."""
    return json.loads(files("ffkv.run.report").joinpath("paper_figures.json").read_bytes())


def draw_exhibits(run: Run, control: Run | None = None) -> dict[str, Exhibit]:
    """Draws the figures that the run has, in the order of the registry: name to figure. A control run is grey."""
    paper = paper_numbers() if run.settings.report.paper_curves else {}
    exhibits = {}
    with drawing.look():
        for name in FIGURES:
            if not has_figure(run, name):
                continue
            figure = load_figure(name)
            heading, caption = heading_of(name), figure.caption(run)
            drawn = figure.draw(run, paper.get(name))
            if control is not None and has_figure(control, name) and draw_control(drawn, figure.curves, control):
                beside = f"{caption.shows} ({short_name(control)}: {figure.caption(control).shows})"
                caption = replace(caption, shows=beside, text=f"{caption.text} {describe_control(control)}")
            svg = write_svg(drawn, name, heading, caption.description)
            more = [table for table in figure.more_tables if table in run.tables]
            tables = [data_table(run, table) for table in [*figure.tables, *more]]
            of_paper = name.replace("_", " ") if name.startswith("figure_") else ""
            exhibits[name] = Exhibit(name, heading, caption, svg, tables, f"figures/{name}.svg", of_paper)
    return exhibits


def heading_of(name: str) -> str:
    """Number and title of a figure."""
    number = name.replace("figure_", "Figure ") + ". " if name.startswith("figure_") else ""
    return number + FIGURES[name].title


def arrange(run: Run, exhibits: dict[str, Exhibit]) -> list[dict[str, Any]]:
    """Returns the sections of the page, one per branch: the branch, its figures, and the tables before and after."""
    sections = []
    for branch in branches_of(run):
        section, drawn = load_section(branch.name), of_section(branch.name, exhibits)
        tables = {"before": section.before(run), "after": section.after(run)}
        sections.append({"branch": branch, "exhibits": drawn, **tables})
    return sections


def summary(run: Run, control: Run | None = None) -> list[str]:
    """Returns the main numbers, one paragraph per question, in the order of the branches; and what the control is."""
    told = [said for branch in branches_of(run) for said in load_section(branch.name).summary(run, control)]
    paragraphs = [f"{said}{about_control(run, control)}" for said in told]
    if control is None:
        return paragraphs
    return [*paragraphs, f"In brackets: {name_control(control)}.{about_text(run, control)}"]


def of_section(section: str, exhibits: dict[str, Exhibit]) -> list[Exhibit]:
    """Returns the figures of one section."""
    return [exhibit for name, exhibit in exhibits.items() if FIGURES[name].section == section]
