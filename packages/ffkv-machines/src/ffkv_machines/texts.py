"""The texts about memories that a machine reads, from a finished run: trigger examples, split before they are explained,
beside other measured prefixes."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, TypeVar

import numpy as np

from ffkv.base.characters import last_characters
from ffkv.base.errors import UserError
from ffkv.base.streams import Purpose, random_stream
from ffkv.corpus.corpus_file import Corpus
from ffkv.corpus.words import words
from ffkv.run.results import collections
from ffkv.run.results.run import Run
from ffkv.run.results.text import shortened

Item = TypeVar("Item")
Place = tuple[int, int]  # layer and memory
SHOWN_CHARACTERS = 600  # of a text; of a longer one the end is shown
FOLLOWING_CHARACTERS = 200  # of a sentence behind its prefix
MOST_SILENT = 4000  # prefixes per memory; more than enough to pair with trigger examples


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


def choose_memories(run: Run, names: Sequence[str], per_layer: int, seed: int) -> list[Place]:
    """Chooses the memories to annotate, in their order. Raises UserError if there is none, or one is named twice.

    Without names, as `collections.choose_memories` takes them, they are random ones of each layer, among the sampled keys of
    figure 2, so that machines, people and tests speak of the same keys.
    """
    if names:
        named = (collections.choose_memories(run.files, [name]) for name in names)
        places = sorted(place for each in named for place in zip(each.layer.tolist(), each.memory.tolist()))
        if len(set(places)) < len(places):
            raise UserError("--memories names a memory twice.")
        return places
    sampled = run.files.details("keys/by_prefix").query("sample == 'trigger'")[["layer", "memory"]].drop_duplicates()
    chosen: list[Place] = []
    for layer, rows in sampled.groupby("layer"):
        generator = random_stream(seed, Purpose.MACHINE_MEMORIES, int(layer))
        memories = generator.permutation(np.sort(rows["memory"].to_numpy()))[:per_layer]
        chosen += [(int(layer), memory) for memory in np.sort(memories).tolist()]
    return chosen


def read_texts(run: Run, places: Sequence[Place], shown: int, seed: int) -> Iterator[tuple[Place, Texts]]:
    """Reads the texts about memories, given in their order: `shown` trigger examples of each are explained."""
    validation, offsets = run.corpus("validation"), run.anatomy.layer_offset
    with run.files.open_sampled_prefixes() as file:
        sentence, position = file["sentence"][...], file["position"][...]
    parts = zip(*validation.prefix_texts(sentence, position), position.tolist(), sentence.tolist(), strict=True)
    prefixes = [_example(validation, *each, math.nan) for each in parts]

    def measured(m: np.ndarray, numbers: np.ndarray) -> list[Example]:
        return distinct([replace(prefixes[number], coefficient=float(m[number])) for number in numbers[:MOST_SILENT]])

    for layer, of_layer in groupby(places, key=lambda place: place[0]):
        memories = [memory for _, memory in of_layer]
        with run.files.open_sampled_prefixes() as file:
            m = file["m"][:, offsets[layer] : offsets[layer + 1]][:, memories]
        for column, memory in enumerate(memories):
            generator, own = random_stream(seed, Purpose.MACHINE_TEXTS, layer, memory, 1), m[:, column]
            rows = run.memory(layer, memory).triggers[["text", "last_token", "position", "sentence", "coefficient"]]
            examples = [_example(run.corpus("train"), *row) for row in rows.itertuples(index=False)]
            explained, held_out = split_examples(examples, shown, generator)
            typical = np.mean([example.coefficient for example in examples]) if examples else 0.0
            threshold = float(run.settings.intervention.silent_below * typical)
            order = generator.permutation(len(prefixes))
            silent = order[np.abs(own[order]) <= threshold] if examples else order[:0]
            yield (layer, memory), Texts(explained, held_out, measured(own, silent), measured(own, order), threshold)


def _example(corpus: Corpus, text: str, last: str, tokens: int, sentence: int, coefficient: float) -> Example:
    """Makes a prefix with `text`, of `tokens` tokens, of which `last` is the last one, in a sentence of the corpus."""
    end, found = end_of(text), words(text, corpus.pretokenized)
    following = shortened(corpus.rest(sentence, tokens), FOLLOWING_CHARACTERS)
    word = found[-1].lower() if found else ""
    return Example(end, following, min(last_characters(text, last), len(end)), word, tokens, coefficient, sentence)


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
