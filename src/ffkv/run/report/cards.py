"""Cards of single memories: the trigger examples of the key, their patterns, and the prediction of the value."""

import functools
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from ffkv.run.report.page_tables import Cell, Named
from ffkv.run.report.wording import written
from ffkv.run.results import indexes
from ffkv.run.results.memory import Memory
from ffkv.run.results.memory_columns import Columns, example_columns, prediction_columns, rows_of, stored_examples
from ffkv.run.results.run import Run
from ffkv.run.results.text import number

PATTERNS_PER_CARD = 6
PREDICTIONS_PER_CARD = 10
# Of memories that tables name: cards, and trigger examples and predictions of each. They keep a page of 30 gated layers, and one of 80
# plain ones, below 25,000 nodes.
MOST_NAMED, NAMED_TRIGGERS, NAMED_PREDICTIONS = 16, 3, 4
LINE_PREDICTIONS = 2  # of a memory that has a line alone


@dataclass(frozen=True)
class Card:
    """What a page shows of a memory of a run. Each part is read when it is shown."""

    run: Run
    memory: Memory
    sought: pd.DataFrame | None = None  # patterns that were sought on request, in place of those of the run
    shown: int | None = None  # the most trigger examples of each sign; None for those of `report.card_triggers`
    predicted: int = PREDICTIONS_PER_CARD  # tokens at each end of the value

    @functools.cached_property
    def examined(self) -> int:
        """Number of trigger examples in which patterns were sought: one per sentence."""
        sentences = stored_examples(self.run.files, self.memory.row, "positive", ["sentence"])["sentence"]
        return min(self.run.settings.keys.pattern_triggers, len(np.unique(sentences)))

    @functools.cached_property
    def patterns(self) -> list[Any]:
        """The most frequent patterns, as in `Memory.patterns`, a row each: family, label, prefixes, ranks.

        Also number (from 1) and by_chance (number of the examined trigger examples that would have the pattern by chance).
        """
        found = (self.memory.patterns if self.sought is None else self.sought).head(PATTERNS_PER_CARD)
        if found.empty:
            return []
        columns = {name: found[name].tolist() for name in ("family", "label", "prefixes", "ranks")}
        by_chance = found["chance"].to_numpy() * self.examined
        return rows_of({**columns, "number": np.arange(1, len(found) + 1), "by_chance": by_chance})

    @functools.cached_property
    def triggers(self) -> list[Any]:
        """The strongest trigger examples: rows of `Memory.triggers`; also patterns (numbers, from 1, of those that each has)."""
        columns, having = self._examples("positive"), [{*pattern.ranks} for pattern in self.patterns]
        numbers = [[number for number, ranks in enumerate(having, 1) if rank in ranks] for rank in columns["rank"]]
        return rows_of({**columns, "patterns": numbers})

    @functools.cached_property
    def negative(self) -> list[Any]:
        """The prefixes with the most negative coefficients: rows of `Memory.negative_triggers`."""
        return rows_of(self._examples("negative"))

    def _examples(self, side: str) -> Columns:
        most = self.shown or self.run.settings.report.card_triggers
        return example_columns(self.run.files, self.memory.layer, self.memory.memory, side, most)

    @functools.cached_property
    def top(self) -> list[Any]:
        """Tokens with the highest logits of the value: rows of `Memory.promotes`."""
        return self._predictions("top")

    @property
    def bottom(self) -> list[Any]:
        """Tokens with the lowest logits of the value: rows of `Memory.demotes`."""
        return self._predictions("bottom")

    def _predictions(self, end: str) -> list[Any]:
        count = min(self.predicted, self.run.settings.values.top_tokens, self.run.anatomy.vocabulary)
        return rows_of(prediction_columns(self.run.files, self.memory.layer, self.memory.memory, end, count))

    @property
    def signed(self) -> bool:
        """Whether the run keeps negative coefficients of the memory."""
        return "negative_rate" in self.memory.statistics

    @property
    def gated(self) -> bool:
        """Whether the memory has a gate, so that the signs of its two factors are known."""
        return self.run.anatomy.layers[self.memory.layer].gated

    @property
    def statistics(self) -> list[str]:
        """How often and how strongly the key fires, and how often and how strongly its coefficient is negative."""
        return [said for said in self._written("card_statistics").values() if said]

    @property
    def verdict(self) -> str:
        """Whether the top token of the value follows the key's trigger examples."""
        return self._written("card_verdict")["says"]

    @property
    def bottom_verdict(self) -> str:
        """Whether the bottom token of the value follows the key's most negative trigger example."""
        return self._written("card_bottom_verdict")["says"]

    def _written(self, name: str) -> dict[str, str]:
        return written(__package__, name, self.run, memory=dict(self.memory.statistics), negative=self.signed)

    @property
    def histogram(self) -> Markup:
        """A small histogram of the coefficient, with logarithmic heights. The bin of those not positive is grey."""
        bins = self.memory.histogram
        counts = bins["prefixes"].to_numpy()
        heights = np.log1p(counts) / max(np.log1p(counts).max(), 1)
        shapes = {"rests": "", "fires": ""}
        for place, (height, low) in enumerate(zip(heights, bins["low"], strict=True)):
            shapes["fires" if low >= 0 else "rests"] += f"M{9 * place} 24v{-24 * height:.1f}h8V24z"
        bars = Markup("").join(Markup('<path class="{}" d="{}"/>').format(*each) for each in shapes.items())
        ends = f"{number(bins['high'].iloc[1])} to {number(bins['low'].iloc[-1])}"
        label = f"Histogram of the coefficient: not positive {number(counts[0])}, then bins that double from {ends}: "
        label += ", ".join(number(count) for count in counts[1:])
        return Markup('<svg class="sparkline" role="img" aria-label="{}" viewBox="0 0 {} 24">{}</svg>').format(
            label, 9 * len(counts), bars
        )


