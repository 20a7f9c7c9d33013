"""What the page shows and says about roles: the types of memories and their cosines by layer, and the signs of gates."""

from dataclasses import replace
from typing import Any

import pandas as pd
from matplotlib.figure import Figure as Drawing

from ffkv.run.report import drawing
from ffkv.run.report.curve import Curve, points
from ffkv.run.report.page_tables import whole_table
from ffkv.run.report.section import Figure, Section, TableBlock, caption, numbers
from ffkv.run.report.wording import course, note, rows
from ffkv.run.results.run import Run
from ffkv.run.results.text import percent, rounded

KEY_VALUE = "key_value_cosine"
LABELS = {KEY_VALUE: "key and value", "gate_value_cosine": "gate and value", "gate_up_cosine": "gate and linear factor"}
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
    own = _by_layer(run, KEY_VALUE)
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


def _share(run: Run) -> str:
    own = _by_layer(run, KEY_VALUE)
    memories = own["memories"].sum()
    return percent(own["significant"].sum() / memories) if memories else "not known"


def _counted(run: Run) -> dict[str, Any]:
    """Returns what the caption has: how many memories are known, their share, their cosine, and how many are of each kind."""
    kinds = _types(run).groupby("kind")["memories"].sum().reindex([*SHOWN], fill_value=0)
    memories = _by_layer(run, KEY_VALUE)["memories"].sum()
    told: dict[str, Any] = {"share": _share, "median": lambda run: course(_by_layer(run, KEY_VALUE), "median", rounded)}
    return {"memories": memories, "kinds": kinds, **told}


def _tables(run: Run) -> list[TableBlock]:
    named = {
        "by_layer": "Numbers by layer",
        "types": "Types by layer",
        "sign_cases": "Signs of both factors of gated memories, with an example",
    }
    found = {name: run.files.details(f"roles/{name}") for name in named}
    folded = [
        (named[name], replace(whole_table(f"roles_{name}", table), file=f"roles/{name}"))
        for name, table in found.items()
        if len(table)
    ]
    text, more = note(__package__, "tables"), note(__package__, "columns")
    return [TableBlock("roles-tables", "Roles in numbers", text, folded=folded, more=more)]


CURVE = Curve(
    "median, key and value", lambda run: points(_by_layer(run, KEY_VALUE), "layer", "median", ("", "")), share=False
)
SECTION = Section(
    {"memory_roles": Figure((), draw, caption(__package__, "memory_roles", _counted), (CURVE,))},
    numbers(__package__, share=_share, median=lambda run: rounded(_by_layer(run, KEY_VALUE)["median"].mean())),
    after=_tables,
)
