"""Which prefixes are looked at in the validation split (paper section 5)."""

import numpy as np


def sample_prefixes(lengths: np.ndarray, count: int, how: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draws proper prefixes (1 <= position < length), none twice.

    Args:
        lengths: tokens of each sentence [sentence].
        count: how many; all there are where there are fewer.
        how: "sentence": a random sentence, then a random position of it; sentences repeat only when each has been drawn
            (paper's code). "prefix": uniform over all prefixes (paper's text).
    Returns:
        Sentence and position of each prefix, by sentence and position [prefix].
    """
    generator = np.random.default_rng(seed)
    sentence = np.repeat(np.arange(len(lengths)), lengths - 1)
    starts = np.cumsum(lengths - 1) - (lengths - 1)
    position = np.arange(len(sentence)) - starts[sentence] + 1
    order = generator.permutation(len(sentence))
    if how == "sentence":
        # A shuffled order of prefixes is one of positions within each sentence; the n-th of each sentence makes round n.
        shuffled = order[np.argsort(sentence[order], kind="stable")]
        rounds = np.arange(len(sentence)) - starts[sentence[shuffled]]
        turn = generator.permutation(len(lengths))[sentence[shuffled]]
        order = shuffled[np.lexsort((turn, rounds))]
    chosen = np.sort(order[:count])
    return sentence[chosen].astype(np.int32), position[chosen].astype(np.int32)
