"""What a graph is, of a prediction or of a behaviour: tables of its memories, and all that they can be turned into."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import pandas as pd
from markupsafe import Markup

from ffkv.base.errors import UserError
from ffkv.base.terminal import plain
from ffkv.branches.behaviours.words import ANSWER, GRAPH, NONE
from ffkv.run.graph.drawing import ANSWERED, draw, short
from ffkv.run.results.indexes import pushed_tokens
from ffkv.run.results.memory_name import memory_name
from ffkv.run.results.run import Run, check_run
from ffkv.run.results.run_files import unknown
from ffkv.run.results.text import NO_BREAK_SPACE, number, percent, shortened, summary, table, token, visible
from ffkv.run.trace.result import as_plain, fill, plain_token

if TYPE_CHECKING:
    import networkx

TABLES = tuple(f"behaviour_graph_{kind}" for kind in ("sets", "nodes", "edges", "paths"))
# Nodes whose effects have a sum of sizes below this share of what they keep, in logits, do next to nothing alone.
ALONE = 0.1
ERRORS, NO_MEMORY = 8, -1  # most errors of dictionaries that are drawn, and the memory of their nodes
# Why there are no nodes.
NOTHING = "No set that was tried keeps more of the logit difference than none."
NOT_RAISED = (
    "All memories together do not raise the logit difference on the prompts that choose, so there is nothing to keep."
)
SHOWN, LONGEST = 20, 40  # edges, and characters of a pattern, in a terminal
PRINTED = ("coefficient", "baseline", "effect", "low", "high", "loss", "stability")  # numbers there
# What a notebook shows of a node: heads, columns, and what writes their cells.
Cells = tuple[tuple[str, str, Callable[[Any], Any]], ...]
NUMBERS: Cells = (("memory", "name", str), ("coefficient", "coefficient", number), ("effect", "effect", number))
WORDS: Cells = (("pattern", "pattern", visible), ("pushes towards", "pushes", token))


class Words(NamedTuple):
    """What is said of a graph beside its nodes."""

    of: str  # what it is of
    heading: str  # in notebooks
    end: Markup  # what stands at the top of the drawing
    answers: dict[str, str]  # what is known of the answer, for `to_networkx`
    below: Sequence[str] = ()  # what stands below the columns of the drawing, if nodes have a position
    facts: Sequence[Markup] = ()  # what else a notebook shows


class Drawn(ABC):
    """A graph of memories: what all of them can be turned into."""

    run: str
    nodes: pd.DataFrame
    edges: pd.DataFrame
    sets: pd.DataFrame
    reached: bool
    note: str
    _cells: ClassVar[Cells]

    @property
    @abstractmethod
    def _words(self) -> Words:
        """What is said of it."""

    @property
    def _errors(self) -> pd.DataFrame:
        """What dictionaries leave, as `Graph.errors` has it; without rows where nothing is measured of it."""
        return pd.DataFrame(columns=["name", "layer", "effect"])

    @property
    def _shown(self) -> pd.DataFrame:
        """The nodes of the drawing, those of `nodes` first."""
        unknown = {"memory": NO_MEMORY, "coefficient": np.nan, "pattern": "error of the dictionary", "pushes": ""}
        errors = self._errors[self._errors["effect"].abs() > 0].head(ERRORS).assign(**unknown)
        return pd.concat([self.nodes, errors], ignore_index=True) if len(errors) else self.nodes

    @property
    def told(self) -> str:
        """What was found, in sentences."""
        return " ".join(fill("graph/told.txt", graph=self, sets=self.sets.set_index("choice")).split("\n"))

    @property
    def restores(self) -> bool:
        """Whether the nodes do next to nothing when each is patched alone: see `ALONE`."""
        difference = self.sets.groupby("choice")["difference"].mean()
        return bool(self.nodes["effect"].abs().sum() < ALONE * (difference[GRAPH] - difference[NONE]))

    def __repr__(self) -> str:
        return f"<Graph of {self._words.of} in {self.run}: {self.told}>"

    def to_networkx(self) -> "networkx.DiGraph":
        """Returns a graph of networkx. Nodes are called as in `nodes` and `errors`, and "answer"; they and the edges have the columns as
        attributes."""
        import networkx

        graph = networkx.DiGraph()
        for own in (self.nodes, self._errors):
            graph.add_nodes_from((row["name"], row) for row in own.to_dict("records"))
        graph.add_node("answer", **self._words.answers)
        names = {**self.nodes["name"], ANSWER: "answer"}
        for row in self.edges.to_dict("records"):
            graph.add_edge(names[row.pop("source")], names[row.pop("target")], **row)
        return graph

    def to_svg(self) -> str:
        """Returns the drawing as an SVG file: layers from below, in light and dark colours."""
        return str(draw(self, alone=True))

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain Python values, by attribute. A table is a list of rows. A number that is not finite is None."""
        return {name: as_plain(value) for name, value in vars(self).items()}

    def _repr_html_(self) -> Markup:
        rows = [[write(row[name]) for _, name, write in self._cells] for row in self.nodes.to_dict("records")]
        drawn, memories = draw(self, alone=True), table("Memories", [head for head, *_ in self._cells], rows)
        return summary(self._words.heading, [self.told, *self._words.facts], drawn, memories)


