"""What a graph of a prediction is, as tables."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd
from markupsafe import Markup

from ffkv.run.graph.drawing import draw, short
from ffkv.run.graph.settings import ANSWER
from ffkv.run.results.text import number, percent, summary, table, token, visible
from ffkv.run.trace.result import as_plain

if TYPE_CHECKING:
    import networkx


class Drawn(ABC):
    """A graph of memories: what all of them can be turned into."""

    nodes: pd.DataFrame
    edges: pd.DataFrame
    reached: bool
    note: str

    @property
    @abstractmethod
    def told(self) -> str:
        """What was found."""

    @property
    @abstractmethod
    def _about(self) -> str:
        """What the drawing shows."""

    @property
    @abstractmethod
    def _end(self) -> Markup:
        """What stands at the top of the drawing."""

    @property
    @abstractmethod
    def _answers(self) -> dict[str, str]:
        """What is known of the answer, for `to_networkx`."""

    @property
    def _below(self) -> list[str]:
        """What stands below the columns of the drawing, if nodes have a position."""
        return []

    def to_networkx(self) -> "networkx.DiGraph":
        """Returns a graph of networkx. Nodes are called as in `nodes`, and "answer"; they and the edges have the columns as
        attributes."""
        import networkx

        graph = networkx.DiGraph()
        graph.add_nodes_from((row["name"], row) for row in self.nodes.to_dict("records"))
        graph.add_node("answer", **self._answers)
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
            (of most trigger examples), top_token.
        edges: the largest effect first. Columns: source, target (rows of `nodes`; -1: the answer), change (by how much the
            coefficient of the target falls when the source is patched and all others are held), effect (in logits).
        sets: what sets of memories keep. Columns: choice ("graph", "random", "none", "all"), draw, memories, difference (logit
            difference when all but the set are patched), kept (share), patched (logit difference when the set is patched).
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

    def __repr__(self) -> str:
        return f"<Graph of {self.text!r} in {self.run}: {self.told}>"

    @property
    def _answers(self) -> dict[str, str]:
        """The texts of both answers, for `to_networkx`."""
        return {"token": self.answer, "wrong": self.wrong}

    @property
    def told(self) -> str:
        """What was found, in one sentence."""
        if self.note:
            return self.note
        random = self.sets.loc[self.sets["choice"] == "random", "kept"]
        beside = (
            f"; random sets of this size {percent(random.mean())} ({percent(random.min())} to {percent(random.max())})"
        )
        found = (
            f"{number(len(self.nodes))} memories at tokens keep {percent(self.kept)} of the logit difference{beside}."
        )
        if not self.reached:
            found = f"No set that was tried keeps {percent(self.share)} of the logit difference. The best one: {found}"
        return found

    @property
    def _below(self) -> list[str]:
        """What stands below the columns of the drawing."""
        return list(self.tokens["token"])

    @property
    def _about(self) -> str:
        """What the drawing shows."""
        return f"Graph of {self.text!r}, tokens from left to right."

    @property
    def _end(self) -> Markup:
        """What stands at the top of the drawing."""
        return Markup("{} <tspan fill='var(--soft)'>rather than</tspan> {}").format(
            short(self.answer), short(self.wrong)
        )

    def _repr_html_(self) -> Markup:
        facts: list[Markup | str] = [
            self.told,
            Markup("{} rather than {}").format(token(self.answer), token(self.wrong)),
        ]
        rows = [
            [
                row.name,
                number(row.coefficient),
                number(row.effect),
                number(row.loss),
                visible(row.pattern),
                token(row.top_token),
            ]
            for row in self.nodes.itertuples()
        ]
        heads = ["memory", "coefficient", "effect", "loss", "pattern", "promotes"]
        return summary(f"Graph in {self.run}", facts, draw(self, alone=True), table("Memories", heads, rows))
