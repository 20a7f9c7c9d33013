"""The list of the report's figures. It imports nothing heavy, because the workflow reads it at every start.

A new figure is a module `ffkv.run.report.<name>` with a `FIGURE`, and one line here.
"""

from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ffkv.run.report.figure import Figure


class Entry(NamedTuple):
    """One line of the list.

    Attributes:
        section: name of the page's section that shows the figure, which is also the name of its branch.
        title: the figure's heading.
        every_run: whether each run has the figure, so that the rule `report` promises its file.
    """

    section: str
    title: str
    every_run: bool = True


FIGURES = {
    "training": Entry("run", "Training of the embedded model", every_run=False),
    "figure_2": Entry("keys", "Patterns in trigger examples"),
    "figure_3": Entry("keys", "Removing a token from trigger examples"),
    "figure_4": Entry("values", "Agreement between values and trigger examples"),
    "figure_5": Entry("values", "Rank of the next token in the value's prediction"),
    "figure_6": Entry("values", "Agreement by the value's top probability"),
    "figure_7": Entry("composition", "Active memories"),
    "figure_8": Entry("composition", "Predictions that no single memory makes"),
    "figure_9": Entry("refinement", "The residual's prediction and the model's prediction"),
    "figure_10": Entry("refinement", "Probability of the model's prediction"),
    "figure_11": Entry("refinement", "Where a block's prediction comes from"),
    "interventions": Entry("intervention", "Removed memories beside their controls", every_run=False),
    "intervention_doses": Entry("intervention", "Scaled memories", every_run=False),
    "kept_memories": Entry("intervention", "How many memories make a prediction", every_run=False),
}


def load_figure(name: str) -> "Figure":
    """The figure that the module `ffkv.run.report.<name>` describes."""
    return import_module(f"ffkv.run.report.{name}").FIGURE
