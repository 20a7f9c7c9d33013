"""Cards of single keys: what triggers them, what they have in common, what their value predicts."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from markupsafe import Markup

from ffkv.activations.trigger_file import HISTOGRAM_EDGES, TriggerExamples, Triggers, read_triggers
from ffkv.corpus.corpus_file import Corpus, read_corpus
from ffkv.files import hdf5, tables
from ffkv.model.checkpoint.vocabulary import read_vocabulary
from ffkv.report.results import Results
from ffkv.report.text import MINUS, ending, number, percent, token, visible

LONGEST = 240  # characters of a prefix that a card shows; of a longer one its end
PATTERNS = 6  # patterns that a card shows
PREDICTIONS = 10  # top tokens of the value that a card shows

SIGNS = {1: "+", -1: MINUS}

Memory = tuple[int, int]  # layer, number in the layer; both from 0
Prediction = tuple[Markup, str, float]  # token, its probability as text and as a number


@dataclass(frozen=True)
class Trigger:
    """A trigger example, ready for the page: the text before its last token, that token, the token that follows.

    gate, up: signs of the two factors of a gated memory, "" of another.
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
    """A pattern of a key, ready for the page: its number on the card, in how many prefixes of how many it stands.

    ranks: the trigger examples that have it. chance: in how many prefixes it would stand by chance.
    """

    number: int
    family: str
    text: Markup
    prefixes: int
    examined: int
    chance: str
    ranks: frozenset[int]


@dataclass(frozen=True)
class Card:
    """A key and its value, ready for the page. Layer and memory count from 1 and from 0. unit: of a mixture, the expert and its unit.

    triggers: of positive coefficients. negative: of negative ones; None where none are kept. predictions: top tokens of
    the value; bottom: its bottom tokens. value, bottom_value: how they fit together with the trigger examples.
    """

    layer: int
    memory: int
    unit: str
    statistics: list[str]
    histogram: Markup
    triggers: list[Trigger]
    negative: list[Trigger] | None
    patterns: list[Pattern]
    predictions: list[Prediction]
    bottom: list[Prediction]
    value: str
    bottom_value: str

    @property
    def gated(self) -> bool:
        """Whether the memory has a gate, whose sign its trigger examples tell."""
        return any(trigger.gate for trigger in [*self.triggers, *(self.negative or [])])


def cards(results: Results) -> list[Card]:
    """Cards of the keys that `choose` chooses, in the order of the layers."""
    if not results.settings.report.cards:
        return []
    triggers = read_triggers(results.folder / "triggers.h5")
    corpus = read_corpus(results.folder / "corpus" / "train.h5", triggers.attributes)
    vocabulary = read_vocabulary(results.folder / "model")
    found = tables.read_all(results.groups("keys/patterns"))
    found = found[found["sample"] == "trigger"]
    chosen = choose(found, triggers, results.settings.report.cards)
    values = tables.read_all(results.groups("values/memories")).set_index(["layer", "memory"])
    top, bottom = (read_predictions(results, chosen, vocabulary, triggers.attributes, end) for end in ("top", "bottom"))
    negative = triggers.negative
    shown = results.settings.report.card_triggers
    made = []
    for memory in chosen:
        row = int(triggers.layer_offset[memory[0]]) + memory[1]
        examined = min(results.settings.keys.pattern_triggers, sentences(triggers, row))
        patterns = strongest(found[(found["layer"] == memory[0]) & (found["memory"] == memory[1])], examined)
        card = Card(
            layer=memory[0] + 1,
            memory=memory[1],
            unit=results.anatomy.layers[memory[0]].unit(memory[1]),
            statistics=statistics(triggers, row),
            histogram=sparkline(triggers.histogram[row]),
            triggers=trigger_lines(triggers, corpus, vocabulary, row, shown, patterns),
            negative=trigger_lines(negative, corpus, vocabulary, row, shown, []) if negative else None,
            patterns=patterns,
            predictions=top.get(memory, []),
            bottom=bottom.get(memory, []),
            value=value_sentence(values.loc[memory]) if memory in values.index else "",
            bottom_value=bottom_sentence(values.loc[memory]) if negative and memory in values.index else "",
        )
        made.append(card)
    return made


def choose(patterns: pd.DataFrame, triggers: Triggers, count: int) -> list[Memory]:
    """Which keys are shown: spread evenly over the layers, in each layer those with the strongest patterns.

    A key's strength is the number of trigger examples that share its commonest pattern, then the number of its
    patterns. Where a layer has too few keys with a pattern, those with the highest coefficient follow. Ties go to the
    lower number.
    """
    wanted = np.bincount(np.linspace(0, triggers.layers - 1e-9, count).astype(int), minlength=triggers.layers)
    strength = patterns.groupby(["layer", "memory"])["prefixes"].agg(["max", "size"]).reset_index()
    strength = strength.sort_values(["max", "size", "memory"], ascending=[False, False, True])
    chosen = []
    for layer, share in enumerate(wanted.tolist()):
        by_pattern = strength.loc[strength["layer"] == layer, "memory"].tolist()
        rows = triggers.rows(layer)
        alive = np.flatnonzero(triggers.count[rows])
        by_coefficient = alive[np.argsort(-triggers.maximum[rows][alive], kind="stable")].tolist()
        keys = list(dict.fromkeys(by_pattern + by_coefficient))[:share]
        chosen += [(layer, memory) for memory in sorted(keys)]
    return chosen


