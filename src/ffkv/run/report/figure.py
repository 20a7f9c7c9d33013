"""The description of one figure of the report: its tables, its drawing and its caption."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from matplotlib.figure import Figure as Drawing

from ffkv.run.report.curve import Curve
from ffkv.run.results.run import Run


@dataclass(frozen=True)
class Caption:
    """The words of a figure."""

    text: str  # the caption. It can be understood without the rest of the page.
    description: str  # what there is to see, for readers who do not see it


@dataclass(frozen=True)
class Figure:
    """A figure of the report. `ffkv.run.report.registry` has its name, its section and its title."""

    tables: tuple[str, ...]  # names of the run's tables that the figure shows. The page offers each of them as a file.
    # draws the figure from a run and from the paper's own numbers, or None where these are not wanted
    draw: Callable[[Run, Any], Drawing]
    caption: Callable[[Run], Caption]  # writes the caption of a run's figure
    applies: Callable[[Run], bool] = lambda run: True  # whether a run has this figure
    # the lines that other runs can draw over it. All but those of the training have one.
    curves: tuple[Curve, ...] = ()
    more_tables: tuple[str, ...] = ()  # names of tables that it shows of runs that have them


@cache
def paper_numbers() -> dict[str, Any]:
    """Returns the numbers of the paper's own figures, by the name of the figure."""
    return json.loads(files("ffkv.run.report").joinpath("paper_figures.json").read_bytes())
