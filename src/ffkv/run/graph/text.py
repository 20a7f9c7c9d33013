"""A graph as text: for a terminal, or for a file."""

import json

import pandas as pd

from ffkv.base.terminal import plain
from ffkv.run.graph.exchange import as_exchange
from ffkv.run.graph.of_behaviour import BehaviourGraph
from ffkv.run.graph.result import Graph
from ffkv.run.graph.settings import ANSWER
from ffkv.run.results.run import Run
from ffkv.run.results.text import BLANK, NO_BREAK_SPACE, number, shortened

SHOWN = 20  # edges
NUMBERS = ("coefficient", "baseline", "effect", "low", "high", "loss", "stability")
LONGEST = 40  # characters of a pattern


def written(graph: Graph | BehaviourGraph, run: Run, format_name: str) -> str:
    """Returns a graph as "text", "json", "svg" or, of a prompt, "graph" (`as_exchange`)."""
    match format_name:
        case "json":
            return json.dumps(graph.to_dict(), ensure_ascii=False, allow_nan=False)
        case "svg":
            return graph.to_svg()
        case "graph" if isinstance(graph, Graph):
            return json.dumps(as_exchange(graph, run), ensure_ascii=False, allow_nan=False)
    return _as_text(graph)


def plain_told(graph: Graph | BehaviourGraph) -> str:
    """What was found, in one sentence for a terminal."""
    return graph.told.replace(NO_BREAK_SPACE, " ")


def _as_text(graph: Graph | BehaviourGraph) -> str:
    """Returns the graph for a person: what it keeps, its memories, its largest edges."""
    names = {**graph.nodes["name"], ANSWER: "answer"}
    edges = graph.edges.head(SHOWN)
    tables = {
        "Memories": pd.DataFrame(
            {
                "name": graph.nodes["name"],
                **{name: graph.nodes[name].map(number) for name in NUMBERS if name in graph.nodes},
                "pattern": [plain(shortened(text, LONGEST)) for text in graph.nodes["pattern"]],
                "top_token": graph.nodes["top_token"].map(_token),
            }
        ),
        f"{len(edges)} largest of {len(graph.edges)} edges": pd.DataFrame(
            {
                "source": edges["source"].map(names),
                "target": edges["target"].map(names),
                **{name: edges[name].map(number) for name in NUMBERS if name in edges},
            }
        ),
    }
    subject = (
        f"{_token(graph.answer)} rather than {_token(graph.wrong)}" if isinstance(graph, Graph) else graph.behaviour
    )
    difference = graph.sets.set_index("choice")["difference"]
    lines = [
        f"{subject}: the logit difference is {number(difference['all'])}, and {number(difference['none'])} when all memories are patched.",
        plain_told(graph),
    ]
    for heading, table in tables.items():
        if len(table):
            lines += ["", f"{heading}:", table.to_string(index=False)]
    return "\n".join(lines)


def _token(text: str) -> str:
    return plain(text.replace(" ", BLANK)).replace("\n", "\\n").replace("\t", "\\t")