def sentences(triggers: Triggers, row: int) -> int:
    """From how many sentences a key's trigger examples are: patterns are sought in one example of each."""
    return len(np.unique(triggers.sentence[row, : triggers.count[row]]))


def strongest(patterns: pd.DataFrame, examined: int) -> list[Pattern]:
    """The patterns of one key that its card shows, in the most prefixes first, numbered from 1."""
    order = patterns.sort_values(["prefixes", "q_value", "pattern"], ascending=[False, True, True]).head(PATTERNS)
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
        for place, row in enumerate(order.itertuples(), 1)
    ]


def statistics(triggers: Triggers, row: int) -> list[str]:
    """How often and how strongly a key fires, and how often and how far its coefficient is negative."""
    prefixes, negative = max(triggers.prefixes, 1), triggers.negative
    said = [
        f"fires on {percent(triggers.fires[row] / prefixes)} of prefixes",
        f"mean {number(triggers.mean[row])}",
        f"maximum {number(triggers.maximum[row])}",
        f"{number(triggers.count[row])} trigger examples kept",
    ]
    if negative:
        said += [
            f"negative on {percent(negative.fires[row] / prefixes)} of prefixes",
            f"minimum {signed(negative.minimum[row])}",
            f"{number(negative.count[row])} negative trigger examples kept",
        ]
    return said


def signed(value: float) -> str:
    """A number with the sign that it has in print."""
    return number(value).replace("-", MINUS)


def trigger_lines(
    triggers: TriggerExamples,
    corpus: Corpus,
    vocabulary: Sequence[str],
    row: int,
    count: int,
    patterns: Sequence[Pattern],
) -> list[Trigger]:
    """The strongest trigger examples of a key, of one sign, with the numbers of the shown patterns that each one has."""
    lines, up = [], triggers.up[row]
    for rank in range(min(count, int(triggers.count[row]))):
        sentence, position = int(triggers.sentence[row, rank]), int(triggers.position[row, rank])
        start, end = (corpus.character(sentence, place) for place in (max(position - 1, 0), position))
        text = corpus.texts[sentence]
        line = Trigger(
            coefficient=signed(triggers.coefficient[row, rank]),
            gate=SIGNS.get(int(triggers.gate[row, rank]), ""),
            up=SIGNS.get(int(up[rank]), ""),
            position=position,
            before=ending(text[:start], LONGEST),
            last=visible(text[start:end]),
            following=token(vocabulary[int(triggers.next_token[row, rank])]),
            patterns=[pattern.number for pattern in patterns if rank in pattern.ranks],
        )
        lines.append(line)
    return lines


def sparkline(counts: np.ndarray) -> Markup:
    """A small histogram of a key's coefficient, heights logarithmic; the bin that is not positive is grey."""
    heights = np.log1p(counts) / max(np.log1p(counts).max(), 1)
    bars = Markup("").join(
        Markup('<rect x="{}" y="{:.1f}" width="8" height="{:.1f}" class="{}"/>').format(
            9 * place, 24 - 24 * height, 24 * height, "fires" if edge >= 0 else "rests"
        )
        for place, (height, edge) in enumerate(zip(heights, HISTOGRAM_EDGES[:-1], strict=True))
    )
    ends = f"{number(HISTOGRAM_EDGES[2])} to {number(HISTOGRAM_EDGES[-2])}"
    label = f"Histogram of the coefficient: not positive {number(counts[0])}, then doubling bins from {ends}: "
    label += ", ".join(number(count) for count in counts[1:])
    return Markup('<svg class="sparkline" role="img" aria-label="{}" viewBox="0 0 {} 24">{}</svg>').format(
        label, 9 * len(counts), bars
    )


def read_predictions(
    results: Results, chosen: Sequence[Memory], vocabulary: Sequence[str], belongs_to: dict, end: str
) -> dict[Memory, list[Prediction]]:
    """The tokens at one end, "top" or "bottom", of each chosen memory's value."""
    found = {}
    for path in results.groups("values/projections", "h5"):
        with hdf5.open(path, "projections", belongs_to) as file:
            memories = zip(file["layer"][...].tolist(), file["memory"][...].tolist())
            rows = {memory: row for row, memory in enumerate(memories)}
            for memory in set(chosen) & set(rows):
                ids = file[f"{end}_token"][rows[memory], :PREDICTIONS].tolist()
                shares = np.exp(file[f"{end}_log_probability"][rows[memory], :PREDICTIONS].astype(float)).tolist()
                found[memory] = [(token(vocabulary[i]), percent(p), p) for i, p in zip(ids, shares, strict=True)]
    return found


def value_sentence(value: pd.Series) -> str:
    """How a value's prediction and its key's trigger examples fit together."""
    if not value["triggers"]:
        return "The key has no trigger example."
    verdict = "is" if value["agrees"] else "is not"
    return (
        f"The top token {verdict} what follows the strongest trigger example (rank {number(value['rank'])}); "
        f"it follows {number(value['matching'])} of {number(value['triggers'])}."
    )


def bottom_sentence(value: pd.Series) -> str:
    """How the bottom of a value and its key's negative trigger examples fit together."""
    if not value["negative_triggers"]:
        return "The key has no negative trigger example."
    verdict = "is" if value["negative_agrees"] else "is not"
    return f"The bottom token {verdict} what follows the most negative trigger example."
