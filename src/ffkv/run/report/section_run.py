"""What the page shows of the run itself: the training curve of the embedded model."""

from typing import Any

from matplotlib.figure import Figure as Drawing

from ffkv.base.settings import EMBEDDED
from ffkv.run.report import drawing
from ffkv.run.report.section import Caption, Figure, Section
from ffkv.run.report.wording import rows
from ffkv.run.results.run import Run
from ffkv.run.results.text import number

LOSS = "training"


def draw(run: Run, paper: Any) -> Drawing:
    """Lines by training step: the loss on both splits."""
    figure, (axes,) = drawing.canvas()
    for (split, losses), (line, shade) in zip(run.table(LOSS).groupby("split"), [(":", 0), ("-o", 2)], strict=False):
        axes.plot(losses["step"], losses["loss"], line, color=drawing.colours(4)[shade], label=split, markersize=4)
    axes.set_xlabel("training step")
    axes.set_ylabel("loss (nats per token)")
    drawing.legend(figure, axes)
    return figure


def caption(run: Run) -> Caption:
    """Names the length of the training and its result."""
    table = run.table(LOSS)
    last = rows(table, split="validation").iloc[-1]
    shows = f"At the end of the training, the perplexity on the validation documents is {number(last['perplexity'])}."
    text = (
        f"Loss of the model that this workflow trained: {number(table['step'].max())} steps, "
        f"{number(table['tokens'].max())} tokens."
    )
    return Caption(
        shows, text, f"Lines by training step. The validation loss ends at {number(last['loss'])} nats per token."
    )


TRAINING = Figure((LOSS,), draw, caption, applies=lambda run: run.settings.model.checkpoint == EMBEDDED)
SECTION = Section({"training": TRAINING})
