"""Cards of single memories: the trigger examples of the key, their patterns, and the prediction of the value."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from markupsafe import Markup

from ffkv.report.text import MINUS, signed
from ffkv.results.memory import Memory
from ffkv.results.run import Run
from ffkv.results.text import ending, number, percent, token, visible

MAX_PREFIX_CHARACTERS = 240  # of a longer prefix a card shows the end
PATTERNS_PER_CARD = 6
PREDICTIONS_PER_CARD = 10
SIGNS = {1: "+", -1: MINUS}


@dataclass(frozen=True)
class Trigger:
    """A trigger example as the page shows it.

    Attributes:
        coefficient: the memory coefficient.
        gate, up: signs of the two factors of a gated memory's coefficient; "" for other memories.
        position: length of the prefix in tokens.
        before: the text before the last token.
        last: the last token.
        following: the next token in the corpus.
        patterns: numbers of the card's patterns that the example has.
    """

    coefficient: str
    gate: str
    up: str
    position: int
    before: Markup
    last: Markup
    following: Markup
    patterns: list[int]


@dataclass(frozen=True)
class Pattern:
    """A pattern of a key as the page shows it.

    Attributes:
        number: its number on the card, from 1.
        family: "shallow" or "semantic".
        text: the pattern in words.
        prefixes: number of examined trigger examples that have it.
        examined: number of examined trigger examples.
        chance: number of examined trigger examples that would have it by chance.
        ranks: ranks of the trigger examples that have it, from 0.
    """

    number: int
    family: str
    text: Markup
    prefixes: int
    examined: int
    chance: str
    ranks: frozenset[int]


@dataclass(frozen=True)
class Prediction:
    """A token that a value predicts, as the page shows it.

    Attributes:
        token: the token.
        percent: its probability as text.
        probability: its probability.
    """

    token: Markup
    percent: str
    probability: float


@dataclass(frozen=True)
class Card:
    """A memory as the page shows it.

    Attributes:
        memory: the memory.
        statistics: sentences on how often and how strongly the key fires.
        triggers: the strongest trigger examples.
        negative: the trigger examples of the most negative coefficients; None where the run does not keep them.
        patterns: the most frequent patterns.
        top: tokens with the highest logits of the value.
        bottom: tokens with the lowest logits of the value.
    """

    memory: Memory
    statistics: list[str]
    triggers: list[Trigger]
    negative: list[Trigger] | None
    patterns: list[Pattern]
    top: list[Prediction]
    bottom: list[Prediction]

    @property
    def gated(self) -> bool:
        """Whether the memory has a gate, so that the signs of its two factors are known."""
        return any(trigger.gate for trigger in [*self.triggers, *(self.negative or [])])

    @property
    def histogram(self) -> Markup:
        """The small histogram of the coefficient."""
        return draw_histogram(self.memory.histogram)

    @property
    def verdict(self) -> str:
        """Whether the prediction of the value fits the trigger examples."""
        return top_verdict(self.memory.statistics)

    @property
    def bottom_verdict(self) -> str:
        """Whether the bottom of the value fits the negative trigger examples."""
        return bottom_verdict(self.memory.statistics)


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
    patterns = pattern_lines(memory.patterns.head(PATTERNS_PER_CARD), examined)
    shown, predictions = run.settings.report.card_triggers, min(PREDICTIONS_PER_CARD, run.settings.values.top_tokens)
    negative = "negative_rate" in memory.statistics
    return Card(
        memory=memory,
        statistics=statistics(memory.statistics),
        triggers=trigger_lines(memory.triggers.head(shown), patterns),
        negative=trigger_lines(memory.negative_triggers.head(shown), []) if negative else None,
        patterns=patterns,
        top=prediction_lines(memory.promotes(predictions)),
        bottom=prediction_lines(memory.demotes(predictions)),
    )


def choose(patterns: pd.DataFrame, memories: pd.DataFrame, count: int) -> list[tuple[int, int]]:
    """Chooses memories, spread evenly over the layers. In each layer it takes those whose keys have the strongest patterns.

    The strength of a key is the number of trigger examples that share its most frequent pattern, then the number of its
    patterns. Where too few keys of a layer have a pattern, those with the highest coefficients follow. Of equal keys the
    one with the lower number comes first. A key without a trigger example is not chosen.

    Args:
        patterns: one row per pattern: layer, memory, prefixes.
        memories: one row per memory of the model: layer, memory, trigger_examples, maximum_coefficient.
        count: number of memories to choose.
    Returns:
        Layer and memory of each, in this order.
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


def pattern_lines(patterns: pd.DataFrame, examined: int) -> list[Pattern]:
    """The patterns of a card, numbered from 1. `examined`: number of trigger examples in which they were sought."""
    return [
        Pattern(
            number=place,
            family=row.family,
            text=visible(row.label),
            prefixes=row.prefixes,
            examined=examined,
            chance="under 0.1" if row.chance * examined < 0.1 else f"{row.chance * examined:.1f}",
            ranks=frozenset(row.ranks),
        )
        for place, row in enumerate(patterns.itertuples(), 1)
    ]


def trigger_lines(examples: pd.DataFrame, patterns: list[Pattern]) -> list[Trigger]:
    """The trigger examples of a card, with the numbers of the patterns that each of them has."""
    return [
        Trigger(
            coefficient=signed(row.coefficient),
            gate=SIGNS.get(getattr(row, "gate", 0), ""),
            up=SIGNS.get(getattr(row, "up", 0), ""),
            position=row.position,
            before=ending(row.text.removesuffix(row.last_token), MAX_PREFIX_CHARACTERS),
            last=visible(row.last_token),
            following=token(row.next_token),
            patterns=[pattern.number for pattern in patterns if row.rank in pattern.ranks],
        )
        for row in examples.itertuples()
    ]


def prediction_lines(tokens: pd.DataFrame) -> list[Prediction]:
    """The tokens at one end of a value."""
    return [Prediction(token(row.token), percent(row.probability), row.probability) for row in tokens.itertuples()]


def statistics(key: pd.Series) -> list[str]:
    """Says how often and how strongly a key fires, and how often and how strongly its coefficient is negative."""
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


def draw_histogram(bins: pd.DataFrame) -> Markup:
    """Draws a small histogram. Heights are logarithmic, and the bin of coefficients that are not positive is grey.

    Args:
        bins: one row per bin: low, high, prefixes.
    """
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


def top_verdict(memory: pd.Series) -> str:
    """Says whether the top token of a value follows its key's trigger examples."""
    if not memory["trigger_examples"]:
        return "The key has no trigger example."
    verdict = "follows" if memory["agrees"] else "does not follow"
    return (
        f"The top token {verdict} the strongest trigger example (rank of the next token: {number(memory['rank'])}). It "
        f"follows {number(memory['matching'])} of {number(memory['trigger_examples'])} trigger examples."
    )


def bottom_verdict(memory: pd.Series) -> str:
    """Says whether the bottom token of a value follows its key's most negative trigger example."""
    if not memory["negative_trigger_examples"]:
        return "The key has no negative trigger example."
    verdict = "follows" if memory["negative_agrees"] else "does not follow"
    return f"The bottom token {verdict} the most negative trigger example."
