"""What the page shows and says about interventions: removed, scaled and kept memories."""

import functools
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Drawing

from ffkv.base.multiple_tests import SIGNIFICANT, fewest_significant
from ffkv.run.report import drawing
from ffkv.run.report.curve import Curve, Line, Panel, Units, points
from ffkv.run.report.page_tables import data_table, specific_effects
from ffkv.run.report.section import Figure, Section, TableBlock, caption, figure_of_lines, numbers
from ffkv.run.report.wording import note, rows, weighted_mean
from ffkv.run.results import indexes
from ffkv.run.results.run import Run
from ffkv.run.results.text import number, rounded

BY_LAYER, BY_DOSE, KEPT = "interventions_by_layer", "intervention_doses", "kept_memories"
NO_EFFECT: dict[str, Any] = {"color": "0.6", "linewidth": 0.8, "zorder": 0}  # the look of its line
SOURCES = {
    "own": "the memory is removed",
    "random_memories": "random memories, equal length",
    "random_directions": "random directions, equal length",
    "similar_size": "others of about this size removed",
    "placebo": "removed where it is nearly silent",
}
REACHES = {"direct": "direct effect", "total": "total effect"}


def _removed(run: Run) -> dict[str, Any]:
    """Returns what the caption of removals has beside tables: how many memories show an effect, and how many may."""
    own, controls = rows(run.table(BY_LAYER), source="own", reach="total"), _controls(run)
    shown = functools.partial(_shown, controls=controls)
    return {"own": own, "controls": controls, "least": _least(own, controls), "shown": shown, **WORDS}


def _controls(run: Run) -> int:
    """Returns how many random memories each memory is compared with at least: a layer may have fewer than the setting asks for."""
    return min(run.settings.intervention.controls, *(layer.memories - 1 for layer in run.anatomy.layers))


def _shown(own: pd.DataFrame, controls: int, what: str = "memories") -> str:
    """Returns how many memories, or removals, have a q-value up to 0.05, from rows of `BY_LAYER`; or that none can have one."""
    if (controls + 1) * SIGNIFICANT < 1:
        return f"no memory, as {number(controls)} controls cannot show it"
    return f"{number(own['significant'].sum())} of {number(own['memories'].sum())} {what}"


def _least(own: pd.DataFrame, controls: int) -> str:
    """Says how many memories of a layer must have the smallest possible p-value; else empty."""
    tests = int(own.groupby("layer")["memories"].sum().max()) if len(own) else 0
    least, lowest = fewest_significant(tests, controls), min(1, tests / (controls + 1))
    numbers = {"draws": controls + 1, "lowest": lowest, "tests": tests, "least": least}
    return note(__package__, "least", **numbers) if 1 < least <= tests else ""


def nats(effect: float) -> str:
    """Returns a change of a log-probability, in words; a dash for NaN."""
    return "–" if np.isnan(effect) else f"{rounded(effect)} nats"


def _removals(reach: str, axis: str) -> Panel:
    """Returns a line for the memory's own removal, and one for each control."""

    def numbers(run: Run) -> pd.DataFrame:
        found = rows(indexes.effects_by_memory(run.files), side="positive", reach=reach)
        return pd.DataFrame({"layer": found["layer"], "unit": found["memory"], "value": found["own"]})

    def line(source: str, **own: Any) -> Line:
        of = {"side": "positive", "reach": reach, "source": source}
        return Line(SOURCES[source], BY_LAYER, "mean", of, share=False, **own)

    own = line("own", curve=f"{REACHES[reach]} of removal (nats)", units=Units("memories", numbers))
    lines = [own, *(line(source) for source in SOURCES if source != "own")]
    return Panel(lines, axis, REACHES[reach], zero=NO_EFFECT, sparse=True)


