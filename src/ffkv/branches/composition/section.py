"""What the page shows and says about composition: figures 7 and 8."""

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure as Drawing
from matplotlib.ticker import MaxNLocator

from ffkv.run.report import drawing
from ffkv.run.report.curve import Curve, Line, Panel, Units, by_layer, by_prefix
from ffkv.run.report.section import Figure, Section, caption, figure_of_lines, numbers
from ffkv.run.results.run import Run

ACTIVE, EFFECTIVE = "figure_7_active_memories", "figure_7_effective_number"
NO_AGREEMENT, CASES = "figure_8_no_agreement", "figure_8_agreement_cases"


def draw_active(run: Run, paper: Sequence[float] | None) -> Drawing:
    """Left, boxes per layer: the share of active memories. Right, lines per layer: the number that carries the sum."""
    active, effective = run.table(ACTIVE), run.table(EFFECTIVE)
    figure, (left, right) = drawing.canvas(2)
    drawing.boxes(left, active)
    if paper:
        drawing.paper_curve(left, paper, len(run.anatomy.layers), "the paper's median")
    drawing.share_axis(left, "active memories of the layer")
    x, dark, light = effective["layer"], drawing.colours(4)[1], drawing.colours(4)[3]
    right.fill_between(x, effective["effective_q1"], effective["effective_q3"], color=light, alpha=0.5, linewidth=0)
    right.plot(x, effective["effective_median"], color=dark, marker="o", label="effective number")
    ratio_style: dict[str, Any] = {"color": "black", "marker": "s", "linestyle": "--", "markerfacecolor": "white"}
    right.plot(x, effective["participation_median"], label="participation ratio", **ratio_style)
    right.set_ylim(0, None)
    right.yaxis.set_major_locator(MaxNLocator(integer=True))
    right.set_ylabel("memories that carry the sum")
    for panel in (left, right):
        drawing.layer_axis(panel, len(run.anatomy.layers))
    drawing.legend(figure, left, "left")
    drawing.legend(figure, right, "right")
    return figure


def _line(reading: str, label: str, agreeing: str) -> Line:
    return Line(label, NO_AGREEMENT, "share", {"reading": reading}, curve=label, units=none_agrees(agreeing))


def none_agrees(agreeing: str) -> Units:
    """Returns of each prefix and layer whether no memory agrees, by the column that counts those that do, -1 for none."""
    found = by_prefix("composition/by_prefix", lambda table: (table[agreeing] == 0).where(table[agreeing] >= 0))
    return found._replace(numbers=lambda run: found.numbers(run).dropna())


SHARE, NUMBER = (by_prefix("composition/by_prefix", name, median=True) for name in ("share", "effective"))
EFFECTIVE_NUMBER = by_layer(EFFECTIVE, "effective_median")
ACTIVE_CURVES = (
    Curve("median share of active memories", by_layer(ACTIVE, "median"), units=SHARE),
    Curve("median effective number of memories", EFFECTIVE_NUMBER, share=False, panel=1, units=NUMBER),
)
NONE_AGREES = (_line("active", "no active memory agrees", "agreeing"), _line("all", "no memory agrees", "agreeing_all"))
SECTION = Section(
    {
        "figure_7": Figure(
            (ACTIVE, EFFECTIVE),
            draw_active,
            caption(
                __package__,
                "figure_7",
                lambda run: {
                    "experts": any(each.experts for layer in run.anatomy.layers for each in layer.second_matrices)
                },
            ),
            ACTIVE_CURVES,
        ),
        "figure_8": figure_of_lines(
            [Panel(NONE_AGREES, "prefixes", percentages=True, limits=(0, 1))],
            caption(__package__, "figure_8"),
            (CASES,),
        ),
    },
    numbers(__package__),
)
