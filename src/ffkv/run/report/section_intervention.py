"""What the page shows and says about interventions: removed, scaled and kept memories."""

import math
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Drawing

from ffkv.base.multiple_tests import SIGNIFICANT
from ffkv.base.settings.runs import AUTO, NONE
from ffkv.run.report import drawing
from ffkv.run.report.curve import Curve, Units, by_layer, points
from ffkv.run.report.page_tables import data_table, specific_effects
from ffkv.run.report.section import Caption, Figure, Section, TableBlock
from ffkv.run.report.wording import INTERVALS, both, course, goes, rows, weighted_mean
from ffkv.run.results import indexes
from ffkv.run.results.run import Run
from ffkv.run.results.text import MINUS, number, percent

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


def draw_removals(run: Run, paper: Any) -> Drawing:
    """Draws two panels, direct and total effect: a line per layer for the memory's own removal and for each control."""
    table = run.table(BY_LAYER)
    figure, panels = drawing.canvas(2, sharey=True)
    for panel, (reach, title) in zip(panels, REACHES.items(), strict=True):
        for style, (source, label) in enumerate(SOURCES.items()):
            found = rows(table, side="positive", reach=reach, source=source).dropna(subset=["mean"])
            if len(found):
                drawing.curve(panel, found, "mean", label, style, len(SOURCES))
        panel.set_title(title)
        panel.axhline(0, **NO_EFFECT)
        drawing.layer_axis(panel, len(run.anatomy.layers))
    panels[0].set_ylabel("change of log p (nats)")
    drawing.end_at_points(*panels)
    drawing.legend(figure, panels[0])
    return figure


def _caption_removals(run: Run) -> Caption:
    table, settings = run.table(BY_LAYER), run.settings.intervention
    own = rows(table, source="own", reach="total")
    positive = rows(own, side="positive")
    placebo = rows(table, source="placebo", reach="total", side="positive")["memories"].sum()
    lacking = int(positive["memories"].sum()) - int(placebo)
    without = f" {number(lacking)} memories have none: their coefficients on other prefixes are larger, or exactly 0."
    without = without if lacking else ""
    text = (
        f"The coefficient of a memory is set to 0 at the last token of {number(settings.examples)} of its trigger examples. "
        f"The mean change of the log-probabilities of the {number(settings.tokens)} top tokens of its value is shown, over "
        f"{number(positive['memories'].sum())} random memories. Direct effect: the contribution is taken out of what the head "
        "reads. Total effect: the blocks after the layer run again. Controls, on the same prefixes and tokens: a vector as long "
        f"as the contribution is taken out along {number(settings.controls)} other memories of the layer, or along random "
        "directions; or other memories whose contributions are about as long are removed. Placebo: the memory is removed "
        f"from prefixes on which it is nearly silent: its coefficient is at most {percent(settings.silent_below)} of its mean on its "
        f"own, and not 0, so that a small effect is possible.{without} {INTERVALS} {number(own['significant'].sum())} of "
        f"{number(own['memories'].sum())} memories{' (each sign counts)' if len(own) > len(positive) else ''} have a total "
        f"effect that random memories do not have (false discovery rate {SIGNIFICANT} per layer).{_least(own, settings.controls)}"
    )
    if len(own) > len(positive):
        text += " The figure shows positive coefficients. The data has negative ones too: their effects have the other sign."
    shows = (
        f"The total effect of the removal of a memory {goes(positive, 'mean', nats)}; it is the memory's own in "
        f"{number(own['significant'].sum())} of {number(own['memories'].sum())} memories."
    )
    return Caption(shows, text, f"Lines by layer. Total effect of the removal: {course(positive, 'mean', nats)}.")


def _least(own: pd.DataFrame, controls: int) -> str:
    """Says, with a space in front, how many memories of a layer must have the smallest possible p-value; else empty.

    By Benjamini and Hochberg, k of n p-values are significant if they are up to k / n times the false discovery rate.
    """
    tests = int(own.groupby("layer")["memories"].sum().max()) if len(own) else 0
    least = math.ceil(round(tests / (SIGNIFICANT * (controls + 1)), 9))
    if least <= 1:
        return ""
    return (
        f" A p-value is at least 1/{controls + 1}. So of {tests} tests of a layer, {least} or more are significant, or none is:"
        " fewer memories need more controls."
    )


def nats(effect: float) -> str:
    """Returns a change of a log-probability, in words; a dash for NaN."""
    return "–" if np.isnan(effect) else f"{effect:.3g} nats".replace("-", MINUS)


