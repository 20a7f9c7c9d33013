"""What a format may show of a memory: its texts with a coefficient on every token, its statistics, its tokens.

Of a value's logits, formats show those of the top and bottom tokens, and a histogram of all.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from ffkv.run.export.selection import NONE
from ffkv.run.export.store import Store
from ffkv.run.results import indexes
from ffkv.run.results.memory_name import memory_name
from ffkv.run.results.run import Run

if TYPE_CHECKING:  # takes seconds to import, and most formats show no logits
    from torch import Tensor

GROUP = 64  # memories that are read together
TEXTS = 2**14  # sentences whose tokens are kept in memory
BINS = 50  # of the histogram of logits


@dataclass(frozen=True)
class Text:
    """A sentence."""

    sentence: int  # its number in the train split
    ids: np.ndarray  # ids of its tokens, without what precedes every sentence [token]
    # their texts, which make up the sentence. A token that is a part of a character only has its bytes, as `<0xE6>`.
    tokens: list[str]


@dataclass(frozen=True)
class Example:
    """A memory on a sentence."""

    text: Text
    values: np.ndarray  # the coefficient on each token, as `shortest` gives it [token]
    position: int  # length of the trigger prefix in tokens; 0 for a random sentence, and for the empty prefix


@dataclass(frozen=True)
class Promoted:
    """The tokens at one end of a value's prediction."""

    ids: np.ndarray  # their ids, the most extreme first [rank]
    vocabulary: Sequence[str]  # the text of every token id
    logit: np.ndarray | None  # their logits; None if they were not computed [rank]

    @property
    def tokens(self) -> list[str]:
        """Their texts."""
        return [self.vocabulary[token] for token in self.ids.tolist()]


@dataclass(frozen=True)
class ValueLogits:
    """A value and its logits."""

    vector: np.ndarray  # the value [d]
    top: np.ndarray  # logits of the top tokens that the run keeps [rank]
    bottom: np.ndarray  # logits of the bottom tokens that the run keeps [rank]
    heights: np.ndarray  # number of tokens in each of `BINS` equal bins between the lowest and the highest logit [bin]
    edges: np.ndarray  # their edges [bin + 1]


@dataclass(frozen=True)
class Record:
    """A memory with all that an export knows of it."""

    layer: int  # from 0
    memory: int  # in its layer, from 0
    place: int  # its place among the exported memories, from 0
    # the sentences of its trigger examples, the one with the highest coefficient on any token first
    positive: list[Example]
    negative: list[Example]  # the sentences of its negative trigger examples, the one with the lowest coefficient first
    sample: list[Example]  # the random sentences that all memories share
    statistics: dict[str, float]  # how often and how strongly its key fires: columns of `Run.memories`
    histogram: np.ndarray  # number of prefixes in each bin of `HISTOGRAM_EDGES`
    top: Promoted  # the tokens that the value promotes
    bottom: Promoted  # the tokens that it demotes
    value: ValueLogits | None  # the value and a histogram of its logits; None if they were not computed

    @property
    def name(self) -> str:
        """The memory's name: "L3.17"."""
        return memory_name(self.layer, self.memory)


def shortest(values: np.ndarray) -> np.ndarray:
    """Returns the float64 numbers that are written with the fewest digits and give float32 numbers back exactly."""
    written = pa.array(np.ascontiguousarray(values, np.float32).ravel()).cast(pa.string())
    return written.cast(pa.float64()).to_numpy(zero_copy_only=False).reshape(values.shape)


def numbers(values: np.ndarray | Sequence[float]) -> list[float | None]:
    """Numbers as JSON can hold them: null for one that is not finite."""
    return [value if math.isfinite(value) else None for value in np.asarray(values, np.float64).tolist()]


def number(value: float) -> float | None:
    """Returns a number as JSON can hold it, with the fewest digits that give its float32 back."""
    return float(str(np.float32(value))) if np.isfinite(value) else None


