"""The graphs of behaviours in the report: what was found, the drawing, and tables."""

from ffkv.run.graph.drawing import draw
from ffkv.run.graph.of_behaviour import BehaviourGraph, behaviour_graph
from ffkv.run.report.page_tables import Named, PageTable, chip, whole_table
from ffkv.run.report.section import TableBlock
from ffkv.run.results.run import Run
from ffkv.run.results.text import column, percent, visible

GRAPH_TEXT = (
    "One half of the prompts chooses the memories, and all numbers are of the other half. Layers are from below. The wider a line, the more "
    "one memory does to another, or to the answer, past the others: blue raises it, orange lowers it. A mark is the fuller, the more of "
    "the graphs of prompts that are drawn again have the memory. A line is broken if it is among the largest ones in less than half of "
    "the draws. Effect: by how much the logit difference falls when the memory alone is patched, with its interval (95 %). Loss: what the graph "
    "keeps less without it. docs/graphs.md defines every number."
)


def graph_blocks(run: Run) -> list[TableBlock]:
    """The graph of each behaviour that has one: what was found, the drawing, and its memories."""
    blocks = []
    for place, name in enumerate(run.table("behaviour_graph_sets")["behaviour"].unique()):
        graph = behaviour_graph(run, name)
        text = f"{graph.told} {GRAPH_TEXT}"
        drawn = draw(graph) if len(graph.nodes) else None
        folded = [
            (f"{what} of the graph", whole_table(f"{what} of the graph of {name}", frame))
            for what, frame in (("Edges", graph.edges), ("Direct edges", graph.paths), ("Sets", graph.sets))
            if len(frame)
        ]
        table = _nodes(graph) if len(graph.nodes) else None
        blocks.append(TableBlock(f"behaviour-graph-{place}", f"Graph of {name}", text, table, folded, drawn))
    return blocks


def _nodes(graph: BehaviourGraph) -> PageTable:
    """Returns the memories of a graph."""
    nodes = graph.nodes
    numbers = {
        "effect": column(nodes["effect"]),
        "from": column(nodes["low"], like=nodes["effect"]),
        "to": column(nodes["high"], like=nodes["effect"]),
        "loss": [percent(share) for share in nodes["loss"]],
        "stability": [percent(share) for share in nodes["stability"]],
    }
    names = [Named(name) for name in nodes["name"]]
    patterns = [visible(pattern) if pattern else "–" for pattern in nodes["pattern"]]
    columns = [names, patterns, [chip(text) for text in nodes["top_token"]], *numbers.values()]
    return PageTable(
        name=f"graph of {graph.behaviour}",
        headers=["memory", "pattern", "top token", *numbers],
        numeric=[False, False, False, *[True] * len(numbers)],
        rows=[list(row) for row in zip(*columns, strict=True)],
    )
