"""What a memory's coefficient does when it is scaled: the dose curve."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Drawing

from ffkv.run.report.curve import Curve, points
from ffkv.run.report.drawing import LINES, MARKERS, canvas, colours, intervals, legend
from ffkv.run.report.figure import Caption, Figure
from ffkv.run.report.interventions import REACHES, finish_effects, nats
from ffkv.run.report.wording import INTERVALS, rows
from ffkv.run.results.run import Run
from ffkv.run.results.text import number

BY_DOSE = "intervention_doses"


def draw(run: Run, paper: Any) -> Drawing:
    """Draws a panel for positive and one for negative coefficients, if there are any: the effect by factor."""
    table = rows(run.table(BY_DOSE), layer=-1, change="scale")
    sides = [*dict.fromkeys(table["side"])]
    figure, panels = canvas(max(1, len(sides)), sharey=True)
    for panel, side in zip(panels, sorted(sides, reverse=True)):
        for style, (reach, label) in enumerate(REACHES.items()):
            found = rows(table, side=side, reach=reach).sort_values("scale")
            x, y = [*found["scale"], 1], [*found["top"], 0]  # a factor of 1 changes nothing
            order, colour = np.argsort(x), colours(3)[style]
            look = {"ls": LINES[style], "ms": 5, "color": colour, "label": label}
            panel.plot(np.take(x, order), np.take(y, order), MARKERS[style], **look)
            intervals(panel, found["scale"], found, "top", colour)
        panel.set_title(f"{side} coefficients")
        panel.set_xlabel("factor of the coefficient")
        finish_effects(panel)
    panels[0].set_ylabel("change of log p (nats)")
    legend(figure, panels[0])
    return figure


def caption(run: Run) -> Caption:
    """Says what is scaled, and what the corpus mean does."""
    table = rows(run.table(BY_DOSE), layer=-1, side="positive", reach="total")
    mean, removed = rows(table, change="mean"), rows(table, change="scale", scale=0)
    text = (
        "The coefficient of a memory is multiplied at the last token of its trigger examples, and the mean change of the "
        "log-probabilities of its value's top tokens is shown, over the memories of all layers. A factor of 0 removes the "
        f"memory, a factor of 1 changes nothing. {INTERVALS}"
    )
    if len(mean) and len(removed):
        text += (
            f" If the coefficient becomes its mean over the corpus, the total effect is {nats(mean['top'].iloc[0])}; if it "
            f"becomes 0, {nats(removed['top'].iloc[0])}. The removal changes the prediction in "
            f"{number(100 * removed['changed'].iloc[0])} % of prefixes."
        )
    effects = ", ".join(f"{nats(row.top)} at {number(row.scale)}" for row in rows(table, change="scale").itertuples())
    return Caption(text, f"Lines by factor. Total effect: {effects or 'nothing to show'}.")


def _by_factor(run: Run) -> pd.DataFrame:
    table = rows(run.table(BY_DOSE), layer=-1, change="scale", side="positive", reach="total").sort_values("scale")
    return points(table, "scale", "top")


CURVE = Curve("total effect (nats)", _by_factor, "factor of the coefficient", share=False)
FIGURE = Figure((BY_DOSE,), draw, caption, curves=(CURVE,))
