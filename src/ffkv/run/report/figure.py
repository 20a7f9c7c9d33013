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
    """The words of a figure.

    Attributes:
        text: the caption. It can be understood without the rest of the page.
        description: what there is to see, for readers who do not see it.
    """

    text: str
    description: str


@dataclass(frozen=True)
class Figure:
    """A figure of the report. `ffkv.run.report.registry` has its name, its section and its title.

    Attributes:
        tables: names of the run's tables that the figure shows. The page offers each of them as a file.
        draw: draws the figure from a run and from the paper's own numbers, or None where these are not wanted.
        caption: writes the caption of a run's figure.
        applies: whether a run has this figure.
        curves: the lines that other runs can draw over it. All but those of the training have one.
        more_tables: names of tables that it shows of runs that have them.
    """

    tables: tuple[str, ...]
    draw: Callable[[Run, Any], Drawing]
    caption: Callable[[Run], Caption]
    applies: Callable[[Run], bool] = lambda run: True
    curves: tuple[Curve, ...] = ()
    more_tables: tuple[str, ...] = ()


@cache
def paper_numbers() -> dict[str, Any]:
    """Returns the numbers of the paper's own figures, by the name of the figure."""
    return json.loads(files("ffkv.run.report").joinpath("paper_figures.json").read_text())
