"""Draws the sample of prefixes of the validation split (paper section 5)."""

import numpy as np

from ffkv.base.streams import Purpose, random_stream


def draw_prefixes(lengths: np.ndarray, count: int, how: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draws proper prefixes (1 <= position < length) of sentences, given by their lengths, none twice.

    Args:
        count: how many prefixes; if there are fewer, all are taken.
        how: "sentence": a random sentence, then a random position in it; a sentence is drawn again only after each has
            been drawn (the authors' code). "prefix": uniform over all prefixes (the paper's text).
    Returns:
        Sentence and position of each prefix, sorted by sentence and position [prefix].
    """
    generator = random_stream(seed, Purpose.SAMPLED_PREFIXES)
    sentence = np.repeat(np.arange(len(lengths)), lengths - 1)
    starts = np.cumsum(lengths - 1) - (lengths - 1)
    position = np.arange(len(sentence)) - starts[sentence] + 1
    order = generator.permutation(len(sentence))
    if how == "sentence":
        # Shuffled prefixes are shuffled positions within each sentence. Round n consists of the n-th of each sentence.
        shuffled = order[np.argsort(sentence[order], kind="stable")]
        rounds = np.arange(len(sentence)) - starts[sentence[shuffled]]
        turn = generator.permutation(len(lengths))[sentence[shuffled]]
        order = shuffled[np.lexsort((turn, rounds))]
    chosen = np.sort(order[:count])
    return sentence[chosen].astype(np.int32), position[chosen].astype(np.int32)