def _effect_curve(reach: str) -> Curve:
    def numbers(run: Run) -> pd.DataFrame:
        found = rows(indexes.effects_by_memory(run.files), side="positive", reach=reach)
        return pd.DataFrame({"layer": found["layer"], "unit": found["memory"], "value": found["own"]})

    points = by_layer(BY_LAYER, "mean", side="positive", reach=reach, source="own")
    panel = [*REACHES].index(reach)
    return Curve(
        f"{REACHES[reach]} of removal (nats)", points, share=False, panel=panel, units=Units("memories", numbers)
    )


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
            drawing.intervals(panel, found["scale"], found, "top", colour)
        panel.set_title(f"{side} coefficients")
        panel.set_xlabel("factor of the coefficient")
        panel.axhline(0, **NO_EFFECT)
    panels[0].set_ylabel("change of log p (nats)")
    drawing.end_at_points(*panels)
    drawing.legend(figure, panels[0])
    return figure


def _caption_doses(run: Run) -> Caption:
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
    effects = ", ".join(f"{nats(row.top)} at {row.scale:g}" for row in rows(table, change="scale").itertuples())
    shows = f"The total effect by the factor of the coefficient is {effects or 'not known'}."
    return Caption(shows, text, f"Lines by factor. Total effect: {effects or 'nothing to show'}.")


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


def _caption_kept(run: Run) -> Caption:
    table = run.table(KEPT)
    none = rows(table, choice="largest", kept=int(table["kept"].min()))
    text = (
        "How often the model still predicts the same token if only some memories of one layer keep their coefficients, and "
        "those of all others become their means over the corpus. Everything else stays as it is, and the blocks after the "
        f"layer run again. {number(table['prefixes'].max())} validation prefixes; bands are 95 % intervals. Left: the memories "
        "with the largest contributions |m|·‖v‖ on the prefix are kept. Right: random ones of those that are not silent. With "
        f"{number(none['kept'].max())} memories, the share of predictions that stay: {course(none, 'share')}. Figure 7's "
        "effective number counts contributions; this figure shows what they cause. The data has every layer and the divergence KL(p‖p′)."
    )
    if run.settings.report.control not in (AUTO, NONE):
        text += " The line of the control is the mean over its layers."
    shows = f"With {number(none['kept'].max())} memories of a layer, the share of predictions that stay {goes(none, 'share')}."
    return Caption(shows, text, f"Lines over the number of kept memories. With the fewest: {course(none, 'share')}.")


def _kept_curve(panel: int, choice: str) -> Curve:
    def by_number(run: Run) -> pd.DataFrame:
        means = rows(run.table(KEPT), choice=choice).groupby("kept", as_index=False)["share"].mean()
        return points(means, "kept", "share")

    label = f"predictions that stay, {choice} kept, mean over the layers"
    return Curve(label, by_number, "memories kept", panel=panel)


SPECIFIC = (
    "The memories with the largest specific effects. “Own” is the total effect of the removal on the top tokens of the value. "
    "“Others” is the mean effect of vectors of the same length along other memories of the layer. The specific effect is the "
    "difference. “q” is the p-value of the removal among these controls, adjusted for all memories of the layer. “Changed” is "
    "the share of prefixes in which the model then predicts another token. Memories whose effect is significant, with q up to "
    f"{SIGNIFICANT}, come first; the others are grey."
)


def summarize(run: Run, control: Run | None = None) -> list[str]:
    """Returns what the removal of memories does, beside that of equally long vectors."""

    def total(each: Run, source: str) -> pd.DataFrame:
        return rows(each.table(BY_LAYER), reach="total", side="positive", source=source)

    def mean(source: str) -> str:
        return both(lambda each: nats(weighted_mean(total(each, source), "mean", "memories")), run, control)

    def significant(each: Run) -> str:
        own = total(each, "own")
        return f"{number(own['significant'].sum())} of {number(own['memories'].sum())} memories"

    return [
        "When a memory is removed from its trigger examples, the log-probabilities of its value's top tokens change by "
        f"{mean('own')} on average. Vectors of equal length along other memories change them by {mean('random_memories')}. The "
        f"effect is the memory's own in {both(significant, run, control)}."
    ]


def _specific(run: Run) -> list[TableBlock]:
    folded = [("All columns", data_table(run, "intervention_memories"))]
    heading = "Memories with the largest specific effects"
    return [TableBlock("specific", heading, SPECIFIC, specific_effects(run), folded)]


def _by_factor(run: Run) -> pd.DataFrame:
    table = rows(run.table(BY_DOSE), layer=-1, change="scale", side="positive", reach="total").sort_values("scale")
    return points(table, "scale", "top")


DOSE_CURVE = Curve("total effect (nats)", _by_factor, "factor of the coefficient", share=False)
KEPT_CURVES = (_kept_curve(0, "largest"), _kept_curve(1, "random"))
SECTION = Section(
    {
        "interventions": Figure((BY_LAYER,), draw_removals, _caption_removals, (*map(_effect_curve, REACHES),)),
        "intervention_doses": Figure((BY_DOSE,), draw_doses, _caption_doses, (DOSE_CURVE,)),
        "kept_memories": Figure((KEPT,), draw_kept, _caption_kept, KEPT_CURVES),
    },
    summarize,
    after=_specific,
)
