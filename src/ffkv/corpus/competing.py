"""Which prefixes of a corpus compete for a place among the trigger examples of a key."""

import functools
from dataclasses import dataclass

import numpy as np

from ffkv.corpus.corpus_file import Corpus


@dataclass(frozen=True)
class CompetingPrefixes:
    """The prefixes that compete. They are numbered from 0, by sentence and length."""

    corpus: Corpus  # the train split
    once: bool  # True if a prefix that several sentences begin with competes once; False if it competes in each of them
    empty: bool = False  # True if the empty prefix (BOS alone) competes, too

    @functools.cached_property
    def first(self) -> np.ndarray:
        """Length of the shortest competing prefix of each sentence, if it is shorter than the sentence [sentence]."""
        shortest = 0 if self.empty else 1
        return np.maximum(self.corpus.first_new, shortest) if self.once else np.full(len(self.corpus), shortest)

    @functools.cached_property
    def counts(self) -> np.ndarray:
        """Number of competing prefixes of each sentence [sentence]."""
        return np.maximum(self.corpus.lengths - self.first, 0)

    @functools.cached_property
    def _starts(self) -> np.ndarray:
        """Number of the first competing prefix of each sentence, and of all [sentence + 1]."""
        return np.concatenate([[0], np.cumsum(self.counts)])

    def __len__(self) -> int:
        """Returns the number of competing prefixes."""
        return int(self._starts[-1])

    def locate(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Sentence and length of prefixes, from their numbers, of any shape."""
        sentences = np.searchsorted(self._starts, numbers, side="right") - 1
        return sentences, numbers - self._starts[sentences] + self.first[sentences]

    def next_token(self, sentence: np.ndarray, position: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Finds the token w that follows each prefix most often; of equally frequent tokens, the first in the corpus.

        Competing prefixes are given by sentence and length, of any shape. Returns the id of w; how often w follows; and how often
        the prefix occurs: the number of sentences that begin with it. Both counts are 1 if shared prefixes compete per sentence.
        """
        w = self.corpus.next_token(sentence, position)
        count, multiplicity = np.ones_like(w), np.ones_like(w)
        if self.once:
            shared, number = self.corpus.shared.find(sentence, position)
            number = number[shared]
            first = self.corpus.shared.next_offset[number]
            w[shared] = self.corpus.shared.next_token[first]
            count[shared] = self.corpus.shared.next_count[first]
            multiplicity[shared] = self.corpus.shared.multiplicity[number]
        return w, count, multiplicity

    def count_next_tokens(self, vocabulary: int) -> np.ndarray:
        """Counts, for each id, the competing prefixes whose w it is [vocabulary]."""
        tokens = np.array(self.corpus.tokens, np.int64)
        if self.once:
            shared = self.corpus.shared
            places = self.corpus.offsets[np.asarray(shared.sentence)] + np.asarray(shared.position)
            tokens[places] = np.asarray(shared.next_token)[np.asarray(shared.next_offset)[:-1]]
        position = np.arange(len(tokens)) - np.repeat(self.corpus.offsets[:-1], self.corpus.lengths)
        return np.bincount(tokens[position >= np.repeat(self.first, self.corpus.lengths)], minlength=vocabulary)
