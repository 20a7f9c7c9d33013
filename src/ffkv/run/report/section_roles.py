"""What the page shows and says about roles: the types of memories and their cosines by layer, and the signs of gates."""

from typing import Any

import pandas as pd
from matplotlib.figure import Figure as Drawing

from ffkv.run.report import drawing
from ffkv.run.report.curve import Curve, points
from ffkv.run.report.page_tables import whole_table
from ffkv.run.report.section import Caption, Figure, Section, TableBlock
from ffkv.run.report.wording import both, course, rows
from ffkv.run.results.run import Run
from ffkv.run.results.text import MINUS, decimals, number, percent

LABELS = {
    "key_value_cosine": "key and value",
    "gate_value_cosine": "gate and value",
    "gate_up_cosine": "gate and linear factor",
}
SHOWN = {
    "enrichment": ("enrichment", "conditional enrichment"),
    "depletion": ("depletion", "conditional depletion"),
    "proportional change": ("proportional change",),
    "atypical": (),
    "orthogonal output": ("orthogonal output",),
}


def _by_layer(run: Run, column: str) -> pd.DataFrame:
    return rows(run.files.details("roles/by_layer"), column=column).reset_index(drop=True)


def _types(run: Run) -> pd.DataFrame:
    """Returns how many memories of known type each layer has of each kind of types: layer, kind, memories, share."""
    table = run.files.details("roles/types")
    kinds = {name: kind for kind, names in SHOWN.items() for name in names}
    table = table[table["role"] != ""].assign(kind=lambda found: found["role"].map(kinds).fillna("atypical"))
    counts = table.groupby(["layer", "kind"], as_index=False)["memories"].sum()
    return counts.assign(share=counts["memories"] / counts.groupby("layer")["memories"].transform("sum"))


def draw(run: Run, paper: Any) -> Drawing:
    """Left, lines per layer: the median of each cosine, with the band of permuted memories. Right: the shares of types."""
    figure, (left, right) = drawing.canvas(2)
    layers, shades = len(run.anatomy.layers), drawing.colours(4)
    own = _by_layer(run, "key_value_cosine")
    left.fill_between(
        own["layer"], own["null_low"], own["null_high"], color="0.85", linewidth=0, label="95 % if permuted"
    )
    left.fill_between(
        own["layer"], own["low"], own["high"], color=shades[3], alpha=0.4, linewidth=0, label="95 % of memories"
    )
    for style, (column, label) in enumerate(LABELS.items()):
        table = _by_layer(run, column)
        if table["memories"].sum():
            look: Any = {"marker": drawing.MARKERS[style], "linestyle": drawing.LINES[style], "markersize": 4}
            left.plot(table["layer"], table["median"], color=shades[style], label=f"median, {label}", **look)
    left.set_ylabel("cosine")
    below: Any = 0.0
    shares = drawing.shares_by(_types(run), "kind", [*SHOWN], layers)
    palette = [*drawing.colours(len(SHOWN) - 1), drawing.PALE]
    for (kind, heights), colour in zip(shares.items(), palette, strict=True):
        right.bar(range(layers), heights, 0.8, below, label=kind, color=colour, edgecolor="white", linewidth=0.4)
        below = below + heights
    drawing.share_axis(right, "memories", whole=True)
    right.grid(False)
    for side, panel in (("left", left), ("right", right)):
        drawing.layer_axis(panel, layers)
        drawing.legend(figure, panel, side)
    return figure


def _caption(run: Run) -> Caption:
    own, types, threshold = _by_layer(run, "key_value_cosine"), _types(run), f"{run.settings.roles.threshold:g}"
    text = (
        "Left: the cosine of what a memory reads (its key) and what it writes (its value). The line is the median of a "
        "layer's memories, the coloured band holds 95 % of them, and the grey band 95 % of pairs of a key and another memory's "
        "value. Gated memories read two vectors: their key is what the linear factor reads, and lines show the cosines with "
        f"the gate, too. Right: the types of Gerstner and Schütze (2025). Enrichment: the cosine is above {threshold}, so that "
        f"the memory adds more of the direction that it reads. Depletion: it is below {MINUS}{threshold}. Of a gated "
        "memory the conditional types are counted with these: its gate reads another direction. Proportional change: the value is "
        "along what the gate reads. Atypical: the cosine of gate and key does not fit to the other two. A bias and the gain of a "
        "norm before the layer are left out of keys."
    )
    memories, significant = own["memories"].sum(), own["significant"].sum()
    if not memories:
        return Caption("The keys of this model are no plain matrices: no cosine is known.", text, "No cosine is known.")
    of = types.groupby("kind")["memories"].sum().reindex([*SHOWN], fill_value=0)
    shows = (
        f"{percent(significant / memories)} of {number(memories)} memories have a cosine of key and value that permuted memories "
        f"do not explain (q ≤ 0.05); {number(of['enrichment'])} memories enrich the direction that they read, "
        f"{number(of['depletion'])} deplete it."
    )
    description = (
        f"Lines and stacked bars per layer. Median cosine of key and value: {course(own, 'median', decimals)}."
    )
    return Caption(shows, text, description)


def summarize(run: Run, control: Run | None = None) -> list[str]:
    """Returns how many memories have a role that their weights alone tell."""

    def share(each: Run) -> str:
        own = _by_layer(each, "key_value_cosine")
        memories = own["memories"].sum()
        return percent(own["significant"].sum() / memories) if memories else "not known"

    median = both(lambda each: course(_by_layer(each, "key_value_cosine"), "median", decimals), run, control)
    return [
        f"Memories whose value is closer to their key, or more opposite to it, than values of other memories (q ≤ 0.05): "
        f"{both(share, run, control)}. Median cosine of key and value: {median}."
    ]


TABLES = (
    "Numbers of each column of roles/by_memory by layer: quantiles, and what chance gives. Ignored: share of the squared value in "
    "the directions that the head reads the least. Next and last in top and bottom: share of trigger examples whose next token, or "
    "whose own last token, is among the tokens that the value promotes or demotes. docs/roles.md defines them."
)


def _tables(run: Run) -> list[TableBlock]:
    folded = [
        ("Numbers by layer", whole_table("roles_by_layer", run.files.details("roles/by_layer"))),
        ("Types by layer", whole_table("roles_types", run.files.details("roles/types"))),
    ]
    cases = run.files.details("roles/sign_cases")
    if len(cases):
        folded.append(("Signs of both factors of gated memories, with an example", whole_table("sign_cases", cases)))
    return [TableBlock("roles-tables", "Roles in numbers", TABLES, None, folded)]


def _points(run: Run) -> pd.DataFrame:
    return points(_by_layer(run, "key_value_cosine"), "layer", "median", ("", ""))


SECTION = Section(
    {"memory_roles": Figure((), draw, _caption, (Curve("median, key and value", _points, share=False),))},
    summarize,
    after=_tables,
)
