"""Reads the texts about memories from a finished run."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np

from ffkv.apps.machine.texts import Example, Texts, distinct, end_of, split_examples
from ffkv.base.characters import last_characters
from ffkv.base.errors import UserError
from ffkv.base.streams import Purpose, random_stream
from ffkv.corpus.corpus_file import Corpus
from ffkv.corpus.words import words
from ffkv.run.results.collections import expand
from ffkv.run.results.memory_name import check_memory, parse_memory_name
from ffkv.run.results.run import Run

FOLLOWING_CHARACTERS = 200  # of a sentence behind its prefix
MOST_SILENT = 4000  # prefixes per memory; more than enough to pair with trigger examples

Place = tuple[int, int]  # layer and memory


def choose_memories(run: Run, names: Sequence[str], per_layer: int, seed: int) -> list[Place]:
    """Chooses the memories to annotate, in their order. Raises UserError if there is none, or one is named twice.

    Without names such as "L3.17", they are random ones of each layer, among the sampled keys of figure 2, so that
    machines, people and tests speak of the same keys.
    """
    if names:
        places = [parse_memory_name(name) for name in expand(run.files, names)]
        for place in places:
            check_memory(*place, [layer.memories for layer in run.anatomy.layers])
        if len(set(places)) < len(places):
            raise UserError("--memories names a memory twice.")
        return sorted(places)
    sampled = run.files.details("keys/by_prefix").query("sample == 'trigger'")[["layer", "memory"]].drop_duplicates()
    chosen: list[Place] = []
    for layer, rows in sampled.groupby("layer"):
        generator = random_stream(seed, Purpose.MACHINE_MEMORIES, int(layer))
        memories = generator.permutation(np.sort(rows["memory"].to_numpy()))[:per_layer]
        chosen += [(int(layer), memory) for memory in np.sort(memories).tolist()]
    return chosen


def read_texts(run: Run, places: Sequence[Place], shown: int, seed: int) -> Iterator[tuple[Place, Texts]]:
    """Reads the texts about memories, given in their order: `shown` trigger examples of each are explained."""
    prefixes = _sampled(run)
    offsets = run.anatomy.layer_offset
    for layer, of_layer in groupby(places, key=lambda place: place[0]):
        memories = [memory for _, memory in of_layer]
        with run.files.open_sampled_prefixes() as file:
            m = file["m"][:, offsets[layer] : offsets[layer + 1]][:, memories]
        for column, memory in enumerate(memories):
            generator = random_stream(seed, Purpose.MACHINE_TEXTS, layer, memory, 1)
            yield (layer, memory), _texts(run, (layer, memory), prefixes, m[:, column], shown, generator)


def _texts(
    run: Run, place: Place, prefixes: list[Example], m: np.ndarray, shown: int, generator: np.random.Generator
) -> Texts:
    examples = _triggers(run, place)
    chosen, held_out = split_examples(examples, shown, generator)
    typical = np.mean([example.coefficient for example in examples]) if examples else 0.0
    threshold = float(run.settings.intervention.silent_below * typical)
    order = generator.permutation(len(prefixes))
    silent = order[np.abs(m[order]) <= threshold][:MOST_SILENT].tolist() if examples else []
    return Texts(
        shown=chosen,
        held_out=held_out,
        silent=distinct([replace(prefixes[number], coefficient=float(m[number])) for number in silent]),
        measured=distinct([replace(prefixes[number], coefficient=float(m[number])) for number in order[:MOST_SILENT]]),
        threshold=threshold,
    )


def _triggers(run: Run, place: Place) -> list[Example]:
    """Returns the trigger examples of a memory, the highest coefficient first."""
    corpus = run.corpus("train")
    return [
        _example(corpus, row.text, row.last_token, int(row.position), int(row.sentence), float(row.coefficient))
        for row in run.memory(*place).triggers.itertuples()
    ]


def _sampled(run: Run) -> list[Example]:
    """Returns the sampled validation prefixes, in the order of `m`, with a coefficient of NaN."""
    corpus = run.corpus("validation")
    with run.files.open_sampled_prefixes() as file:
        sentence, position = file["sentence"][...], file["position"][...]
    parts = zip(*corpus.prefix_texts(sentence, position), position.tolist(), sentence.tolist(), strict=True)
    return [_example(corpus, *each, math.nan) for each in parts]


def _example(corpus: Corpus, text: str, last: str, tokens: int, sentence: int, coefficient: float) -> Example:
    """Makes a prefix with `text`, of `tokens` tokens, of which `last` is the last one, in a sentence of the corpus."""
    end, following, found = end_of(text), corpus.rest(sentence, tokens), words(text, corpus.pretokenized)
    if len(following) > FOLLOWING_CHARACTERS:
        following = f"{following[:FOLLOWING_CHARACTERS]}…"
    word = found[-1].lower() if found else ""
    return Example(end, following, min(last_characters(text, last), len(end)), word, tokens, coefficient, sentence)
