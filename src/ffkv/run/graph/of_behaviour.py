"""The graph of a behaviour of a finished run, from its tables."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from markupsafe import Markup

from ffkv.base.errors import UserError
from ffkv.run.graph.drawing import draw
from ffkv.run.graph.result import Drawn
from ffkv.run.results.memory_name import memory_name
from ffkv.run.results.run import Run, check_run
from ffkv.run.results.text import number, percent, summary, table, token, visible

GRAPH, RANDOM, RESAMPLED = "graph", "random", "resampled"  # choices of sets


@dataclass(frozen=True, repr=False, eq=False)
class BehaviourGraph(Drawn):
    """The memories that keep a share of a behaviour, chosen on one half of its prompts and measured on the other (docs/graphs.md).

    Attributes:
        run: name of the run.
        behaviour: name of the behaviour.
        reached: whether the graph keeps the share that was asked for, on the prompts that chose it.
        note: why a graph without memories has none; "" else.
        nodes: one row per memory, in the order of layers: name, pattern (of most trigger examples), top_token, and the columns of
            `behaviour_graph_nodes.csv` (docs/formats.md).
        edges: those of the graph, the largest effect first: the columns of `behaviour_graph_edges.csv`. `source` and `target` are rows of
            `nodes`; -1: the answer.
        paths: direct edges and total changes at the last token, see `behaviour_graph_paths.csv`.
        sets: what sets of memories keep, see `behaviour_graph_sets.csv`.
    """

    run: str
    behaviour: str
    reached: bool
    note: str
    nodes: pd.DataFrame
    edges: pd.DataFrame
    paths: pd.DataFrame
    sets: pd.DataFrame

    def __repr__(self) -> str:
        return f"<Graph of the behaviour {self.behaviour} in {self.run}: {self.told}>"

    @property
    def told(self) -> str:
        """What was found, in sentences."""
        if self.note:
            return self.note
        sets = self.sets.set_index("choice")
        own, random, other = sets.loc[GRAPH], sets.loc[[RANDOM], "kept"], sets.loc[[RESAMPLED], "jaccard"]
        failed = "" if self.reached else "No set that was tried keeps the share that was asked for. The best one: "
        return (
            f"{failed}{number(len(self.nodes))} memories keep {percent(own['kept'])} ({percent(own['low'])} to {percent(own['high'])}) of the"
            f" logit difference on prompts that did not choose them, and {percent(own['chosen'])} on those that did. Random sets with as"
            f" many memories per layer keep {percent(random.mean())} ({percent(random.min())} to {percent(random.max())}). Graphs of"
            f" prompts that are drawn again share {percent(other.mean())} of their memories with it (mean Jaccard index)."
        )

    @property
    def _answers(self) -> dict[str, str]:
        """What is known of the answer, for `to_networkx`."""
        return {"behaviour": self.behaviour}

    @property
    def _about(self) -> str:
        """What the drawing shows."""
        return f"Graph of the behaviour {self.behaviour}."

    @property
    def _end(self) -> Markup:
        """What stands at the top of the drawing."""
        return Markup("answer <tspan fill='var(--soft)'>rather than wrong answer</tspan>")

    def _repr_html_(self) -> Markup:
        heads = ["memory", "effect", "loss", "stability", "pattern", "promotes"]
        rows = [
            [
                row.name,
                number(row.effect),
                percent(row.loss),
                percent(row.stability),
                visible(row.pattern),
                token(row.top_token),
            ]
            for row in self.nodes.itertuples()
        ]
        return summary(
            f"Graph of {self.behaviour} in {self.run}",
            [self.told],
            draw(self, alone=True),
            table("Memories", heads, rows),
        )


def behaviour_graph(run: Run, behaviour: str, tables: Mapping[str, pd.DataFrame] | None = None) -> BehaviourGraph:
    """Returns the graph of a behaviour: the few memories that keep a share of it, and what is between them (docs/graphs.md).

    The run has made it, if its setting `graph_prompts` is not 0: nothing is measured here.

    Args:
        run: a finished run.
        behaviour: name of the behaviour.
        tables: those that `ffkv.behaviour` has returned, in place of those of the run.
    Returns:
        An object with the tables `nodes`, `edges`, `paths` and `sets`; `told`, what was found in sentences; `reached`, whether the graph
        keeps the share that was asked for; `to_networkx()`, `to_svg()` and `to_dict()`, as `Graph` has them. `nodes` has a name, a pattern
        and the top token of each memory. `source` and `target` of `edges` are rows of `nodes`; -1: the answer. docs/formats.md has the other
        columns, at `behaviour_graph_nodes.csv` and the like.
    Raises:
        UserError: the run has no such behaviour, or the behaviour has no graph.
    Examples:
        >>> import json
        >>> run = ffkv.open("results/tiny")
        >>> names = ("prompt", "answer", "wrong")
        >>> rows = [dict(zip(names, (f"This {word}", " is", " are"))) for word in ("list", "file", "name", "line")]
        >>> _ = open("is.jsonl", "w").write("\\n".join(map(json.dumps, rows)))
        >>> options = {"graph_prompts": 2, "graph_resamples": 2, "minimum_accuracy": 0, "flips": 100, "candidates": 1}
        >>> found = ffkv.behaviour(run, "is.jsonl", **options)
        >>> graph = ffkv.behaviour_graph(run, "is", found)
        >>> "<svg" in graph.to_svg(), graph.to_networkx().has_node("answer")
        (True, True)
    """
    check_run(run)
    if tables is None:
        names = [*run.settings.behaviours]
        if behaviour not in names:
            raise UserError(
                f"There is no behaviour {behaviour!r} in {run.folder}."
                + (f" Choose one of: {', '.join(names)}." if names else " It has none (docs/behaviours.md).")
            )
    sets, nodes, edges, paths = (
        own[own["behaviour"] == behaviour].drop(columns="behaviour").reset_index(drop=True)
        for own in (
            (run.table(name) if tables is None else tables[name])
            for name in (f"behaviour_graph_{kind}" for kind in ("sets", "nodes", "edges", "paths"))
        )
    )
    if not len(sets):
        raise UserError(
            f"The behaviour {behaviour!r} has no graph. Set its `graph_prompts` to 20 and run the workflow again. A behaviour that the"
            " model does not have, and one of two lists, has none."
        )
    own = sets[sets["choice"] == GRAPH].iloc[0]
    note = ""
    if not len(nodes):
        note = (
            "All memories together do not raise the logit difference on the prompts that choose, so there is nothing to keep."
            if np.isnan(own["chosen"])
            else "No set that was tried keeps more of the logit difference than none."
        )
    places = [*zip(nodes["layer"], nodes["memory"], strict=True)]
    nodes = nodes.rename(columns={"token": "top_token"})
    nodes.insert(0, "name", [memory_name(*place) for place in places])
    nodes["pattern"] = [run.memory(*map(int, place)).pattern for place in places]
    shown = edges[edges["shown"].astype(bool)].drop(columns="shown").reset_index(drop=True)
    return BehaviourGraph(run.name, behaviour, bool(own["reached"]), note, nodes, shown, paths, sets)
