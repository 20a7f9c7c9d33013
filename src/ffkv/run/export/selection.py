"""Which memories are exported, and on which sentences each of them is shown."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ffkv.base.streams import Purpose, random_stream
from ffkv.run.results.memory_columns import SIDES
from ffkv.run.results.memory_name import memory_name
from ffkv.run.results.run import Run

NONE = -1  # no sentence


class Group(NamedTuple):
    """Neighbouring memories of one layer."""

    layer: int
    memories: np.ndarray  # their numbers in the layer, ascending [memory]
    places: range  # their places among the exported memories


@dataclass(frozen=True)
class Selection:
    """The memories of an export and the train sentences that they are shown on."""

    layer: np.ndarray  # layer of each memory, ascending [memory]
    memory: np.ndarray  # its number in the layer, ascending in each layer [memory]
    # sentences of the trigger examples, by side, the strongest first; -1 if there is none [memory, rank]
    sentence: dict[str, np.ndarray]
    position: dict[str, np.ndarray]  # length of the trigger prefix in tokens; 0 if there is none [memory, rank]
    sample: np.ndarray  # sentences that all memories share, ascending [sentence]

    def __len__(self) -> int:
        """Returns the number of memories."""
        return len(self.layer)

    @property
    def sentences(self) -> np.ndarray:
        """All sentences that are needed, each once, ascending."""
        shown = np.concatenate([self.sample, *(each.ravel() for each in self.sentence.values())])
        return np.unique(shown[shown != NONE])

    def groups(self, size: int | None = None, places: range | None = None) -> Iterator[Group]:
        """Cuts memories, or those at neighbouring `places`, into groups of at most `size`; without it one per layer."""
        bounds = [*np.unique(self.layer, return_index=True)[1].tolist(), len(self)]
        for low, high in itertools.pairwise(bounds):
            first, last = (low, high) if places is None else (max(low, places.start), min(high, places.stop))
            for start in range(first, last, size or len(self)):
                own = range(start, min(start + (size or len(self)), last))
                yield Group(int(self.layer[start]), self.memory[own.start : own.stop], own)

    def name(self, place: int) -> str:
        """Returns the name of a memory: "L3.17"."""
        return memory_name(int(self.layer[place]), int(self.memory[place]))


def select(run: Run, layer: np.ndarray, memory: np.ndarray, examples: int, sentences: int) -> Selection:
    """Chooses the sentences on which memories are shown.

    These are at most `examples` sentences of trigger examples of each side (of several trigger examples in one sentence
    the strongest counts), and random sentences of the train split, the same for all memories, as far as there are any.
    """
    places = {side: _trigger_sentences(run, layer, memory, side, examples) for side in SIDES}
    sentence, position = ({side: both[at] for side, both in places.items()} for at in (0, 1))
    return Selection(layer, memory, sentence, position, random_sentences(run, sentences))


def random_sentences(run: Run, count: int) -> np.ndarray:
    """Draws sentences of the train split, ascending. They depend on the setting `seed` and on the corpus only."""
    total = len(run.corpus("train"))
    generator = random_stream(run.settings.seed, Purpose.EXPORTED_SENTENCES)
    return np.sort(generator.choice(total, min(count, total), replace=False)).astype(np.int64)


def _trigger_sentences(
    run: Run, layer: np.ndarray, memory: np.ndarray, side: str, examples: int
) -> tuple[np.ndarray, np.ndarray]:
    """Sentences and positions [memory, rank] of the trigger examples of one side; with rank 0 if the run keeps none."""
    rows = np.asarray(run.anatomy.layer_offset)[layer] + memory
    with run.files.open_triggers() as file:
        if f"{SIDES[side]}sentence" not in file:
            return np.full((len(rows), 0), NONE, np.int32), np.zeros((len(rows), 0), np.int32)
        stored = file[f"{SIDES[side]}sentence"], file[f"{SIDES[side]}position"]
        several = not run.settings.triggers.one_prefix_per_sentence
        kept = stored[0].shape[1] if several else min(examples, stored[0].shape[1])
        low, high = (rows[0], rows[-1] + 1) if len(rows) else (0, 0)  # they ascend
        sentence, position = (dataset[low:high, :kept][rows - low] for dataset in stored)
    if several:
        return _strongest_of_each(sentence, position, examples)
    return sentence, np.where(sentence == NONE, 0, position)


def _strongest_of_each(sentence: np.ndarray, position: np.ndarray, examples: int) -> tuple[np.ndarray, np.ndarray]:
    sentences = np.full((len(sentence), examples), NONE, np.int32)
    positions = np.zeros_like(sentences)
    for row, own in enumerate(sentence):
        first = np.sort(np.unique(own, return_index=True)[1])
        first = first[own[first] != NONE][:examples]
        sentences[row, : len(first)], positions[row, : len(first)] = own[first], position[row, first]
    return sentences, positions
