"""The drawing of a graph: tokens from left to right, layers from below, a mark per node with its pattern and the token
that it pushes towards.

The nodes of a behaviour are at no token: those of a layer stand beside each other. Their marks are the fuller the more stable they
are, and lines that are not stable are broken.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from unicodedata import east_asian_width

import numpy as np
import pandas as pd
from markupsafe import Markup

from ffkv.base.terminal import plain
from ffkv.branches.behaviours.words import ANSWER
from ffkv.run.results.text import BLANK, number, percent, shortened

if TYPE_CHECKING:
    from ffkv.run.graph.result import Drawn

LINE = 17  # height of a node
GAP = 12  # between layers
NARROW, WIDE = 74, 236  # a column of a token without nodes, and with nodes
LEFT, TOP = 46, 44  # room for the numbers of layers, and for the answer
PATTERN, TOKEN = 26, 12  # characters of a pattern, and of a token
ANSWERED = 60  # characters of an answer: nearly all tokens are whole
WIDEST = 5.0  # line of the largest effect
ACROSS = 4  # nodes of a behaviour beside each other
STABLE = 0.5  # least stability of a line that is whole
# Names and colours as on the explorer's pages, which have their own: an SVG that stands alone brings them along.
STYLE = Markup(
    "<style>svg{--text:#1d2530;--soft:#566171;--line:#d9dee5;--sheet:#fff;--more:#1d6fb8;--less:#b45f06;background:var(--sheet)}"
    "@media (prefers-color-scheme:dark){svg{--text:#e4e8ee;--soft:#a3adba;--line:#39424e;--sheet:#1d232b;--more:#6cb2f0;"
    "--less:#f0a24f}}</style>"
)
TEXT = Markup('<text x="{:.0f}" y="{:.0f}" fill="var(--{})" font-size="{}" text-anchor="{}">{}</text>')
# Below a layer.
BELOW = Markup('<line x1="{:.0f}" y1="{:.0f}" x2="{:.0f}" y2="{:.0f}" stroke="var(--line)" stroke-width="1.0"/>')


def draw(graph: "Drawn", alone: bool = False, address: Callable[[int, int], str] | None = None) -> Markup:
    """Draws a graph as an `svg` element.

    Args:
        alone: whether it stands on no page of ours, whose colours it takes else.
        address: from layer and memory to the page of the memory, to which its node links.
    """
    nodes = graph._shown
    at, labels = _columns(graph, nodes)
    columns = [WIDE if column in {*at.tolist()} else NARROW for column in range(len(labels))]
    lefts = LEFT + np.concatenate([[0], np.cumsum(columns)])
    rows, heights, bottom = _rows(nodes, at)
    end, floor = (lefts[-2] + 12, 24.0), TOP + bottom
    needed = end[0] + 11 + _wide(graph._words.end.striptags(), 13), LEFT + _wide(graph.note, 12)
    width, height = max(lefts[-1], *needed) + 10, floor + 30
    x, y = lefts[at] + 12, floor - rows
    parts = [STYLE] if alone else []
    for layer, (low, high) in heights.items():
        parts.append(TEXT.format(LEFT - 12, floor - (low + high) / 2 + 4, "soft", 11, "end", f"L{layer}"))
        parts.append(BELOW.format(LEFT, floor - low + 6, width - 10, floor - low + 6))
    for left, wide, label in zip(lefts, columns, labels, strict=False):
        parts.append(TEXT.format(left + 12, floor + 20, "text", 12, "start", short(label, wide // 9)))
    largest = graph.edges["effect"].abs().max() if len(graph.edges) else 0.0
    for row in graph.edges.iloc[::-1].itertuples():  # the largest on top
        place = end if row.target == ANSWER else (x[row.target], y[row.target])
        parts.append(_edge(graph, row, (x[row.source], y[row.source]), place, largest))
    strongest = nodes["effect"].abs().max() if len(nodes) else 0.0
    for row, across, up in zip(nodes.itertuples(), x, y, strict=True):
        link = address(row.layer, row.memory) if address and row.memory >= 0 else ""
        parts.append(_node(row, across, up, strongest, link))
    parts.append(_mark(*end, 6, "more" if graph.reached else "soft"))
    parts.append(TEXT.format(end[0] + 11, end[1] + 4, "text", 13, "start", graph._words.end))
    if graph.note:
        parts.append(TEXT.format(LEFT, TOP + 8, "soft", 12, "start", graph.note))
    where = ", tokens from left to right" if graph._words.below else ""
    label = f"Graph of {graph._words.of}{where}. Layers from below. {graph.told}"
    element = Markup(
        '<svg xmlns="http://www.w3.org/2000/svg" class="graph" role="{}" aria-label="{}" viewBox="0 0 {:.0f} {:.0f}" width="{:.0f}"'
        ' height="{:.0f}" font-family="system-ui, DejaVu Sans, sans-serif">{}</svg>'
    )
    role = "group" if address else "img"  # links can be reached
    return element.format(role, label, width, height, width, height, Markup("").join(parts))


def _wide(text: str, size: float) -> float:
    """Returns how wide a text of a font size is at most, in DejaVu Sans, which is wider than most."""
    return sum(size * (1.05 if sign in "MWmw@%…" or east_asian_width(sign) in "WF" else 0.8) for sign in text)


def short(token: str, longest: int = TOKEN) -> str:
    """Returns the beginning of a token whose blanks and controls show."""
    return plain(shortened(token, longest).replace(" ", BLANK))


def label(row: Any, longest: int | None = None, write: Callable[[str], str] = short) -> str:
    """Returns what a node reads and writes: its pattern, or its name, and the token that it pushes towards.

    A node that pushes towards the bottom of its value, or nowhere, has the sign of its coefficient behind its name.

    Args:
        row: of `Graph.nodes` or `BehaviourGraph.nodes`.
        longest: characters of the pattern and the sign; None: all.
    """
    reads = row.pattern or row.name
    below, equal = ("m < 0", "m = 0") if hasattr(row, "position") else ("m lower", "m equal")
    sign = f" ({below if row.coefficient < 0 else equal})" if row.coefficient <= 0 else ""
    reads = (reads if longest is None else shortened(reads, longest - len(sign))) + sign
    return f"{reads} → {write(row.pushes)}" if row.pushes else reads


def _columns(graph: "Drawn", nodes: pd.DataFrame) -> tuple[np.ndarray, list[str]]:
    """Returns in which column each node stands, and what stands below each column."""
    if "position" in nodes:
        return nodes["position"].to_numpy(int), [*graph._words.below]
    at = nodes.groupby("layer").cumcount().to_numpy(int) % ACROSS
    return at, [""] * (1 + int(at.max(initial=1)))


def _rows(nodes: pd.DataFrame, at: np.ndarray) -> tuple[np.ndarray, dict[int, tuple[float, float]], float]:
    """Returns how high each node is, the lower and upper end of each layer, and the height of all."""
    rows, heights, low = np.zeros(len(nodes)), dict[int, tuple[float, float]](), 10.0
    for layer, own in nodes.groupby("layer"):
        stack = own.groupby(at[own.index]).cumcount().to_numpy()
        rows[own.index] = low + LINE * stack
        heights[int(layer)] = low, low + LINE * int(stack.max())
        low += LINE * (int(stack.max()) + 1) + GAP
    return rows, heights, low


def _mark(x: float, y: float, radius: float, colour: str, filled: float = 1.0) -> Markup:
    return Markup(
        '<circle cx="{:.1f}" cy="{:.1f}" r="{:.1f}" fill="var(--{})" fill-opacity="{:.2f}" stroke="var(--{})"/>'
    ).format(x, y, radius, colour, filled, "sheet" if filled == 1 else colour)


def _edge(graph: "Drawn", row: Any, start: tuple[float, float], end: tuple[float, float], largest: float) -> Markup:
    """Draws an edge as a curve that leaves and arrives upright."""
    source = graph.nodes["name"].iloc[row.source]
    target = "the answer" if row.target == ANSWER else graph.nodes["name"].iloc[row.target]
    share = abs(row.effect) / largest if largest else 0.0
    middle = (start[1] + end[1]) / 2
    # So that edges of one token do not cover each other.
    bow = min(60.0, (start[1] - end[1]) / 4) if start[0] == end[0] else 0.0
    return Markup(
        '<path d="M{:.0f} {:.0f}C{:.0f} {:.0f} {:.0f} {:.0f} {:.0f} {:.0f}" fill="none" stroke="var(--{})" stroke-width="{:.1f}"'
        ' stroke-opacity="{:.2f}"{} data-ends="{} {}"><title>{} to {}: {} logits{}</title></path>'
    ).format(
        *start, start[0] - bow, middle, end[0] - bow, middle, *end,
        "more" if row.effect > 0 else "less", max(0.6, WIDEST * share), 0.35 + 0.5 * share,
        Markup(' stroke-dasharray="4 3"') if getattr(row, "stability", 1) < STABLE else "",
        row.source, row.target, source, target, number(row.effect), _stability(row),
    )  # fmt: skip


def _stability(row: Any) -> str:
    return f", stability {percent(row.stability)}" if hasattr(row, "stability") else ""


def _node(row: Any, x: float, y: float, strongest: float, link: str) -> Markup:
    radius = 2.5 + 4 * (abs(row.effect) / strongest) ** 0.5 if strongest else 2.5
    above = "" if hasattr(row, "position") else " above what it is patched to"
    known = row.coefficient == row.coefficient
    coefficient = f", coefficient {number(row.coefficient)}{above}" if known else ""
    told = f"{row.name}: {row.pattern or 'no pattern'}{f', pushes towards {short(row.pushes)}' if row.pushes else ''}."
    told += f" Effect {number(row.effect)} logits{_stability(row)}{coefficient}."
    parts = Markup("<title>{}</title>{}{}").format(
        plain(told),
        _mark(x, y, radius, "more" if row.effect > 0 else "less", getattr(row, "stability", 1.0)),
        TEXT.format(x + 9, y + 4, "text", 10.5, "start", plain(label(row, PATTERN))),
    )
    name = Markup('data-node="{}"').format(row.Index)
    return Markup('<a href="{}" class="node" {}>{}</a>' if link else "{}<g {}>{}</g>").format(link, name, parts)