@dataclass(frozen=True, repr=False, eq=False)
class Graph(Drawn):
    """The memories, at the tokens where they act, that keep a share of a prediction. `docs/graphs.md` defines every number.

    Attributes:
        run: name of the run.
        text: the prompt.
        answer_id, wrong_id: ids of the answer and of the token that it is compared with.
        answer, wrong: their texts.
        probability: of the answer.
        baseline: what memories are patched to: "mean", "zero", or "patch".
        other: the other prompt, for "patch"; else "".
        share: the share that was asked for.
        kept: the share that the graph keeps when all other memories are patched.
        reached: whether that is the share that was asked for.
        note: why a graph without memories has none; "" else.
        tokens: as in `Trace.tokens`.
        nodes: one row per memory and token, in the order of layers. Columns: name ("L3.17@4"), layer, memory, position,
            coefficient, baseline (what it is patched to), effect (by how much the logit difference falls if it alone is
            patched), loss (share that the graph no longer keeps without it), passed_on (sum of the effects of all its edges), pattern
            (of most trigger examples; "" if coefficient is not positive, as these examples are), pushes (as in
            `Trace.contributions`).
        edges: the largest effect first. Columns: source, target (rows of `nodes`; -1: the answer), change (by how much the
            coefficient of the target falls when the source is patched and all others are held), effect (in logits).
        sets: what sets of memories keep. Columns: choice ("graph", "random", "none", "all"), draw, memories, difference (logit
            difference when all but the set are patched), kept (share), patched (logit difference when the set is patched).
        errors: through dictionaries, what they leave of their layers, which no set patches; the largest effect first. Columns: name
            ("L3.error@4"), layer, position, effect (by how much the logit difference falls if it alone becomes that
            of the other prompt, or 0 without one).
    Examples:
        >>> graph = ffkv.graph(ffkv.open("results/tiny"), "The function returns", share=0.5)
        >>> graph.nodes.columns.tolist()[:4]
        ['name', 'layer', 'memory', 'position']
        >>> "<svg" in graph.to_svg()
        True
    """

    run: str
    text: str
    answer_id: int
    answer: str
    wrong_id: int
    wrong: str
    probability: float
    baseline: str
    other: str
    share: float
    kept: float
    reached: bool
    note: str
    tokens: pd.DataFrame
    nodes: pd.DataFrame
    edges: pd.DataFrame
    sets: pd.DataFrame
    errors: pd.DataFrame

    _cells = (*NUMBERS, ("loss", "loss", number), *WORDS)

    @property
    def _errors(self) -> pd.DataFrame:
        return self.errors

    @property
    def _words(self) -> Words:
        end = Markup("{} <tspan fill='var(--soft)'>rather than</tspan> {}").format(
            short(self.answer, ANSWERED), short(self.wrong, ANSWERED)
        )
        answers = {"token": self.answer, "wrong": self.wrong}
        fact = Markup("{} rather than {}").format(token(self.answer), token(self.wrong))
        return Words(repr(self.text), f"Graph in {self.run}", end, answers, [*self.tokens["token"]], [fact])


@dataclass(frozen=True)
class GraphFormat:
    """A form of another tool for the graph of a prompt, behind the door `ffkv.graph_formats`."""

    write: Callable[[Graph, Run, Path | None], str]  # what a file of this path is to hold; None if it is printed
    check: Callable[[Path], None]  # raises UserError if the tool could not open a file of this path
    finish: Callable[[Graph, str, Path], str]  # is called when the file holds that; returns what is to be said, or ""


