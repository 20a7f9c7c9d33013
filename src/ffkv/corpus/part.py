"""The text of a control: a part of the text of its run.

The pass over the text is most of what a control takes, and grows with the text. A third gives the same numbers up to
sampling, but fewer patterns (docs/interventions.md). It is stretches of sentences, because the topics of patterns are
found in passages of a document, and from the whole text, because its documents may be in any order.
"""

from pathlib import Path

import numpy as np

from ffkv.base.files.atomic import copy
from ffkv.base.settings.runs import third
from ffkv.corpus.corpus_file import Corpus, read_corpus, write_part

LEAST = 300  # sentences of the train split; a text that has no more is copied whole
TOGETHER = 10  # sentences in a row


def copy_corpus(corpus: Path | str, output: Path | str) -> Corpus:
    """Copies a split of a run for its control: a third of the train split; the validation split whole.

    Only sampled prefixes of the validation split are read, so that its size costs nothing.

    Args:
        corpus: the file `corpus/<split>.h5` of the run.
        output: file to write.
    Returns:
        The copy, read from the file.
    Raises:
        UserError: the file is missing or damaged, or the copy cannot be written.
    """
    whole = read_corpus(corpus)
    sentences = choose_sentences(len(whole))
    if whole.attributes["split"] == "validation" or len(sentences) == len(whole):
        copy(corpus, output)
    else:
        write_part(Path(output), whole, sentences)
    return read_corpus(output)


def choose_sentences(count: int) -> np.ndarray:
    """Returns the numbers of a third of `count` sentences: stretches of ten, at equal distances."""
    stretches, kept = -(-count // TOGETHER), -(-third(count, LEAST) // TOGETHER)
    first = np.arange(kept) * stretches // kept * TOGETHER
    sentences = (first[:, None] + np.arange(TOGETHER)).flatten()
    return sentences[sentences < count]
