"""Which texts a machine reads: trigger examples, split before they are explained, beside other measured prefixes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

Item = TypeVar("Item")
SHOWN_CHARACTERS = 600  # of a text; of a longer one the end is shown


@dataclass(frozen=True)
class Example:
    """A prefix with the coefficient that was measured at its last token."""

    text: str  # the prefix; of a long one its end
    following: str  # the rest of its sentence; of a long one its beginning
    last: int  # characters of the last token, at the end of `text`
    word: str  # its last word, in lower case
    tokens: int  # its length in tokens
    coefficient: float  # measured at the last token
    sentence: int  # number of its sentence in its split


@dataclass(frozen=True)
class Texts:
    """The texts about one memory."""

    shown: list[Example]  # trigger examples that the explanation is made from
    held_out: list[Example]  # other trigger examples, of other sentences and with other texts
    silent: list[Example]  # measured prefixes on which the memory is silent
    measured: list[Example]  # random measured prefixes, with any coefficient
    threshold: float  # largest size of a coefficient that counts as silent


def end_of(text: str) -> str:
    """Returns the end of a long text; a shorter one as it is."""
    return text if len(text) <= SHOWN_CHARACTERS else f"…{text[-SHOWN_CHARACTERS:]}"


def shuffled(items: Sequence[Item], generator: np.random.Generator) -> list[Item]:
    """Returns the items in a random order."""
    return [items[number] for number in generator.permutation(len(items)).tolist()]


def split_examples(
    examples: Sequence[Example], shown: int, generator: np.random.Generator
) -> tuple[list[Example], list[Example]]:
    """Splits trigger examples at random into those that are explained and those that are held out.

    Prefixes of one sentence, and prefixes with one text, are never on both sides. Half of the examples are explained
    if there are fewer than twice `shown`. Those come with the highest coefficient first, the others in a random order.
    """
    order, count = shuffled(examples, generator), min(shown, len(examples) // 2)
    first, rest = order[:count], order[count:]
    sentences, texts = {example.sentence for example in first}, {example.text for example in first}
    held_out = [each for each in rest if each.sentence not in sentences and each.text not in texts]
    return sorted(first, key=lambda example: -example.coefficient), distinct(held_out)


def distinct(examples: Sequence[Example]) -> list[Example]:
    """Returns the examples without those whose text occurred before."""
    return list({example.text: example for example in reversed(examples)}.values())[::-1]


def pair_by_length(
    triggers: Sequence[Example], silent: Sequence[Example], generator: np.random.Generator
) -> list[tuple[Example, Example]]:
    """Gives each trigger example a silent prefix of equal length in tokens, each used once.

    A trigger example without one is left out with its partner, so that length tells nothing.
    """
    by_length = _grouped(silent, generator, "tokens")
    return [(trigger, by_length[trigger.tokens].pop()) for trigger in triggers if by_length.get(trigger.tokens)]


def pair_by_word(
    triggers: Sequence[Example], silent: Sequence[Example], generator: np.random.Generator
) -> list[tuple[Example, Example]]:
    """Gives each trigger example the silent prefix with the same last word and the nearest length, each used once."""
    by_word, pairs = _grouped(silent, generator, "word"), []
    for trigger in triggers:
        if candidates := by_word.get(trigger.word):
            nearest = min(range(len(candidates)), key=lambda place: abs(candidates[place].tokens - trigger.tokens))
            pairs.append((trigger, candidates.pop(nearest)))
    return pairs


def _grouped(silent: Sequence[Example], generator: np.random.Generator, field: str) -> dict[Any, list[Example]]:
    groups: dict[Any, list[Example]] = {}
    for each in shuffled(silent, generator):
        groups.setdefault(getattr(each, field), []).append(each)
    return groups


def intruder_sets(
    pairs: Sequence[tuple[Example, Example]], size: int, generator: np.random.Generator
) -> list[list[tuple[Example, bool]]]:
    """Makes sets of `size` texts, all but one of which are trigger examples.

    A set is made of `size` pairs: the trigger examples of all but the last one, and the silent prefix of the last one.
    So the lengths of intruders and of trigger examples have one distribution. No text is used twice. Takes pairs of
    `pair_by_length`. Returns the texts in a random order, each with whether it is the intruder [set][text].
    """
    order = shuffled(pairs, generator)
    sets = []
    for start in range(0, len(order) - size + 1, size):
        *others, (_, intruder) = order[start : start + size]
        texts = [(trigger, False) for trigger, _ in others] + [(intruder, True)]
        sets.append(shuffled(texts, generator))
    return sets


def batches_of(items: Sequence, size: int) -> list[list]:
    """Cuts items into batches of `size`; the last one may be smaller."""
    return [list(items[start : start + size]) for start in range(0, len(items), size)]