@dataclass(frozen=True, repr=False, eq=False)
class BehaviourGraph(Drawn):
    """The memories that keep a share of a behaviour, chosen on one half of its prompts and measured on the other (docs/graphs.md).

    Attributes:
        run: name of the run.
        behaviour: name of the behaviour.
        reached: whether the graph keeps the share that was asked for, on the prompts that chose it.
        note: why a graph without memories has none; "" else.
        nodes: one row per memory, in the order of layers: name, pattern (of most trigger examples), pushes (the top
            token of the value if coefficient is positive, its bottom token if negative, "" if 0 or not known), and the
            columns of `behaviour_graph_nodes.csv` (docs/formats.md).
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

    _cells = (*NUMBERS, ("loss", "loss", percent), ("stability", "stability", percent), *WORDS)

    @property
    def _words(self) -> Words:
        end, name = Markup("answer <tspan fill='var(--soft)'>rather than wrong answer</tspan>"), self.behaviour
        return Words(f"the behaviour {name}", f"Graph of {name} in {self.run}", end, {"behaviour": name})


def behaviour_graph(run: Run, behaviour: str, tables: Mapping[str, pd.DataFrame] | None = None) -> BehaviourGraph:
    """Returns the graph of a behaviour: the few memories that keep a share of it, and what is between them (docs/graphs.md).

    The run has made it, if its setting `graph_prompts` is not 0: nothing is measured here.

    Args:
        run: a finished run.
        behaviour: name of the behaviour.
        tables: those that `ffkv.behaviour` has returned, in place of those of the run.
    Returns:
        An object with the tables `nodes`, `edges`, `paths` and `sets`; `told`, what was found in sentences; `reached`, whether the graph
        keeps the share that was asked for; `to_networkx()`, `to_svg()` and `to_dict()`, as `Graph` has them. `nodes` has name, pattern
        and `pushes` of each memory. `source` and `target` of `edges` are rows of `nodes`; -1: the answer. docs/formats.md has the other
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
    if tables is None and behaviour not in (names := [*run.settings.behaviours]):
        raise unknown(f"behaviour in {run.folder} called", behaviour, names, "It has none (docs/behaviours.md).")
    sets, nodes, edges, paths = (
        own[own["behaviour"] == behaviour].drop(columns="behaviour").reset_index(drop=True)
        for own in map(run.table if tables is None else tables.__getitem__, TABLES)
    )
    if not len(sets):
        raise UserError(
            f"The behaviour {behaviour!r} has no graph. Set its `graph_prompts` to 20 and run the workflow again. A behaviour that the"
            " model does not have, and one of two lists, has none."
        )
    own = sets[sets["choice"] == GRAPH].iloc[0]
    note = (NOT_RAISED if np.isnan(own["chosen"]) else NOTHING) if nodes.empty else ""
    nodes = named(run, nodes.drop(columns="token"))
    shown = edges[edges["shown"].astype(bool)].drop(columns="shown").reset_index(drop=True)
    return BehaviourGraph(run.name, behaviour, bool(own["reached"]), note, nodes, shown, paths, sets)


def named(run: Run, nodes: pd.DataFrame) -> pd.DataFrame:
    """Returns nodes with their names in front, the patterns of their memories, and the tokens that these push towards.

    Patterns are of positive trigger examples: at a token where the coefficient is not positive, they say nothing."""
    names = [memory_name(row.layer, row.memory) for row in nodes.itertuples()]
    tells = nodes["coefficient"] > 0 if "position" in nodes else [True] * len(nodes)
    patterns = [run.memory(name).pattern if own else "" for name, own in zip(names, tells, strict=True)]
    nodes = nodes.assign(pattern=patterns, pushes=pushed_tokens(run.files, nodes)["pushes"])
    if "position" in nodes:
        names = [f"{name}@{position}" for name, position in zip(names, nodes["position"], strict=True)]
    nodes.insert(0, "name", names)
    return nodes


def written(graph: Drawn, format_name: str) -> str:
    """Returns a graph as "text", "json" or "svg"."""
    if format_name == "json":
        return json.dumps(graph.to_dict(), allow_nan=False)
    return graph.to_svg() if format_name == "svg" else _as_text(graph)


def plain_told(graph: Drawn) -> str:
    """What was found, in one sentence for a terminal."""
    return graph.told.replace(NO_BREAK_SPACE, " ")


def _as_text(graph: Drawn) -> str:
    names = {**graph.nodes["name"], ANSWER: "answer"}
    edges = graph.edges.head(SHOWN)
    nodes, ends = graph.nodes, {end: edges[end].map(names) for end in ("source", "target")}
    of_nodes, of_edges = ({name: own[name].map(number) for name in PRINTED if name in own} for own in (nodes, edges))
    patterns = [plain(shortened(text, LONGEST)) for text in nodes["pattern"]]
    said = {"pattern": patterns, "pushes": nodes["pushes"].map(plain_token)}
    texts = graph.tokens.set_index("position")["token"].map(plain_token) if isinstance(graph, Graph) else None
    at = {} if texts is None else {"token": nodes["position"].map(texts)}
    tables = {
        "Memories": pd.DataFrame({"name": nodes["name"], **at, **of_nodes, **said}),
        f"{len(edges)} largest of {len(graph.edges)} edges": pd.DataFrame({**ends, **of_edges}),
        "Errors of dictionaries": graph._errors.head(ERRORS)[["name", "effect"]],
    }
    subject = " rather than ".join(map(plain_token, graph._words.answers.values()))
    return fill("graph/graph.txt", subject=subject, told=plain_told(graph), tables=tables)