class Leads:
    """Where the name of a memory leads on a page: to its card, or else to its page, or else to a line behind all tables."""

    def __init__(self, run: Run, cards: Collection[str] = (), pages: Collection[str] = ()):
        """Names of the memories that have a card, and of those with a page of their own in the folder `memories` beside this one."""
        self._run, self._cards, self._pages = run, cards, pages
        self._named: dict[str, None] = {}

    def __call__(self, cell: Cell) -> Cell:
        """Returns a cell as the page writes it."""
        if not isinstance(cell, Named):
            return cell
        own = cell.memory in self._pages and cell.memory not in self._cards
        if not own and cell.memory not in self._cards:
            self._named[cell.memory] = None
        address = f"memories/{cell.memory}.html" if own else f"#{cell.memory}"
        return Markup('<a href="{}">{}</a>').format(address, cell.text or cell.memory)

    def lines(self) -> list[Card]:
        """Returns the memories of the cells so far that have neither card nor page, in the order of the layers."""
        return _in_order(self._run, self._named, 1, LINE_PREDICTIONS)


def make_cards(run: Run) -> list[Card]:
    """Makes the cards of the memories that `choose` chooses, in the order of the layers."""
    if not run.settings.report.cards:
        return []
    chosen = choose(indexes.trigger_patterns(run.files), run.memories(), run.settings.report.cards)
    return [Card(run, run.memory(layer, memory)) for layer, memory in chosen]


def cards_of(run: Run, named: Iterable[str], cards: Iterable[Card]) -> list[Card]:
    """Makes the cards of memories that tables name and that have no card among `cards`, in the order of the layers."""
    own = {card.memory.name for card in cards}
    few = min(NAMED_TRIGGERS, run.settings.report.card_triggers)
    chosen = [*dict.fromkeys(name for name in named if name not in own)][:MOST_NAMED]
    return _in_order(run, chosen, few, NAMED_PREDICTIONS) if own else []


def _in_order(run: Run, names: Iterable[str], shown: int, predicted: int) -> list[Card]:
    found = sorted(map(run.memory, names), key=lambda memory: (memory.layer, memory.memory))
    return [Card(run, memory, shown=shown, predicted=predicted) for memory in found]


def choose(patterns: pd.DataFrame, memories: pd.DataFrame, count: int) -> list[tuple[int, int]]:
    """Chooses memories, spread evenly over the layers: in each layer those whose keys have the strongest patterns.

    The strength of a key is the number of trigger examples that share its most frequent pattern, then the number of its
    patterns. Where too few keys of a layer have a pattern, those with the highest coefficients follow. Of equal keys
    the one with the lower number comes first. A key without a trigger example is not chosen.

    Args:
        patterns: one row per pattern: layer, memory, prefixes.
        memories: one row per memory of the model: layer, memory, trigger_examples, maximum_coefficient.
    Returns:
        Layer and memory of each of `count` memories, in this order.
    """
    layers = int(memories["layer"].max()) + 1
    per_layer = np.bincount(np.linspace(0, layers - 1e-9, count).astype(int), minlength=layers)
    strength = patterns.groupby(["layer", "memory"])["prefixes"].agg(["max", "size"]).reset_index()
    strength = strength.sort_values(["max", "size", "memory"], ascending=[False, False, True])
    alive = memories[memories["trigger_examples"] > 0]
    alive = alive.sort_values("maximum_coefficient", ascending=False, kind="stable")
    chosen = []
    for layer, wanted in enumerate(per_layer.tolist()):
        by_pattern = strength.loc[strength["layer"] == layer, "memory"].tolist()
        by_coefficient = alive.loc[alive["layer"] == layer, "memory"].tolist()
        strongest = list(dict.fromkeys(by_pattern + by_coefficient))[:wanted]
        chosen += [(layer, memory) for memory in sorted(strongest)]
    return chosen