def draw_doses(run: Run, paper: Any) -> Drawing:
    """Draws a panel for positive and one for negative coefficients, if there are any: the effect by factor."""
    table = rows(run.table(BY_DOSE), layer=-1, change="scale")
    sides = [*dict.fromkeys(table["side"])]
    figure, panels = drawing.canvas(max(1, len(sides)), sharey=True)
    for panel, side in zip(panels, sorted(sides, reverse=True)):
        for style, (reach, label) in enumerate(REACHES.items()):
            found = rows(table, side=side, reach=reach).sort_values("scale")
            x, y = [*found["scale"], 1], [*found["top"], 0]  # a factor of 1 changes nothing
            order, colour = np.argsort(x), drawing.colours(3)[style]
            look = {"ls": drawing.LINES[style], "ms": 5, "color": colour, "label": label}
            panel.plot(np.take(x, order), np.take(y, order), drawing.MARKERS[style], **look)
            drawing.intervals(panel, found["scale"], found, "top", colour, label)
        panel.set_title(f"{side} coefficients")
        panel.set_xlabel("factor of the coefficient")
        panel.axhline(0, label="_zero", **NO_EFFECT)
    panels[0].set_ylabel("change of log p (nats)")
    drawing.end_at_points(*panels)
    drawing.legend(figure, panels[0])
    return figure


def draw_kept(run: Run, paper: Any) -> Drawing:
    """Draws two panels, for the largest and for random memories: a line per layer over the number of kept memories."""
    table = run.table(KEPT)
    layers = drawing.shown_layers(int(table["layer"].max()))
    figure, panels = drawing.canvas(2, sharey=True)
    for panel, choice, title in zip(panels, ("largest", "random"), ("largest contributions kept", "random ones kept")):
        for style, layer in enumerate(layers):
            found = rows(table, choice=choice, layer=layer)
            colour = drawing.colours(len(layers) + 1)[style]
            look = {"ls": drawing.LINES[style], "ms": 5, "color": colour, "label": f"layer {layer}"}
            panel.plot(found["kept"], found["share"], drawing.MARKERS[style], **look)
            panel.fill_between(found["kept"], found["low"], found["high"], color=colour, alpha=0.12, linewidth=0)
        panel.set_title(title)
        drawing.count_axis(panel, "memories kept")
    drawing.share_axis(panels[0], "predictions that stay", whole=True)
    drawing.legend(figure, panels[0])
    return figure


def _kept_curve(panel: int, choice: str) -> Curve:
    def by_number(run: Run) -> pd.DataFrame:
        means = rows(run.table(KEPT), choice=choice).groupby("kept", as_index=False)["share"].mean()
        return points(means, "kept", "share")

    label = f"predictions that stay, {choice} kept, mean over the layers"
    return Curve(label, by_number, "memories kept", panel=panel)


def _total(run: Run, source: str) -> pd.DataFrame:
    return rows(run.table(BY_LAYER), reach="total", side="positive", source=source)


def _mean(run: Run, source: str) -> str:
    return nats(weighted_mean(_total(run, source), "mean", "memories"))


def _specific(run: Run) -> list[TableBlock]:
    folded = [("All columns", data_table(run, "intervention_memories"))]
    text, more = (note(__package__, name, **WORDS) for name in ("specific", "specific_more"))
    heading = "Memories with the largest specific effects"
    return [TableBlock("specific", heading, text, specific_effects(run), folded, more=more)]


def _by_factor(run: Run) -> pd.DataFrame:
    table = rows(run.table(BY_DOSE), layer=-1, change="scale", side="positive", reach="total").sort_values("scale")
    return points(table, "scale", "top")


WORDS = {"nats": nats, "rate": SIGNIFICANT}  # what all texts of the section have
REMOVALS = [_removals("direct", "change of log p (nats)"), _removals("total", "")]
DOSE_CURVE = Curve("total effect (nats)", _by_factor, "factor of the coefficient", share=False)
KEPT_CURVES = (_kept_curve(0, "largest"), _kept_curve(1, "random"))
SECTION = Section(
    {
        "interventions": figure_of_lines(REMOVALS, caption(__package__, "interventions", _removed), one_axis=True),
        "intervention_doses": Figure(
            (BY_DOSE,), draw_doses, caption(__package__, "intervention_doses", lambda run: WORDS), (DOSE_CURVE,)
        ),
        "kept_memories": Figure((KEPT,), draw_kept, caption(__package__, "kept_memories"), KEPT_CURVES),
    },
    numbers(__package__, mean=_mean, shown=lambda run: _shown(_total(run, "own"), _controls(run)), **WORDS),
    after=_specific,
)