def reader(run: Run, store: Store, device: str | None) -> Callable[[range], Iterator[Record]]:
    """Makes what reads the records of neighbouring memories, one after another.

    `device`: where the logits of values are computed; None: the format shows none. The head is loaded with the first record.
    """
    logits = cache(lambda: logit_reader(run, device)) if device else None
    selection, corpus = store.selection, run.corpus("train")
    rows = np.asarray(run.anatomy.layer_offset)[selection.layer] + selection.memory
    with run.files.open_triggers() as file:
        statistics = {name: own.to_numpy()[rows] for name, own in indexes.key_statistics(file).items()}
    kept = {end: indexes.kept_tokens(run.files, end)[0] for end in ("top", "bottom")}
    vocabulary, bounds = run.vocabulary, store.sample_start[1:]

    @lru_cache(TEXTS)
    def text(sentence: int) -> Text:
        return Text(sentence, corpus.ids(sentence), corpus.token_texts(sentence))

    def read(places: range) -> Iterator[Record]:
        for layer, memories, group in selection.groups(GROUP, places):
            rest, sample = shortest(store.examples(group)), shortest(store.sample(group))
            with run.files.open_triggers() as file:
                histograms = file["histogram"][rows[group.start : group.stop]]
            found = logits()(layer, memories) if logits else [None] * len(group)
            for at, place in enumerate(group):
                shown: dict[str, list[Example]] = {side: [] for side in selection.sentence}
                for side, own in shown.items():
                    stored = selection.sentence[side][place].tolist(), selection.position[side][place].tolist()
                    for sentence, position in zip(*stored):
                        if sentence != NONE:
                            whole = text(sentence)
                            values, rest = np.split(rest, [len(whole.ids)])
                            own.append(Example(whole, values, position))
                value, row = found[at], int(rows[place])
                yield Record(
                    layer=layer,
                    memory=int(memories[at]),
                    place=place,
                    positive=sorted(shown["positive"], key=lambda example: -example.values.max()),
                    negative=sorted(shown["negative"], key=lambda example: example.values.min()),
                    sample=[
                        Example(text(sentence), values, 0)
                        for sentence, values in zip(selection.sample.tolist(), np.split(sample[at], bounds))
                    ],
                    statistics={name: of_all[place].item() for name, of_all in statistics.items()},
                    histogram=histograms[at],
                    top=Promoted(kept["top"][row], vocabulary, value.top if value else None),
                    bottom=Promoted(kept["bottom"][row], vocabulary, value.bottom if value else None),
                    value=value,
                )

    return read


def logit_reader(run: Run, device: str) -> Callable[[int, np.ndarray], list[ValueLogits]]:
    """Makes what reads the logits of the values of some memories of a layer, in order."""
    import torch

    from ffkv.run.trace.coefficients import head_of, value_logits

    head, offsets = head_of(run, device), run.anatomy.layer_offset
    kept = [indexes.kept_tokens(run.files, end)[0] for end in ("top", "bottom")]

    def read(layer: int, memories: np.ndarray) -> list[ValueLogits]:
        found: list[ValueLogits] = []
        rows = offsets[layer] + memories
        for chunk, vectors, logits in value_logits(run, head, layer, memories):
            ids = (torch.from_numpy(tokens[rows[chunk]].astype(np.int64)).to(logits.device) for tokens in kept)
            ends = [logits.gather(1, tokens).cpu().numpy() for tokens in ids]
            found += map(ValueLogits, vectors, *ends, *histograms(logits))
        return found

    return read


def histograms(logits: "Tensor") -> tuple[np.ndarray, np.ndarray]:
    """Histograms of the rows of logits [row, token]: numbers of tokens [row, bin], and edges [row, bin + 1]."""
    import torch

    lowest, highest = logits.amin(1, keepdim=True), logits.amax(1, keepdim=True)
    width = (highest - lowest).clamp(min=torch.finfo(torch.float32).tiny)
    bins = ((logits - lowest) / width * BINS).long().clamp_(0, BINS - 1)
    heights = torch.zeros(len(logits), BINS, dtype=torch.int64, device=logits.device)
    heights.scatter_add_(1, bins, torch.ones_like(bins))
    steps = torch.linspace(0, 1, BINS + 1, device=logits.device)
    return heights.cpu().numpy(), (lowest + (highest - lowest) * steps).cpu().numpy()
