"""Cards of single memories: the trigger examples of the key, their patterns, and the prediction of the value."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from markupsafe import Markup

from ffkv.report.text import signed
from ffkv.results.memory import Memory
from ffkv.results.run import Run
from ffkv.results.text import number, percent

PATTERNS_PER_CARD = 6
PREDICTIONS_PER_CARD = 10


@dataclass(frozen=True)
class Card:
    """What the page shows of a memory.

    Attributes:
        memory: the memory.
        examined: number of trigger examples in which patterns were sought.
        patterns: the most frequent patterns, as in `Memory.patterns`; also number (from 1) and by_chance (number of the
            examined trigger examples that would have the pattern by chance).
        triggers: the strongest trigger examples, as in `Memory.triggers`; also patterns (numbers of those that it has).
        negative: the same for the most negative coefficients, without patterns; None where the run does not keep them.
        top: tokens with the highest logits of the value, as in `Memory.promotes`.
        bottom: tokens with the lowest logits of the value, as in `Memory.demotes`.
    """

    memory: Memory
    examined: int
    patterns: pd.DataFrame
    triggers: pd.DataFrame
    negative: pd.DataFrame | None
    top: pd.DataFrame
    bottom: pd.DataFrame

    @property
    def gated(self) -> bool:
        """Whether the memory has a gate, so that the signs of its two factors are known."""
        return "gate" in self.triggers

    @property
    def statistics(self) -> list[str]:
        """How often and how strongly the key fires, and how often and how strongly its coefficient is negative."""
        key = self.memory.statistics
        sentences = [
            f"fires on {percent(key['firing_rate'])} of prefixes",
            f"mean {number(key['mean_coefficient'])}",
            f"maximum {number(key['maximum_coefficient'])}",
            f"{number(key['trigger_examples'])} trigger examples kept",
        ]
        if "negative_rate" in key:
            sentences += [
                f"negative on {percent(key['negative_rate'])} of prefixes",
                f"minimum {signed(key['minimum_coefficient'])}",
                f"{number(key['negative_trigger_examples'])} negative trigger examples kept",
            ]
        return sentences

    @property
    def verdict(self) -> str:
        """Whether the top token of the value follows the key's trigger examples."""
        memory = self.memory.statistics
        if not memory["trigger_examples"]:
            return "The key has no trigger example."
        verdict = "follows" if memory["agrees"] else "does not follow"
        return (
            f"The top token {verdict} the strongest trigger example (rank of the next token: {number(memory['rank'])}). It "
            f"follows {number(memory['matching'])} of {number(memory['trigger_examples'])} trigger examples."
        )

    @property
    def bottom_verdict(self) -> str:
        """Whether the bottom token of the value follows the key's most negative trigger example."""
        memory = self.memory.statistics
        if not memory["negative_trigger_examples"]:
            return "The key has no negative trigger example."
        verdict = "follows" if memory["negative_agrees"] else "does not follow"
        return f"The bottom token {verdict} the most negative trigger example."

    @property
    def histogram(self) -> Markup:
        """A small histogram of the coefficient, with logarithmic heights. The bin of coefficients that are not positive is grey."""
        bins = self.memory.histogram
        counts = bins["prefixes"].to_numpy()
        heights = np.log1p(counts) / max(np.log1p(counts).max(), 1)
        bars = Markup("").join(
            Markup('<rect x="{}" y="{:.1f}" width="8" height="{:.1f}" class="{}"/>').format(
                9 * place, 24 - 24 * height, 24 * height, "fires" if low >= 0 else "rests"
            )
            for place, (height, low) in enumerate(zip(heights, bins["low"], strict=True))
        )
        ends = f"{number(bins['high'].iloc[1])} to {number(bins['low'].iloc[-1])}"
        label = f"Histogram of the coefficient: not positive {number(counts[0])}, then bins that double from {ends}: "
        label += ", ".join(number(count) for count in counts[1:])
        return Markup('<svg class="sparkline" role="img" aria-label="{}" viewBox="0 0 {} 24">{}</svg>').format(
            label, 9 * len(counts), bars
        )


def make_cards(run: Run) -> list[Card]:
    """The cards of the memories that `choose` chooses, in the order of the layers."""
    if not run.settings.report.cards:
        return []
    patterns = run.details("keys/patterns")
    chosen = choose(patterns[patterns["sample"] == "trigger"], run.memories(), run.settings.report.cards)
    return [make_card(run, run.memory(layer, memory)) for layer, memory in chosen]


def make_card(run: Run, memory: Memory) -> Card:
    """The card of one memory."""
    # Patterns are sought in one trigger example per sentence.
    examined = min(run.settings.keys.pattern_triggers, memory.triggers["sentence"].nunique())
    patterns = memory.patterns.head(PATTERNS_PER_CARD)
    patterns = patterns.assign(number=np.arange(1, len(patterns) + 1), by_chance=patterns["chance"] * examined)
    triggers = memory.triggers.head(run.settings.report.card_triggers)
    negative = memory.negative_triggers.head(run.settings.report.card_triggers)
    predictions = min(PREDICTIONS_PER_CARD, run.settings.values.top_tokens)
    return Card(
        memory=memory,
        examined=examined,
        patterns=patterns,
        triggers=triggers.assign(patterns=pattern_numbers(patterns, triggers["rank"])),
        negative=negative if "negative_rate" in memory.statistics else None,
        top=memory.promotes(predictions),
        bottom=memory.demotes(predictions),
    )


def pattern_numbers(patterns: pd.DataFrame, ranks: Iterable[int]) -> list[list[int]]:
    """The numbers, from 1, of the patterns that each trigger example has.

    Args:
        patterns: one row per pattern; `ranks` are those of the trigger examples that have it.
        ranks: ranks of the trigger examples [example].
    """
    having = [set(pattern) for pattern in patterns["ranks"]]
    return [[number for number, of_pattern in enumerate(having, 1) if rank in of_pattern] for rank in ranks]


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
    alive = memories[memories["trigger_examples"] > 0].sort_values(
        "maximum_coefficient", ascending=False, kind="stable"
    )
    chosen = []
    for layer, wanted in enumerate(per_layer.tolist()):
        by_pattern = strength.loc[strength["layer"] == layer, "memory"].tolist()
        by_coefficient = alive.loc[alive["layer"] == layer, "memory"].tolist()
        strongest = list(dict.fromkeys(by_pattern + by_coefficient))[:wanted]
        chosen += [(layer, memory) for memory in sorted(strongest)]
    return chosen
